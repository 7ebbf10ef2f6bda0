#!/usr/bin/env bash
# tensorwire's `bench kvstore` and MXNet's `dist_sync` on this machine, in turns, side by side;
# `--help` says more. Knows how to get the peer and how to take turns. mxnet_kvstore.py says what is
# timed, compare_kvstore.py what is made of it.
#
# Exit status: 0 all was measured, whether or not it is fast; 2 something that you gave cannot be
# right; 1 anything else.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

rounds=3
workers=2
servers=1
sizes=4KiB,64KiB,256KiB,400000,1MiB,4MiB,16MiB,64MiB
times=
json=
venv=$here/.venv-mxnet
peer_only=false

# Longest that a part may take, in seconds. The peer gives up by itself a little earlier, and says where.
INSTALL_S=1800
BUILD_S=1800
PEER_S=600
OURS_S=600

usage() {
  cat <<TEXT
Usage: bench/peers/kvstore.sh [OPTIONS]

Measures push and pull of one key by several workers (Li et al., figure 7), by MXNet's dist_sync
over loopback and by tensorwire's store over shm and tcp, one after the other, so that the machine's
noise meets all, and prints them side by side. The first time, it installs MXNet in a virtual
environment of its own.

Options:
      --rounds N         How often all is measured, each time in new processes [default: $rounds]
      --workers N        [default: $workers]
      --servers N        [default: $servers]
      --sizes LIST       Bytes of the value, or KiB, MiB or GiB; 400000 is the paper's case
                         [default: $sizes]
      --times N          Repetitions of a size in a round [default: by size; the paper's is 10000]
      --peer-only        Measure MXNet alone, and print its JSON lines
      --json F           Append JSON lines to this file
      --venv DIR         The virtual environment [default: bench/peers/.venv-mxnet]
  -h, --help             Print help

Environment:
  TENSORWIRE             A tensorwire to measure [default: what cargo build --release makes here]
  PYTHON                 What makes the virtual environment [default: python3]

While MXNet measures, its processes listen on all network interfaces, and trust whoever connects.
TEXT
}

# shellcheck source=common.sh
. "$here/common.sh"

has_peer() {
  local wanted
  wanted=$(sed -n 's/^mxnet==//p' "$here/requirements-mxnet.txt")
  [ -x "$venv/bin/python" ] && "$venv/bin/python" - "$wanted" >/dev/null 2>&1 <<'PYTHON'
import sys
from importlib.metadata import version
sys.exit(version("mxnet") != sys.argv[1])
PYTHON
}

install_peer() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null ||
    mistake "no '$python'; install Python 3.9 to 3.11, or name one: PYTHON=python3.11"
  "$python" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info < (3, 12))' ||
    mistake "MXNet has no packages for $("$python" --version); name another: PYTHON=python3.11"
  say "installing $(grep -v '^#' "$here/requirements-mxnet.txt" | xargs) into $venv, once"
  bounded "$INSTALL_S" "$python" -m venv "$venv" ||
    fail "no virtual environment; on Debian and Ubuntu, python3-venv is what makes one"
  bounded "$INSTALL_S" "$venv/bin/python" -m pip install --quiet \
    --disable-pip-version-check --requirement "$here/requirements-mxnet.txt" ||
    fail "pip could not install MXNet; its messages are above"
}

# $1: a round's folder; $2: bytes.
measure() {
  local transport status=0 of=(--workers "$workers" --servers "$servers" ${times:+--times "$times"})
  quietly_bounded "$PEER_S" "$venv/bin/python" "$here/mxnet_kvstore.py" "${of[@]}" \
    --deadline $((PEER_S - 20)) "$2" >>"$1/mxnet.jsonl" ||
    fail "MXNet could not be measured; its messages are above"
  ! $peer_only || return 0
  for transport in shm tcp; do
    quietly_bounded "$OURS_S" "$tensorwire" bench kvstore --transport "$transport" "${of[@]}" \
      --sizes "$2" --exchange zero-copy --json "$1/tensorwire.jsonl" >/dev/null || status=$?
    [ "$status" -ne 2 ] || { say "its messages are above"; exit 2; }
    [ "$status" -eq 0 ] || fail "tensorwire could not be measured; its messages are above"
  done
}

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --peer-only) peer_only=true; shift ;;
    --rounds | --workers | --servers | --sizes | --times | --json | --venv)
      [ $# -ge 2 ] && [ -n "$2" ] || mistake "$1 wants a value; see --help"
      declare "${1#--}=$2"
      shift 2 ;;
    *) mistake "there is no option '$1'; see --help" ;;
  esac
done
for option in rounds workers servers times; do
  [[ ${!option:-1} =~ ^[1-9][0-9]{0,5}$ ]] ||
    mistake "--$option wants a number from 1 on, not '${!option}'"
done
bytes=()
for size in ${sizes//,/ }; do
  number=$(in_bytes "$size")
  bytes+=("$number")
done
[ "${#bytes[@]}" -gt 0 ] || mistake "--sizes wants at least one size"
[ -z "$json" ] || : >>"$json" || mistake "cannot write '$json'"

scratch=$(mktemp -d)
has_peer || install_peer
$peer_only || find_tensorwire
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
if $peer_only; then
  cat "${folders[@]/%//mxnet.jsonl}" | tee -a "${json:-/dev/null}"
else
  "$venv/bin/python" "$here/compare_kvstore.py" "${folders[@]}" ${json:+--json "$json"} \
    --load "$load" --tensorwire-version "$("$tensorwire" --version)"
fi
