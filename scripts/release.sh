#!/usr/bin/env bash
# Makes what is given to people who do not build: a program for every Linux of this processor with glibc 2.28 or newer
# (Debian 10, Ubuntu 18.10, RHEL 8, SLES 15 SP3), in an archive and in a package of Debian; and one that needs nothing, for
# systems with another C library or an older one, and for empty containers. With the sums of all:
#
#   dist/tensorwire-VERSION-x86_64-linux.tar.gz
#   dist/tensorwire_VERSION_amd64.deb
#   dist/tensorwire-VERSION-x86_64-linux-static.tar.gz
#   dist/SHA256SUMS
#
# The first program is linked by zig against that C library, whatever this machine has. It holds all that it needs but the C
# library; what a machine may have beside it, it loads when it starts (libibverbs, CUDA, oneDNN). The static one loads nothing:
# it has shared memory and TCP, and processors to compute with. Names of hosts it resolves by /etc/hosts and DNS. Each is unpacked and trains a few steps before this script
# says that it is there.
#
# It takes what building tensorwire takes (scripts/setup.sh), the C library as an archive (Debian's libc6-dev has it, Fedora's
# glibc-static), a system with dpkg, python3 with venv, and binutils (Debian and
# Ubuntu: apt-get install python3-venv binutils), and once a download of cargo-zigbuild, which is kept in the user's cache.
# The package names its maintainer, by DEBFULLNAME and DEBEMAIL, else by git's user.name and user.email.
#
#   --out FOLDER          where they go, dist if it is not given
#   --features FEATURES   builds the program with these, as for cargo: baselines, which takes a C++ compiler
#   --help                print this
#
# Exit status: 0 all is done, 1 a part failed, 2 something that you have to do first.
set -euo pipefail
called_in=$PWD
cd "$(dirname "$0")/.."

say() { printf 'release: %s\n' "$*"; }
fail() { printf 'release: %s\n' "$*" >&2; exit 2; }
broken() { printf 'release: %s\n' "$*" >&2; exit 1; }

out=$PWD/dist features=
while [ "$#" -gt 0 ]; do
  case "$1" in
    --out | --features) [ "$#" -ge 2 ] || fail "$1 takes a value" ;;&
    --out) case "$2" in /*) out=$2 ;; *) out=$called_in/$2 ;; esac; shift 2 ;;
    --features) features=$2; shift 2 ;;
    -h | --help) sed -n '1d; /^#/!q; s/^# \{0,1\}//p' scripts/release.sh; exit ;;
    *) fail "no option '$1'; there are --out FOLDER, --features FEATURES and --help" ;;
  esac
done

glibc=2.28
machine=$(uname -m)
target=$machine-unknown-linux-gnu
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
command -v cargo >/dev/null 2>&1 || fail "no cargo on the PATH; run ./scripts/setup.sh, which says what building takes"
for program in python3 dpkg-deb objdump; do
  command -v "$program" >/dev/null 2>&1 ||
    fail "no $program on the PATH; on Debian and Ubuntu: apt-get install python3-venv dpkg binutils"
done
grep -qF "## [$version]" CHANGELOG.md || fail "CHANGELOG.md has no section of version $version; write one"
maintainer_name=${DEBFULLNAME:-$(git config user.name || true)}
maintainer_address=${DEBEMAIL:-$(git config user.email || true)}
[ -n "$maintainer_name" ] && [ -n "$maintainer_address" ] ||
  fail "a package names who made it; set DEBFULLNAME and DEBEMAIL, or git's user.name and user.email"
# what is made of the same commit is the same to the bit
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

# Versions that were tried together.
zig_wanted='cargo-zigbuild==0.24.1 ziglang==0.17.1'
zig_folder=${XDG_CACHE_HOME:-$HOME/.cache}/tensorwire/zigbuild

has_zig() {
  [ "$(cat "$zig_folder/requirement" 2>/dev/null)" = "$zig_wanted" ] &&
    "$zig_folder/bin/cargo-zigbuild" --version >/dev/null 2>&1
}

install_zig() {
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    fail "python3 cannot make virtual environments; install its venv (Debian and Ubuntu: python3-venv)"
  say "cargo-zigbuild and zig link against older C libraries; they go to $zig_folder"
  rm -rf "$zig_folder"
  # what is there by half would look like the whole
  trap 'rm -rf "$zig_folder"' EXIT
  # shellcheck disable=SC2086  # two requirements
  python3 -m venv "$zig_folder" &&
    "$zig_folder/bin/python" -m pip install --quiet --disable-pip-version-check $zig_wanted ||
    broken "cargo-zigbuild could not be installed; the reason is above"
  printf '%s\n' "$zig_wanted" > "$zig_folder/requirement"
  trap - EXIT
}
has_zig || install_zig

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# a package says who may enter its folders
umask 022
chmod 755 "$folder"

say "building tensorwire $version for $target with glibc $glibc"
PATH=$zig_folder/bin:$PATH cargo zigbuild --release --locked --package tensorwire-cli --features "$features" \
  --target "$target.$glibc" || broken "the program could not be built; ./scripts/setup.sh says what building takes"
built=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
program=$built/$target/release/tensorwire

# That it runs where it is said to is seen in what it asks of the dynamic linker.
newest=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
[ "$(printf '%s\n' "GLIBC_$glibc" "$newest" | sort -V | tail -n 1)" = "GLIBC_$glibc" ] ||
  broken "the program asks for $newest, and is to run with glibc $glibc"
others=$(objdump -p "$program" | sed -n 's/^ *NEEDED *//p' |
  grep -vE '^(lib(c|m|dl|rt|pthread|util)\.so\.[0-9]+|ld-linux-.*)$' || true)
[ -z "$others" ] || broken "the program needs more than the C library: $others"
say "it asks for $newest at most, and for no library but the C library's"

# A folder of its own: other flags build everything anew.
say "building the same for $target, with its C library in it"
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" cargo build --release --locked --package tensorwire-cli \
  --features "$features" --target "$target" --target-dir "$built/static" ||
  broken "the static program could not be built; it takes the C library as an archive (libc6-dev, glibc-static)"
static=$built/static/$target/release/tensorwire
asks=$(objdump -p "$static" | grep -E '^ *(INTERP|NEEDED)' || true)
[ -z "$asks" ] || broken "the static program asks for: $asks"

# What goes with the program, once for all.
say "gathering licences, manual and completions"
share=$folder/share
mkdir -p "$share/doc" "$share/man1"
cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$share/doc"
cargo run --quiet --locked --package xtask -- licences --target "$target" --features "$features" \
  "$share/doc/THIRD-PARTY-LICENCES" || broken "the licences of other people's crates could not be gathered"
cp -r examples/clusters "$share/doc/clusters"

# True if the program has this subcommand.
has_command() { "$program" "$1" --help >/dev/null 2>&1; }
! has_command man || "$program" man --out "$share/man1" || broken "'tensorwire man' failed"
if has_command completions; then
  mkdir "$share/completions"
  "$program" completions bash > "$share/completions/tensorwire.bash" &&
    "$program" completions zsh > "$share/completions/_tensorwire" &&
    "$program" completions fish > "$share/completions/tensorwire.fish" || broken "'tensorwire completions' failed"
fi

# $1: a program, $2: where it comes from.
trains() {
  local says
  [ "$("$1" --version)" = "tensorwire $version" ] || broken "the program of $2 is not of version $version"
  says=$(cd "$folder" && "$1" train --steps 5 --json --no-detect 2>"$folder/log") ||
    broken "the program of $2 does not train: $(cat "$folder/log")"
  say "the program of $2 trains: $(printf '%s' "$says" | grep -o '"weights_sha256":"[0-9a-f]\{16\}')…"
}

# $1: a program, $2: the name of an archive of it and all that goes with it, and of the folder in that.
pack() {
  local whole=$folder/$2
  say "packing $2.tar.gz"
  mkdir "$whole"
  install -m 755 "$1" "$whole/tensorwire"
  cp -r "$share"/doc/. "$whole"
  ! [ -e "$share/completions" ] || cp -r "$share/completions" "$whole"
  [ -z "$(ls "$share/man1")" ] || cp -r "$share/man1" "$whole"
  tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --directory "$folder" "$2" | gzip -9 -n > "$out/$2.tar.gz"
  mkdir -p "$folder/unpacked"
  tar --extract --gzip --file "$out/$2.tar.gz" --directory "$folder/unpacked"
  trains "$folder/unpacked/$2/tensorwire" "$2.tar.gz"
}

mkdir -p "$out"
archive=tensorwire-$version-$machine-linux
pack "$program" "$archive"
pack "$static" "$archive-static"

architecture=$(dpkg --print-architecture)
package=$out/tensorwire_${version}_$architecture.deb
say "packing $(basename "$package")"
root=$folder/root
mkdir -p "$root/DEBIAN" "$root/usr/bin" "$root/usr/share/doc/tensorwire/examples"
install -m 755 "$program" "$root/usr/bin/tensorwire"
documents=$root/usr/share/doc/tensorwire
cp "$share/doc/README.md" "$documents"
cp -r "$share/doc/clusters" "$documents/examples/clusters"
gzip -9 -n < CHANGELOG.md > "$documents/CHANGELOG.md.gz"
# in the form that Debian's tools read
printf 'tensorwire (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s <%s>  %s\n' "$version" \
  "$maintainer_name" "$maintainer_address" "$(LC_ALL=C date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")" |
  gzip -9 -n > "$documents/changelog.gz"
gzip -9 -n < "$share/doc/THIRD-PARTY-LICENCES" > "$documents/THIRD-PARTY-LICENCES.gz"
{
  printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
  printf 'Upstream-Name: tensorwire\nComment: The program is linked from crates of others, whose licences are in\n'
  printf ' THIRD-PARTY-LICENCES.gz beside this file. It holds the digits of E. Alpaydin\n'
  printf ' and C. Kaynak (UCI Machine Learning Repository, CC BY 4.0), and the first\n'
  printf ' books of the King James Version, which is in the public domain but in the\n United Kingdom.\n'
  printf '\nFiles: *\nCopyright: %s\nLicense: MIT or Apache-2.0\n' "$(sed -n 's/^Copyright (c) //p' LICENSE-MIT)"
  printf '\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n'
  printf '\nLicense: MIT\n'
  sed '1,4d; s/^$/./; s/^/ /' LICENSE-MIT
} > "$documents/copyright"
for page in "$share"/man1/*; do
  [ -e "$page" ] || break
  mkdir -p "$root/usr/share/man/man1"
  gzip -9 -n < "$page" > "$root/usr/share/man/man1/$(basename "$page").gz"
done
if [ -e "$share/completions" ]; then
  install -D -m 644 "$share/completions/tensorwire.bash" "$root/usr/share/bash-completion/completions/tensorwire"
  install -D -m 644 "$share/completions/_tensorwire" "$root/usr/share/zsh/vendor-completions/_tensorwire"
  install -D -m 644 "$share/completions/tensorwire.fish" "$root/usr/share/fish/vendor_completions.d/tensorwire.fish"
fi
# Depends is what was seen above. dpkg-shlibdeps would ask for the C library of this machine, into which that of the threads
# has moved meanwhile.
cat > "$root/DEBIAN/control" <<CONTROL
Package: tensorwire
Version: $version
Architecture: $architecture
Maintainer: $maintainer_name <$maintainer_address>
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f 1)
Depends: libc6 (>= $glibc)
Recommends: ibverbs-providers, openssh-client
Suggests: libdnnl3
Section: science
Priority: optional
Description: distributed deep learning in which a remote machine is just a device
 A deep-learning runtime for more than one process. A tensor that crosses from
 one process to another is written by one one-sided write, over RDMA, TCP or
 shared memory, from where the sender's operator put it to where the receiver's
 next operator reads it.
 .
 It trains, shows what crosses and how, says what a machine can do, and measures
 itself against others.
CONTROL
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null || broken "the package could not be made"
dpkg-deb --extract "$package" "$folder/installed"
trains "$folder/installed/usr/bin/tensorwire" "the package"

made=("$archive.tar.gz" "$archive-static.tar.gz" "$(basename "$package")")
(cd "$out" && sha256sum "${made[@]}") > "$out/SHA256SUMS"
say "done:"
(cd "$out" && du -h --apparent-size "${made[@]}" && cat SHA256SUMS)
