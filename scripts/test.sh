#!/usr/bin/env bash
# Passes or fails the whole project: set-up, format, lints, every test, and the tests of RDMA in virtual
# machines where there can be any. Everything streams; the last line is the count, `N passed, N failed,
# N skipped`. The exit status is that of the first part that failed, so a build that breaks is never a
# pass with nothing counted.
set -uo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh --tests || exit

# The set-up has installed oneDNN, or said why it could not. Where it is there, a test that finds none
# fails, where elsewhere it skips.
if PATH="$PATH:/usr/sbin:/sbin" ldconfig -p | grep 'libdnnl\.so\.3 ' >/dev/null; then
  export TENSORWIRE_ONEDNN=1
fi

# So with the launchers that jobs are tested under. Slurm's daemon must be root.
has() { PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }
if has mpirun && has srun && has slurmctld && has slurmd && has munged && [ "$(id -u)" -eq 0 ]; then
  export TENSORWIRE_LAUNCHERS=1
fi

status=0
# Runs a part, and remembers the first failure without stopping: the count is worth having anyway.
part() {
  printf '\n== %s\n' "$*"
  "$@"
  local result=$?
  [ "$result" -eq 0 ] || printf 'FAILED (exit status %s): %s\n' "$result" "$*"
  [ "$status" -ne 0 ] || status=$result
}

# Neither is part of a minimal toolchain.
if cargo fmt --version >/dev/null 2>&1; then
  part cargo fmt --all --check
else
  printf '\nskipped: cargo fmt is not installed (rustup component add rustfmt)\n'
fi
if cargo clippy --version >/dev/null 2>&1; then
  part cargo clippy --workspace --all-targets -- -D warnings
else
  printf '\nskipped: cargo clippy is not installed (rustup component add clippy)\n'
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
tests() {
  # the status of cargo, not of tee: pipefail is set
  cargo test --workspace --no-fail-fast 2>&1 | tee "$log"
}
part tests
rdma() {
  cargo xtask soft-roce test 2>&1 | tee -a "$log"
}
part rdma

printf '\n'
[ "$status" -eq 0 ] || printf 'exit status %s: see FAILED above\n' "$status"
# test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …
awk '/^test result:/ {
       for (i = 2; i <= NF; i++) {
         if ($i == "passed;") passed += $(i - 1)
         if ($i == "failed;") failed += $(i - 1)
         if ($i == "ignored;") skipped += $(i - 1)
       }
     }
     END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
exit "$status"
