# What the scripts that measure a peer and tensorwire in turns have in common. They source it, after
# setting `root`, the project's folder, and `BUILD_S`, the longest that building tensorwire may take.
# shellcheck shell=bash

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
fail() { say "$*"; exit 1; }
mistake() { say "$*"; exit 2; }

# Prints a size in bytes: 4KiB is 4096.
in_bytes() {
  local number=${1%%[!0-9]*} unit=1
  [[ $1 =~ ^[1-9][0-9]{0,8}(B|KiB|MiB|GiB)?$ ]] ||
    mistake "'$1' is no size; write bytes, or a number with KiB, MiB or GiB, such as 64KiB"
  case $1 in
    *KiB) unit=$((1 << 10)) ;;
    *MiB) unit=$((1 << 20)) ;;
    *GiB) unit=$((1 << 30)) ;;
  esac
  [ $((number * unit % 4)) -eq 0 ] || mistake "'$1' is no whole number of f32; write a multiple of 4"
  echo $((number * unit))
}

scratch=
clean_up() {
  local children
  children=$(jobs -pr)
  # timeout passes the signal on to all that it started
  [ -z "$children" ] || { kill $children 2>/dev/null || true; wait; }
  [ -z "$scratch" ] || rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# $1: seconds; the rest: a command. It runs in the background, since a signal interrupts `wait` but
# no command in the foreground.
bounded() {
  local status=0
  timeout --kill-after=10 "$@" &
  wait $! || status=$?
  [ "$status" -ne 124 ] || say "gave up after $1 s: ${*:2}"
  return "$status"
}

# The same, but shows the command's messages only if it fails.
quietly_bounded() {
  local status=0
  bounded "$@" 2>"$scratch/messages" || status=$?
  [ "$status" -eq 0 ] || cat "$scratch/messages" >&2
  return "$status"
}

# Sets `tensorwire` to the program to measure, which it builds if TENSORWIRE names none.
find_tensorwire() {
  local hint="name a built one: TENSORWIRE=path/to/tensorwire"
  if [ -n "${TENSORWIRE:-}" ]; then
    tensorwire=$(command -v "$TENSORWIRE") || mistake "TENSORWIRE is '$TENSORWIRE', no program"
    return
  fi
  command -v cargo >/dev/null || mistake "no cargo to build tensorwire with; $hint"
  say "building tensorwire"
  bounded "$BUILD_S" cargo build --release --manifest-path "$root/Cargo.toml" ||
    fail "the build failed; its messages are above"
  tensorwire=${CARGO_TARGET_DIR:-$root/target}/release/tensorwire
  [ -x "$tensorwire" ] || mistake "the build left no '$tensorwire'; $hint"
}
