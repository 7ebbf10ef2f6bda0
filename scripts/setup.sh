#!/usr/bin/env bash
# Makes a bare Debian or Ubuntu machine able to build tensorwire. Installs only what is missing, says
# what and why, and touches neither network nor package manager when all is there. Run it as often as
# you like. It expects git, curl and a Rust toolchain, and never installs those.
#
# Building takes a C linker beside that, and nothing else. With --onednn it also installs oneDNN, with which
# convolutions are computed where it is there: the package libdnnl3, or where the distribution has none, the
# library of PyPI's onednn-cpu-gomp. With --baselines it sees to the C++ compiler that the feature `baselines`
# takes: ZeroMQ's library is built from its source. With --pytorch it installs PyTorch as --tests does, and fails where
# that cannot be done.
#
# With --tests it does all of that, and sees to what the feature `mpi` takes to build (Open MPI, libclang), to
# the launchers that jobs are tested under (Open MPI, Slurm), to the headers that the declarations of libibverbs
# are held against, to PyTorch, which computes beside tensorwire there (some 6 GB in a virtual environment of its own,
# in the user's cache; left out by --without-pytorch), and to what the tests of RDMA need, which run in small virtual
# machines. What cannot be had of these, it says why, those tests skip, and all else is as before. No service is left
# running.
#
# With --long it also sees to what looks for faults with nightly Rust: that toolchain with Miri (by rustup, where that is
# there), cargo-fuzz and cargo-deny.
#
# Exit status: 0 all is there, 1 an installation failed, 2 something that you have to do first.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

tests=false
long=false
pytorch=true
onednn=false
baselines=false
pytorch_alone=false
for option in "$@"; do
  case "$option" in
    --onednn) onednn=true ;;
    --baselines) baselines=true ;;
    --without-pytorch) pytorch=false ;;
    --pytorch) pytorch_alone=true ;;
    --tests) tests=true onednn=true baselines=true ;;
    --long) long=true ;;
    -h | --help) sed -n '1d; /^#/!q; s/^# \{0,1\}//p' scripts/setup.sh; exit ;;
    *) fail "no option '$option'; there are --onednn, --baselines, --pytorch, --tests, --long, --without-pytorch and --help" ;;
  esac
done

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

# A compiler may be there without its headers or its library, as above; CXX names another one for cargo, and so
# it does here.
can_link_cpp() {
  local folder status=0
  command -v "${CXX:-c++}" >/dev/null 2>&1 || return 1
  folder=$(mktemp -d)
  printf '#include <string>\nint main() { return std::string().size(); }\n' > "$folder/main.cpp"
  "${CXX:-c++}" "$folder/main.cpp" -o "$folder/main" >/dev/null 2>&1 || status=1
  rm -rf "$folder"
  return "$status"
}

# Folders of administrators are not on the PATH of everybody, but the tests look there.
has() { PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# The bindings to MPI are read out of its C headers by libclang, which needs headers of its own beside it.
# Somebody who points to one with LIBCLANG_PATH is believed.
has_libclang() {
  [ -z "${LIBCLANG_PATH:-}" ] || return 0
  # libclang-cpp, which other programs bring, is another library
  compgen -G '/usr/lib/llvm-*/lib/libclang[.-][s0-9]*' >/dev/null ||
    compgen -G '/usr/lib*/libclang[.-][s0-9]*' >/dev/null || return 1
  compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null ||
    compgen -G '/usr/lib*/clang/*/include/stddef.h' >/dev/null
}

# mpicc comes with the launcher, MPI's headers with another package.
has_mpi() {
  local folder status=0
  has mpicc || return 1
  folder=$(mktemp -d)
  printf '#include <mpi.h>\nint main(void) { return MPI_Finalize(); }\n' > "$folder/main.c"
  mpicc "$folder/main.c" -o "$folder/main" >/dev/null 2>&1 || status=1
  rm -rf "$folder"
  return "$status"
}

has_verbs_headers() {
  printf '#include <infiniband/verbs.h>\n' | cc -fsyntax-only -x c - >/dev/null 2>&1
}

# Runs a command as root.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    command -v sudo >/dev/null 2>&1 || fail "installing needs root; as root, run: $*"
    sudo "$@"
  fi
}

# $@: packages of Debian and Ubuntu.
install() {
  command -v apt-get >/dev/null 2>&1 ||
    fail "this system has no apt-get; install by hand what Debian calls: $*"
  say "installing with apt-get: $*"
  # a machine that has just begun installs by itself, too: that is waited for
  for _ in {1..12}; do
    as_root apt-get update && break
    sleep 5
  done
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "$@"
}

# True if the dynamic linker finds oneDNN, as it will for the program. (grep -q would leave at the first
# match, and a pipe's writer that is not done counts as failed.)
has_onednn() {
  local folder folders
  PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep 'libdnnl\.so\.3 ' >/dev/null &&
    return 0
  IFS=: read -r -a folders <<< "${LD_LIBRARY_PATH:-}"
  for folder in ${folders[@]+"${folders[@]}"}; do
    [ ! -e "$folder/libdnnl.so.3" ] || return 0
  done
  return 1
}

# The version that was measured, and the last that was published: oneDNN 3.2.
onednn_wheel=onednn-cpu-gomp==2023.2.0

# Debian 12 has version 2 of the library alone, under another name.
install_onednn() {
  local folder packages=() status=0
  if apt-cache show libdnnl3 >/dev/null 2>&1; then
    install libdnnl3
    return
  fi
  [ "$(uname -m)" = x86_64 ] || { say "there is no oneDNN for $(uname -m) here" >&2; return 1; }
  python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)
  has unzip || packages+=(unzip)
  PATH="$PATH:/usr/sbin:/sbin" ldconfig -p | grep 'libgomp\.so\.1 ' >/dev/null ||
    packages+=(libgomp1)
  [ "${#packages[@]}" -eq 0 ] || install "${packages[@]}" || return
  # the packages are known only now
  if apt-cache show libdnnl3 >/dev/null 2>&1; then
    install libdnnl3
    return
  fi
  say "downloading oneDNN from PyPI: $onednn_wheel"
  folder=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --dest "$folder" "$onednn_wheel" &&
    unzip -q -j "$folder"/*.whl '*/libdnnl.so.3' -d "$folder" &&
    as_root cp "$folder/libdnnl.so.3" /usr/local/lib/libdnnl.so.3 &&
    as_root env PATH="$PATH:/usr/sbin:/sbin" ldconfig || status=1
  rm -rf "$folder"
  return "$status"
}

# $1: what tells that it is there; $2: what is missing and what for; the rest: packages that bring it. Without it
# nothing is built, so the set-up fails with it.
need_to_build() {
  local there=$1 what=$2
  shift 2
  "$there" && return
  say "no $what; missing: $*"
  install "$@" || { say "the installation failed; its messages are above" >&2; exit 1; }
  "$there" || { say "still no $what after the installation" >&2; exit 1; }
}

check_rust
need_to_build can_link "working C linker (cc), with which Rust links every program" gcc libc6-dev
! $baselines ||
  need_to_build can_link_cpp "working C++ compiler (${CXX:-c++}), with which ZeroMQ's library is built" g++
say "all that the build needs is there"

# Nothing fails without it but those who ask for it: convolutions are computed by our own kernels then.
if $onednn && ! has_onednn; then
  say "no oneDNN (libdnnl.so.3), which computes convolutions faster"
  # in a shell of its own: what ends the set-up there is a reason to do without here
  if (install_onednn) && has_onednn; then
    say "oneDNN is there"
  else
    say "oneDNN could not be installed, so its tests will be skipped; the reason is above" >&2
    $tests || exit 1
  fi
fi

# A program of cargo that is installed for those who ask for it, and what without it is skipped.
for_long() {
  local there=$1 what=$2
  shift 2
  $there >/dev/null 2>&1 && return
  say "$what; running: $*"
  "$@" || say "that will be skipped: the installation failed; its messages are above"
}
if $long; then
  for_long "cargo +nightly miri --version" "Miri interprets tests" \
    rustup toolchain install nightly --profile minimal --component miri,rust-src
  for_long "cargo fuzz --version" "decoders are fuzzed" cargo install --locked cargo-fuzz
  for_long "cargo deny --version" "dependencies are held against deny.toml" cargo install --locked cargo-deny
fi

# PyTorch and what is beside it for the tests, in these versions.
pytorch_packages=bench/peers/requirements-pytorch.txt
pytorch_folder=${XDG_CACHE_HOME:-$HOME/.cache}/tensorwire/pytorch

has_pytorch() {
  cmp -s "$pytorch_packages" "$pytorch_folder/requirements.txt" && [ -x "$pytorch_folder/bin/python" ]
}

install_pytorch() {
  local packages=()
  has python3 || packages+=(python3)
  python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
  [ "${#packages[@]}" -eq 0 ] || install "${packages[@]}" || return
  rm -rf "$pytorch_folder"
  python3 -m venv "$pytorch_folder" &&
    "$pytorch_folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
      --requirement "$pytorch_packages" &&
    "$pytorch_folder/bin/python" -c 'import torch' &&
    cp "$pytorch_packages" "$pytorch_folder/requirements.txt"
}

if $pytorch_alone && ! has_pytorch; then
  say "installing PyTorch; some 6 GB go to $pytorch_folder"
  (install_pytorch) || { rm -rf "$pytorch_folder"; fail "PyTorch could not be installed; the reason is above"; }
fi

$tests || exit 0

# Packages start their services when they are installed; the tests start their own, where nobody else looks.
install_launchers() {
  local policy=/usr/sbin/policy-rc.d status=0
  [ ! -e "$policy" ] && as_root sh -c "printf '#!/bin/sh\nexit 101\n' > $policy && chmod +x $policy" ||
    policy=
  install "$@" || status=1
  [ -z "$policy" ] || as_root rm -f "$policy"
  return "$status"
}

has_strace() { has strace; }
has_rsvg() { has rsvg-convert; }
# What the tests build, or look at. Each is installed for itself: without one of them the others are tested.
for_tests() {
  local there=$1 what=$2
  shift 2
  "$there" && return
  say "$what; missing: $*"
  # in a shell of its own: what ends the set-up there is a reason to skip here
  (install "$@") || say "those tests will be skipped: the installation failed; its messages are above"
}
for_tests has_verbs_headers "the declarations of libibverbs are held against its headers" libibverbs-dev
for_tests has_mpi "the feature mpi is built and tested" libopenmpi-dev openmpi-bin
for_tests has_strace "what checkpoints ask of the system is followed" strace
for_tests has_rsvg "plots become PDF by librsvg" librsvg2-bin
for_tests has_libclang "MPI's headers are read by libclang for it" libclang-dev

launchers=()
has mpirun || launchers+=(openmpi-bin)
has srun && has slurmctld && has slurmd || launchers+=(slurm-wlm)
has munged || launchers+=(munge)
if [ "${#launchers[@]}" -gt 0 ]; then
  say "jobs are tested under other launchers; missing: ${launchers[*]}"
  # in a shell of its own: what ends the set-up there is a reason to skip here
  (install_launchers "${launchers[@]}") ||
    say "the tests under those launchers will be skipped: the installation failed; its messages are above"
fi

if $pytorch && ! has_pytorch; then
  say "PyTorch computes beside tensorwire in tests; some 6 GB go to $pytorch_folder (--without-pytorch leaves it out)"
  # in a shell of its own: what ends the set-up there is a reason to skip here
  (install_pytorch) || {
    rm -rf "$pytorch_folder"
    say "those tests will be skipped: the installation failed; its messages are above"
  }
fi

# Nothing below fails the set-up: a machine without RDMA tests is still one to build and test on.
skip() { say "the tests of RDMA will be skipped: $*"; exit 0; }

# A program or file, and the package of Debian that brings it.
missing=()
need() { has "$1" || [ -e "$1" ] || missing+=("$2"); }
need qemu-system-x86_64 qemu-system-x86
need /usr/share/seabios/bios-256k.bin seabios
need cpio cpio
need modprobe kmod
need ip iproute2
need /etc/libibverbs.d/rxe.driver ibverbs-providers
need ibv_devinfo ibverbs-utils
need ib_write_bw perftest
# busybox runs where there is no C library yet, so it must be the static one, which names no loader
static_busybox() {
  local file
  file=$(PATH="$PATH:/sbin" command -v busybox) && ! head -c 4096 "$file" | grep -q ld-linux
}
static_busybox || missing+=(busybox-static)

# what apt knows of packages may never have been fetched, and the kernel is one
knows_kernel() {
  compgen -G "${CARGO_TARGET_DIR:-target}/soft-roce/machine-*" >/dev/null ||
    apt-cache depends linux-image-amd64 2>/dev/null | grep -q 'Depends: linux-image-'
}

[ "$(uname -m)" = x86_64 ] || skip "the machines that they run in are x86-64"
if [ "${#missing[@]}" -gt 0 ] || ! knows_kernel; then
  say "the tests of RDMA run in virtual machines with Soft-RoCE; missing: ${missing[*]:-the list of packages}"
  # in a shell of its own: what ends the set-up there is a reason to skip here
  (install "${missing[@]}") || skip "the installation failed; its messages are above"
fi
say "all that the tests of RDMA need is there, but for Debian's kernel, which they download once"
