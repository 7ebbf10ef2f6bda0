#!/usr/bin/env bash
# Passes or fails the whole project: set-up, format, lints, every test, and the tests of RDMA in virtual
# machines where there can be any. Everything streams. At the end stand where the time went and which tests
# were skipped and why; the last line is the count, `N passed, N failed, N skipped`. The exit status is that
# of the first part that failed, so a build that breaks is never a pass with nothing counted.
#
#   --without-pytorch   leaves out the tests that need PyTorch, which set-up would install
#   --long   suites that draw seeds, or do one thing in many strategies, try all of them and what learns for minutes
#            learns, where otherwise they try a fixed part; loom, Miri, sanitizers, fuzzers and cargo-deny look for what no test shows (docs/reliability.md);
#            and scripts/release.sh makes archive and package, which are unpacked and train.
#            TENSORWIRE_FUZZ_SECONDS is how long each decoder is fuzzed, 60 if it is not set
#   --help   print this
set -uo pipefail
cd "$(dirname "$0")/.."

setup=(--tests)
pytorch=true
for option; do
  case "$option" in
    --long) export TENSORWIRE_LONG=1; setup+=(--long) ;;
    --without-pytorch) pytorch=false; setup+=(--without-pytorch) ;;
    -h | --help) sed -n '1d; /^#/!q; s/^# \{0,1\}//p' scripts/test.sh; exit ;;
    *) printf "no option '%s'; there are --long, --without-pytorch and --help\n" "$option" >&2; exit 2 ;;
  esac
done

./scripts/setup.sh "${setup[@]}" || exit

has() { PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# The set-up has installed oneDNN, or said why it could not. Where it is there, a test that finds none
# fails, where elsewhere it skips.
if PATH="$PATH:/usr/sbin:/sbin" ldconfig -p | grep 'libdnnl\.so\.3 ' >/dev/null; then
  export TENSORWIRE_ONEDNN=1
fi

# So with PyTorch.
pytorch_folder=${XDG_CACHE_HOME:-$HOME/.cache}/tensorwire/pytorch
if $pytorch && [ -e "$pytorch_folder/requirements.txt" ]; then
  export TENSORWIRE_PYTORCH=$pytorch_folder/bin/python
fi

# So with the launchers that jobs are tested under. Slurm's daemon must be root.
if has mpirun && has srun && has slurmctld && has slurmd && has munged && [ "$(id -u)" -eq 0 ]; then
  export TENSORWIRE_LAUNCHERS=1
fi

# One set of features for all that is built here: with another one cargo builds most of it a second time.
features=tensorwire-cli/baselines
# MPI's headers come with another package than its launcher, and its bindings are built by libclang.
if has mpicc && printf '#include <mpi.h>\n' | mpicc -fsyntax-only -x c - 2>/dev/null &&
  { [ -n "${LIBCLANG_PATH:-}" ] || compgen -G '/usr/lib/llvm-*/lib/libclang[.-][s0-9]*' >/dev/null ||
    compgen -G '/usr/lib*/libclang[.-][s0-9]*' >/dev/null; }; then
  features+=,tensorwire/mpi
fi
features=(--features "$features")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
log=$folder/log notes=$folder/notes parts=$folder/parts
touch "$log" "$notes" "$parts"
# where a test that cannot run here says so; libtest counts it as passed
export TENSORWIRE_SKIPS=$folder/skips
touch "$TENSORWIRE_SKIPS"
# what cargo prints is read below
export CARGO_TERM_COLOR=never

status=0
# Runs a part, and remembers the first failure without stopping: the count is worth having anyway.
part() {
  local result begin=$EPOCHREALTIME
  printf '\n== %s\n' "$*"
  "$@"
  result=$?
  awk -v begin="$begin" -v end="$EPOCHREALTIME" -v part="$*" \
    'BEGIN { printf "%8.1f  %s\n", end - begin, part }' >> "$parts"
  [ "$result" -eq 0 ] || printf 'FAILED (exit status %s): %s\n' "$result" "$*"
  [ "$status" -ne 0 ] || status=$result
  return "$result"
}
# Says that a part is skipped, now and at the end.
skip() {
  printf '\nskipped: %s\n' "$*"
  printf '%s\n' "$*" >> "$notes"
}
# Prints what it reads, and keeps it behind the second at which each line came.
logged() {
  local line
  while IFS= read -r line || [ -n "$line" ]; do
    printf '%s\n' "$line"
    printf '%s %s\n' "$EPOCHREALTIME" "$line" >> "$log"
  done
}

# Neither is part of a minimal toolchain.
if cargo fmt --version >/dev/null 2>&1; then
  part cargo fmt --all --check
else
  skip 'cargo fmt is not installed (rustup component add rustfmt)'
fi
if cargo clippy --version >/dev/null 2>&1; then
  part cargo clippy --workspace --all-targets "${features[@]}" -- -D warnings
else
  skip 'cargo clippy is not installed (rustup component add clippy)'
fi

tests() {
  # the status of cargo, not of what reads it: pipefail is set
  cargo test --workspace "${features[@]}" --no-fail-fast 2>&1 | logged
}
# the program that was built beside the tests: for cargo run, cargo would build it with other features
rdma() {
  "${CARGO_TARGET_DIR:-target}/debug/xtask" soft-roce test "${features[@]}" 2>&1 | logged
}
# apart from the tests, so that the time of each is known
if part cargo test --workspace "${features[@]}" --no-run; then
  part tests
  part rdma
fi

# Interprets tests: memory that is used against Rust's rules is an error there. It is slow, so that few inputs are drawn.
miri() {
  MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance ${miri_more:-}" PROPTEST_CASES=4 \
    cargo +nightly miri test --no-fail-fast "$@" 2>&1 | logged
}
# Tries the orders in which threads may take their steps. A build of its own: all of it gets loom's types.
loom() {
  RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" cargo test --release --lib "$@" loom -- --nocapture 2>&1 | logged
}
# Runs tests of code that a sanitizer was built into. rustix makes its calls through the C library then, where the sanitizer
# sees memory come and go. That a peer answers before sendmsg returns is no race with what was sent; tests of death write the
# same memory many times at once; those of devices load the stand-in for CUDA's driver, a library which no program takes that is built so.
sanitized() {
  local sanitizer=$1 target
  shift
  target=$(rustc -vV | sed -n 's/^host: //p')
  RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=$sanitizer --cfg rustix_use_libc" TSAN_OPTIONS=intercept_send=0 \
    cargo +nightly test -Zbuild-std --target "$target" --target-dir "${CARGO_TARGET_DIR:-target}/$sanitizer" \
    --no-fail-fast --lib --tests "$@" -- --skip death:: --skip devices --skip by_nic:: --skip giving_up:: 2>&1 | logged
}
# Tries a decoder for some time, beginning with the corpus in the tree, to which nothing is added.
fuzz() {
  mkdir -p "$folder/corpus/$1"
  cargo +nightly fuzz run "$1" "$folder/corpus/$1" "fuzz/corpus/$1" -- -max_total_time="${TENSORWIRE_FUZZ_SECONDS:-60}" \
    -max_len=4096 -timeout=20 -verbosity=0 -print_final_stats=1
}
if [ -n "${TENSORWIRE_LONG:-}" ]; then
  part loom -p tensorwire-memory -p tensorwire-fabric
  if cargo +nightly miri --version >/dev/null 2>&1; then
    part miri --lib -p tensorwire-base -p tensorwire-tensor -p tensorwire-memory -p tensorwire-fabric
    part miri --lib -p tensorwire-collectives -p tensorwire-kvstore -p tensorwire-cuda
    # rayon's queues (crossbeam-epoch) read behind an entry that is lent, which trees of loans allow and stacks do not, and
    # leave some memory when threads end
    miri_more='-Zmiri-tree-borrows -Zmiri-ignore-leaks' part miri --lib -p tensorwire-kernels cpu::conv::pack
  else
    skip 'cargo miri is not installed (rustup toolchain install nightly --component miri,rust-src)'
  fi
  # the standard library is built anew, which takes its source
  if [ -e "$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/Cargo.lock" ]; then
    for sanitizer in thread address; do
      part sanitized "$sanitizer" -p tensorwire-memory -p tensorwire-fabric -p tensorwire-kvstore -p tensorwire-runtime \
        -p tensorwire-collectives
    done
  else
    skip 'the source of the standard library is not installed for nightly Rust (rustup toolchain install nightly --component rust-src)'
  fi
  if cargo +nightly fuzz --version >/dev/null 2>&1; then
    for target in fuzz/fuzz_targets/*.rs; do
      part fuzz "$(basename "$target" .rs)"
    done
  else
    skip 'cargo fuzz is not installed for nightly Rust (cargo install --locked cargo-fuzz)'
  fi
  # what is given to people who do not build: each is unpacked and trains
  if has dpkg-deb && has objdump && has python3; then
    DEBFULLNAME=${DEBFULLNAME:-test} DEBEMAIL=${DEBEMAIL:-test@localhost} part ./scripts/release.sh --out "$folder/dist"
  else
    skip 'archive and package are not made: there is no dpkg-deb, objdump or python3 (apt-get install dpkg binutils python3-venv)'
  fi
  if cargo deny --version >/dev/null 2>&1; then
    part cargo deny check
  else
    skip 'cargo deny is not installed (cargo install --locked cargo-deny)'
  fi
fi

printf '\n== time, in seconds\n'
cat "$parts"
threads=${RUST_TEST_THREADS:-$(nproc)}
awk -v threads="$threads" -f scripts/summary.awk "$log" | sort -t "$(printf '\t')" -k 2,2 -rn > "$folder/times"
for kind in program test; do
  printf '\nthe slowest of %s\n' "$(grep -c "^$kind" "$folder/times") ${kind}s"
  grep "^$kind" "$folder/times" | head -n 15 | awk -F '\t' '{ printf "%8.1f  %s\n", $2, $3 }'
done

printf '\n== skipped\n'
sort "$notes"
# test death::child ... ignored, started by the other tests
sed -n 's/^[0-9.]* test \(.*\) \.\.\. ignored/\1/p; s/^[0-9.]* skipped: //p' "$log"
# many tests lack the same thing
sort -u "$TENSORWIRE_SKIPS" | awk -F '\t' '
  { key = $2 ", " $1 ": " $4; if (!count[key]++) first[key] = $3 }
  END { for (key in count) printf("%s (%d tests: %s%s)\n", key, count[key], first[key], (count[key] > 1 ? ", …" : "")) }' | sort

printf '\n'
[ "$status" -eq 0 ] || printf 'exit status %s: see FAILED above\n' "$status"
# test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …
skipped=$(awk -F '\t' '$1 == "skipped" && !seen[$2, $3]++ { n++ } END { print n + 0 }' "$TENSORWIRE_SKIPS")
awk -v early="$skipped" '$2 == "test" && $3 == "result:" {
       for (i = 2; i <= NF; i++) {
         if ($i == "passed;") passed += $(i - 1)
         if ($i == "failed;") failed += $(i - 1)
         if ($i == "ignored;") skipped += $(i - 1)
       }
     }
     END { printf "%d passed, %d failed, %d skipped\n", passed - early, failed, skipped + early }' "$log"
exit "$status"
