#!/usr/bin/env bash
# tensorwire's `bench transfer` and TensorFlow's gRPC on this machine, in turns, side by side;
# `--help` says more. Knows how to get the peer and how to take turns. tensorflow_transfer.py says
# what is timed, compare.py what is made of it.
#
# Exit status: 0 all was measured, whether or not it is fast; 2 something that you gave cannot be
# right; 1 anything else.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

rounds=5
sizes=4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB
exchange=zero-copy
json=
venv=$here/.venv

# Longest that a part may take, in seconds. The peer gives up by itself a little earlier, and says where.
INSTALL_S=1800
BUILD_S=1800
PEER_S=300
OURS_S=300

usage() {
  cat <<TEXT
Usage: bench/peers/transfer.sh [OPTIONS]

Measures one tensor from a process to a reduce_max in another (Xue et al., section 5.1), by
TensorFlow's gRPC and by tensorwire's shm and tcp, one after the other, so that the machine's noise
meets all, and prints them side by side: with the defaults, in about a quarter of an hour. The first
time, it installs TensorFlow in a virtual environment of its own.

Options:
      --rounds N         How often all is measured, each time in new processes [default: $rounds]
      --sizes LIST       Tensor sizes in KiB, MiB or GiB [default: $sizes]
      --exchange MODE    tensorwire's exchange [default: zero-copy]
      --json F           Append JSON lines to this file
      --venv DIR         The virtual environment [default: bench/peers/.venv]
  -h, --help             Print help

Environment:
  TENSORWIRE             A tensorwire to measure [default: what cargo build --release makes here]
  PYTHON                 What makes the virtual environment [default: python3]

While TensorFlow measures, its servers listen on all network interfaces, and trust whoever connects.
TEXT
}

# shellcheck source=common.sh
. "$here/common.sh"

has_peer() {
  local wanted
  wanted=$(sed -n 's/^tensorflow-cpu==//p' "$here/requirements.txt")
  [ -x "$venv/bin/python" ] && "$venv/bin/python" - "$wanted" >/dev/null 2>&1 <<'PYTHON'
import sys
from importlib.metadata import version
sys.exit(version("tensorflow-cpu") != sys.argv[1])
PYTHON
}

install_peer() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null ||
    mistake "no '$python'; install Python 3.10 to 3.13, or name one: PYTHON=python3.11"
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' ||
    mistake "TensorFlow has no packages for $("$python" --version); name another: PYTHON=python3.11"
  say "installing $(grep -v '^#' "$here/requirements.txt") into $venv, once"
  bounded "$INSTALL_S" "$python" -m venv "$venv" ||
    fail "no virtual environment; on Debian and Ubuntu, python3-venv is what makes one"
  bounded "$INSTALL_S" "$venv/bin/python" -m pip install --quiet \
    --disable-pip-version-check --requirement "$here/requirements.txt" ||
    fail "pip could not install TensorFlow; its messages are above"
}

# $1: a round's folder; $2: bytes.
measure() {
  local transport status=0
  quietly_bounded "$PEER_S" "$venv/bin/python" "$here/tensorflow_transfer.py" "$2" \
    >>"$1/tensorflow.jsonl" || fail "TensorFlow could not be measured; its messages are above"
  for transport in shm tcp; do
    quietly_bounded "$OURS_S" "$tensorwire" bench transfer --transport "$transport" --sizes "$2" \
      --json "$1/tensorwire.jsonl" --exchange "$exchange" --kind static >/dev/null || status=$?
    [ "$status" -ne 2 ] || exit 2
    [ "$status" -eq 0 ] || fail "tensorwire could not be measured; its messages are above"
  done
}

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --rounds | --sizes | --exchange | --json | --venv)
      [ $# -ge 2 ] && [ -n "$2" ] || mistake "$1 wants a value; see --help"
      declare "${1#--}=$2"
      shift 2 ;;
    *) mistake "there is no option '$1'; see --help" ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || mistake "--rounds wants a number from 1 on, not '$rounds'"
bytes=()
for size in ${sizes//,/ }; do
  number=$(in_bytes "$size")
  bytes+=("$number")
done
[ "${#bytes[@]}" -gt 0 ] || mistake "--sizes wants at least one size"
[ -z "$json" ] || : >>"$json" || mistake "cannot write '$json'"

scratch=$(mktemp -d)
has_peer || install_peer
find_tensorwire
load=$(cut -d ' ' -f 1 /proc/loadavg)
folders=()
for round in $(seq "$rounds"); do
  folders+=("$scratch/$round")
  mkdir "$scratch/$round"
  for size in "${bytes[@]}"; do
    say "round $round of $rounds: $size bytes"
    measure "$scratch/$round" "$size"
  done
done
"$venv/bin/python" "$here/compare.py" "${folders[@]}" ${json:+--json "$json"} \
  --load "$load" --tensorwire-version "$("$tensorwire" --version)"
