#!/usr/bin/env bash
# Makes a bare Debian or Ubuntu machine able to build tensorwire. Installs only what is missing, says
# what and why, and touches neither network nor package manager when all is there. Run it as often as
# you like. It expects git, curl and a Rust toolchain, and never installs those.
#
# Exit status: 0 all is there, 1 an installation failed, 2 something that you have to do first.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

# True if version $1 is at least version $2.
at_least() { [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

check_rust() {
  local wanted found
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  command -v cargo >/dev/null 2>&1 ||
    fail "no cargo on the PATH; install Rust $wanted or newer from https://rustup.rs, open a new shell, and run this again"
  found=$(cargo --version | cut -d ' ' -f 2)
  at_least "$found" "$wanted" ||
    fail "Rust $found is too old, $wanted is needed; run 'rustup update stable', or install it from https://rustup.rs"
}

# Rust has its programs linked by cc, against the C library's start files. Only a program that is
# linked proves that both are there: a compiler may be installed without its library.
can_link() {
  local folder status=0
  command -v cc >/dev/null 2>&1 || return 1
  folder=$(mktemp -d)
  printf 'int main(void) { return 0; }\n' > "$folder/main.c"
  cc "$folder/main.c" -o "$folder/main" >/dev/null 2>&1 || status=1
  rm -rf "$folder"
  return "$status"
}

# $@: packages of Debian and Ubuntu.
install() {
  local root=()
  command -v apt-get >/dev/null 2>&1 ||
    fail "this system has no apt-get; install by hand what Debian calls: $*"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 ||
      fail "installing needs root; as root, run: apt-get install $*"
    root=(sudo)
  fi
  say "installing with apt-get: $*"
  # ${root[@]+...}: an empty array counts as unset in old versions of bash
  ${root[@]+"${root[@]}"} apt-get update
  ${root[@]+"${root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends "$@"
}

check_rust
if ! can_link; then
  say "no working C linker (cc), with which Rust links every program; gcc and libc6-dev bring it"
  install gcc libc6-dev || { say "the installation failed; its messages are above" >&2; exit 1; }
  can_link || { say "cc still cannot link a C program after the installation; see what 'cc' says" >&2; exit 1; }
fi
say "all that the build needs is there"
