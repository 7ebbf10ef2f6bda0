#!/usr/bin/env bash
# Fetches the data that the papers learned from and that may be fetched, into a folder of your choice:
#
#   scripts/data.sh DIR [mnist|cifar10|wmt]...    # all three where none is named: 11, 163 and 77 MiB
#
# Files that are there are not fetched again, and one that was cut off goes on where it ended. Each is held against the
# checksum that is published for it; a wrong one is removed, and so nothing is unpacked that is not what it is to be.
# What to give to `tensorwire train` and `tensorwire bench evaluation` is said at the end. ImageNet may not be fetched by
# a script: unpack it to DIR/imagenet/train and DIR/imagenet/val, a folder a class.
#
# TENSORWIRE_DATA_URL names another place with the same files, such as a mirror in your own network.
#
# Exit status: 0 all is there, 1 something could not be fetched, verified or unpacked, 2 something given cannot be right.
set -euo pipefail

say() { printf 'data: %s\n' "$*"; }
fail() { printf 'data: %s\n' "$*" >&2; exit "${status:-1}"; }

# set | file | SHA-256 | where it is fetched from. The checksums are those of tensorflow_datasets (url_checksums/mnist.txt,
# cifar10.txt and wmt14_translate.txt); torchvision's and the CIFAR-10 page's MD5s are of the same files.
files='
mnist|train-images-idx3-ubyte.gz|440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609|https://storage.googleapis.com/cvdf-datasets/mnist
mnist|train-labels-idx1-ubyte.gz|3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c|https://storage.googleapis.com/cvdf-datasets/mnist
mnist|t10k-images-idx3-ubyte.gz|8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6|https://storage.googleapis.com/cvdf-datasets/mnist
mnist|t10k-labels-idx1-ubyte.gz|f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6|https://storage.googleapis.com/cvdf-datasets/mnist
cifar10|cifar-10-binary.tar.gz|c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd|https://www.cs.toronto.edu/~kriz
wmt|training-parallel-nc-v9.tgz|cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485|https://www.statmt.org/wmt14
'

usage="usage: scripts/data.sh DIR [mnist|cifar10|wmt]..."
[ $# -ge 1 ] || status=2 fail "$usage"
case "$1" in
  -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) status=2 fail "'$1' is no folder; $usage" ;;
esac
folder=$1
shift
[ $# -gt 0 ] || set -- mnist cifar10 wmt
for wanted in "$@"; do
  case "$wanted" in
    mnist | cifar10 | wmt) ;;
    *) status=2 fail "no data '$wanted'; there are mnist, cifar10 and wmt" ;;
  esac
done
for tool in curl sha256sum gunzip tar; do
  command -v "$tool" >/dev/null 2>&1 || status=2 fail "no $tool on the PATH; install it, and run this again"
done

is_new=$([ -d "$folder" ] || echo true)
mkdir -p "$folder" || fail "cannot make the folder '$folder'"
folder=$(cd "$folder" && pwd)
# folders that nothing came into are not left
tidy() {
  rmdir "$folder/mnist" "$folder/cifar10" "$folder/wmt" || true
  [ -z "$is_new" ] || rmdir "$folder" || true
}
trap 'tidy 2>/dev/null' EXIT

# What shows that a set is unpacked: the last of its files to come.
unpacked() {
  case "$1" in
    mnist) printf '%s' t10k-labels-idx1-ubyte ;;
    cifar10) printf '%s' test_batch.bin ;;
    wmt) printf '%s' news-commentary-v9.fr-en.en ;;
  esac
}

# A file under its own name has been verified; before that it is called .part.
fetch() { # set, file, sha256, url
  local file="$folder/$1/$2" found ended=0
  [ ! -e "$file" ] || return 0
  say "fetching $4/$2"
  local get=(curl --fail --location --retry 3 --silent --show-error --output "$file.part" "$4/$2")
  # from where an earlier one ended; 22, 33 and 36: nothing is behind that, or the server cannot do so
  "${get[@]}" --continue-at - || ended=$?
  if [ "$ended" = 22 ] || [ "$ended" = 33 ] || [ "$ended" = 36 ]; then
    rm -f "$file.part"
    ended=0
    "${get[@]}" || ended=$?
  fi
  [ "$ended" = 0 ] ||
    fail "$2 could not be fetched from $4; run this again to go on, or name a mirror in TENSORWIRE_DATA_URL"
  found=$(sha256sum "$file.part" | cut -d ' ' -f 1)
  if [ "$found" != "$3" ]; then
    rm -f "$file.part"
    fail "$2 from $4 is not what it is to be (SHA-256 $found, not $3), and was removed; run this again, or name a mirror in TENSORWIRE_DATA_URL"
  fi
  mv "$file.part" "$file"
}

# Unpacks into a folder of its own, whose files are moved when all are there, the last that shows it last.
unpack() { # set
  local at="$folder/$1" new="$folder/$1/.unpacking" last
  last=$(unpacked "$1")
  rm -rf "$new"
  mkdir "$new"
  case "$1" in
    mnist)
      for file in "$at"/*.gz; do
        gunzip --stdout "$file" > "$new/$(basename "$file" .gz)" || fail "cannot unpack $file"
      done
      ;;
    cifar10)
      tar -xzf "$at/cifar-10-binary.tar.gz" -C "$new" --strip-components 1 || fail "cannot unpack cifar-10-binary.tar.gz"
      ;;
    wmt)
      tar -xzf "$at/training-parallel-nc-v9.tgz" -C "$new" --strip-components 1 \
        training/news-commentary-v9.fr-en.fr training/news-commentary-v9.fr-en.en ||
        fail "cannot unpack training-parallel-nc-v9.tgz"
      ;;
  esac
  [ -e "$new/$last" ] || fail "$1 has no file $last"
  for file in "$new"/*; do
    [ "$(basename "$file")" = "$last" ] || mv "$file" "$at/"
  done
  mv "$new/$last" "$at/"
  rmdir "$new"
}

for wanted in "$@"; do
  mkdir -p "$folder/$wanted"
  if [ ! -e "$folder/$wanted/$(unpacked "$wanted")" ]; then
    # one row a file; a failure in it ends the script
    while IFS='|' read -r of file sum url; do
      [ "$of" = "$wanted" ] || continue
      fetch "$of" "$file" "$sum" "${TENSORWIRE_DATA_URL:-$url}" < /dev/null
    done <<< "$files"
    unpack "$wanted"
  fi
  case "$wanted" in
    mnist) say "train --data mnist:$folder/mnist" ;;
    cifar10) say "train --data cifar10:$folder/cifar10" ;;
    wmt) say "train --data text:$folder/wmt/news-commentary-v9.fr-en.fr,$folder/wmt/news-commentary-v9.fr-en.en" ;;
  esac
done
say "bench evaluation --data $folder"
