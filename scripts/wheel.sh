#!/usr/bin/env bash
# Builds the Python package tensorwire as a wheel, with the program tensorwire in it, and installs it into the Python of
# the active virtual environment. Without one it builds alone, and says where the wheel lies. The wheel runs with every
# CPython from 3.10 on. It takes what building tensorwire takes (scripts/setup.sh), python3 3.10 or newer with venv, and
# once a download of maturin, which is kept in the user's cache.
#
#   --install PYTHON   installs into this Python instead
#   --help             print this
#
# Exit status: 0 all is done, 1 building or installing failed, 2 something that you have to do first.
set -euo pipefail
called_in=$PWD
cd "$(dirname "$0")/.."

say() { printf 'wheel: %s\n' "$*"; }
fail() { printf 'wheel: %s\n' "$*" >&2; exit 2; }

python=${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}
while [ "$#" -gt 0 ]; do
  case "$1" in
    --install)
      [ "$#" -ge 2 ] || fail "--install takes a Python, as in: --install /usr/bin/python3"
      case "$2" in
        /*) python=$2 ;;
        */*) python=$called_in/$2 ;;
        *) python=$2 ;;
      esac
      shift 2
      ;;
    -h | --help) sed -n '1d; /^#/!q; s/^# \{0,1\}//p' scripts/wheel.sh; exit ;;
    *) fail "no option '$1'; there are --install PYTHON and --help" ;;
  esac
done

# True if $1 is a Python of 3.10 or newer.
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# Whatever would stop the installation is better known before minutes of building.
check_target() {
  command -v "$python" >/dev/null 2>&1 || fail "there is no Python at '$python'; --install names another"
  is_new_enough "$python" || fail "$python is no Python of 3.10 or newer; --install names another"
  "$python" -m pip --version >/dev/null 2>&1 ||
    fail "$python has no pip; run '$python -m ensurepip', or take a Python of 'python3 -m venv FOLDER'"
}
[ -z "$python" ] || check_target

command -v cargo >/dev/null 2>&1 || fail "no cargo on the PATH; run ./scripts/setup.sh, which says what building takes"

# The version that pyproject.toml asks for, in an environment of its own.
maturin_wanted=$(sed -n 's/^requires = \["\(.*\)"\]$/\1/p' python/pyproject.toml)
maturin_folder=${XDG_CACHE_HOME:-$HOME/.cache}/tensorwire/maturin

has_maturin() {
  [ "$(cat "$maturin_folder/requirement" 2>/dev/null)" = "$maturin_wanted" ] &&
    "$maturin_folder/bin/maturin" --version >/dev/null 2>&1
}

install_maturin() {
  is_new_enough python3 || fail "no python3 of 3.10 or newer on the PATH; install one (Debian and Ubuntu: python3)"
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    fail "python3 cannot make virtual environments; install its venv (Debian and Ubuntu: python3-venv)"
  say "maturin builds wheels; it goes to $maturin_folder"
  rm -rf "$maturin_folder"
  # what is there by half would look like the whole
  trap 'rm -rf "$maturin_folder"' EXIT
  python3 -m venv "$maturin_folder" &&
    "$maturin_folder/bin/python" -m pip install --quiet --disable-pip-version-check "$maturin_wanted" ||
    { say "maturin could not be installed; the reason is above" >&2; exit 1; }
  printf '%s\n' "$maturin_wanted" > "$maturin_folder/requirement"
  trap - EXIT
}
has_maturin || install_maturin

# The program goes into the wheel as pyproject.toml says, from a folder that is there for so long.
data=python/wheel-data
wheels=$(mktemp -d)
trap 'rm -rf "$data" "$wheels"' EXIT

say "building the program"
# with what the package is made of: cargo builds that a second time for the package if it is not named here
cargo build --release --locked --package tensorwire-cli --package tensorwire-python ||
  { say "the program could not be built; if something is missing, ./scripts/setup.sh says what" >&2; exit 1; }
target=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
mkdir -p "$data/scripts"
install -m 755 "$target/release/tensorwire" "$data/scripts/tensorwire"

say "building the package"
(cd python && CARGO_TARGET_DIR=$target "$maturin_folder/bin/maturin" build --release --locked --out "$wheels") ||
  { say "the package could not be built; the reason is above" >&2; exit 1; }
name=$(basename "$wheels"/*.whl)
"$maturin_folder/bin/python" -m zipfile --list "$wheels/$name" | grep 'data/scripts/tensorwire ' >/dev/null ||
  { say "the program is not in the wheel; is it excluded in python/pyproject.toml?" >&2; exit 1; }
mkdir -p "$target/wheels"
mv "$wheels/$name" "$target/wheels/$name"
wheel=$target/wheels/$name
say "$wheel: $(du -h --apparent-size "$wheel" | cut -f 1)"

if [ -z "$python" ]; then
  say "no virtual environment is active; to install it: PYTHON -m pip install --force-reinstall --no-deps $wheel"
  exit 0
fi
# one of the same version may be there, from before
"$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel" ||
  { say "the wheel could not be installed; the reason is above" >&2; exit 1; }
say "installed for $python: $("$python" -c 'import tensorwire; print("tensorwire", tensorwire.__version__)')"
