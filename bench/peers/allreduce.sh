#!/usr/bin/env bash
# tensorwire's `bench allreduce`, Open MPI's MPI_Allreduce and gloo's all_reduce on this machine, in turns,
# side by side; `--help` says more. Knows how to get the peers and how to take turns. openmpi_allreduce.c
# and gloo_allreduce.py say what is timed, compare_allreduce.py what is made of it.
#
# Exit status: 0 all was measured, whether or not it is fast; 2 something that you gave cannot be
# right; 1 anything else.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

rounds=3
ranks=2,4,8
sizes=4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB
transports=shm,tcp
peers=openmpi,gloo
times=
json=
venv=$here/.venv-gloo

# Longest that a part may take, in seconds. gloo gives up by itself a little earlier, and says where.
INSTALL_S=1800
BUILD_S=1800
PEER_S=600
OURS_S=600
# Repetitions of a size, if they are not told: bytes that each process reduces, within bounds.
TIMES_BYTES=$((512 << 20))
TIMES_MIN=5
TIMES_MAX=500

usage() {
  cat <<TEXT
Usage: bench/peers/allreduce.sh [OPTIONS]

Measures an all-reduce of float32, in place, by Open MPI (over its shared memory, and over TCP), by gloo
(over TCP, which is all that it has) and by tensorwire's shm and tcp, one after the other, so that the
machine's noise meets all, and prints them side by side. All processes are on this machine. It compiles a
small program with Open MPI's mpicc, and the first time installs PyTorch, which brings gloo along, in a
virtual environment of its own.

Options:
      --rounds N         How often all is measured, each time in new processes [default: $rounds]
      --ranks LIST       Numbers of processes [default: $ranks]
      --sizes LIST       Bytes of the vector, or KiB, MiB or GiB
                         [default: $sizes]
      --transports LIST  tensorwire's, and Open MPI's beside each [default: $transports]
      --peers LIST       Whom to measure beside tensorwire [default: $peers]
      --times N          Repetitions of a size in a round [default: by size, $TIMES_MIN to $TIMES_MAX]
      --json F           Append JSON lines to this file
      --venv DIR         The virtual environment with PyTorch [default: bench/peers/.venv-gloo]
  -h, --help             Print help

Environment:
  TENSORWIRE             A tensorwire to measure [default: what cargo build --release makes here]
  PYTHON                 What makes the virtual environment, and compares [default: python3]
TEXT
}

# shellcheck source=common.sh
. "$here/common.sh"

# $1: a list with commas; $2: one word.
lists() { [[ ",$1," == *",$2,"* ]]; }

find_openmpi() {
  local hint="on Debian and Ubuntu: apt-get install openmpi-bin libopenmpi-dev; or --peers gloo"
  command -v mpicc >/dev/null && command -v mpirun >/dev/null || mistake "no Open MPI: $hint"
  bounded "$BUILD_S" mpicc -O2 -o "$scratch/openmpi_allreduce" "$here/openmpi_allreduce.c" ||
    fail "mpicc could not compile openmpi_allreduce.c; its messages are above"
}

has_gloo() {
  [ -x "$venv/bin/python" ] && "$venv/bin/python" - >/dev/null 2>&1 <<'PYTHON'
import torch.distributed
raise SystemExit(not torch.distributed.is_gloo_available())
PYTHON
}

install_gloo() {
  command -v "$python" >/dev/null ||
    mistake "no '$python'; install Python 3.10 or newer, or name one: PYTHON=python3.11"
  say "installing $(grep -v '^#' "$here/requirements-gloo.txt" | xargs) into $venv, once"
  bounded "$INSTALL_S" "$python" -m venv "$venv" ||
    fail "no virtual environment; on Debian and Ubuntu, python3-venv is what makes one"
  bounded "$INSTALL_S" "$venv/bin/python" -m pip install --quiet \
    --disable-pip-version-check --requirement "$here/requirements-gloo.txt" ||
    fail "pip could not install PyTorch; its messages are above"
}

# $1: transport; $2: a round's folder; $3: ranks; $4: bytes; $5: repetitions.
measure_openmpi() {
  local of=(--oversubscribe --np "$3")
  [ "$(id -u)" -ne 0 ] || of+=(--allow-run-as-root)
  [ "$1" != tcp ] || of+=(--mca pml ob1 --mca btl "tcp,self" --mca btl_tcp_if_include lo)
  quietly_bounded "$PEER_S" mpirun "${of[@]}" "$scratch/openmpi_allreduce" "$4" "$5" \
    >>"$2/openmpi-$1.jsonl" || fail "Open MPI could not be measured; its messages are above"
}

# The same without a transport.
measure_gloo() {
  quietly_bounded "$PEER_S" "$venv/bin/python" "$here/gloo_allreduce.py" --ranks "$2" --times "$4" \
    --deadline $((PEER_S - 20)) "$3" >>"$1/gloo.jsonl" ||
    fail "gloo could not be measured; its messages are above"
}

# As measure_openmpi.
measure_ours() {
  local status=0
  quietly_bounded "$OURS_S" "$tensorwire" bench allreduce --transport "$1" --ranks "$3" --sizes "$4" \
    --iterations "$5" --json "$2/tensorwire.jsonl" >/dev/null || status=$?
  [ "$status" -ne 2 ] || { say "its messages are above"; exit 2; }
  [ "$status" -eq 0 ] || fail "tensorwire could not be measured; its messages are above"
}

# $1: a round's folder; $2: ranks; $3: bytes.
measure() {
  local transport turns=${times:-$((TIMES_BYTES / $3))}
  if [ -z "$times" ]; then
    [ "$turns" -ge "$TIMES_MIN" ] || turns=$TIMES_MIN
    [ "$turns" -le "$TIMES_MAX" ] || turns=$TIMES_MAX
  fi
  for transport in ${transports//,/ }; do
    ! lists "$peers" openmpi || measure_openmpi "$transport" "$@" "$turns"
    measure_ours "$transport" "$@" "$turns"
  done
  ! lists "$peers" gloo || measure_gloo "$@" "$turns"
}

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --rounds | --ranks | --sizes | --transports | --peers | --times | --json | --venv)
      [ $# -ge 2 ] && [ -n "$2" ] || mistake "$1 wants a value; see --help"
      declare "${1#--}=$2"
      shift 2 ;;
    *) mistake "there is no option '$1'; see --help" ;;
  esac
done
for option in rounds times; do
  [[ ${!option:-1} =~ ^[1-9][0-9]{0,5}$ ]] ||
    mistake "--$option wants a number from 1 on, not '${!option}'"
done
for number in ${ranks//,/ }; do
  [[ $number =~ ^[1-9][0-9]?$ && $number -ge 2 && $number -le 64 ]] ||
    mistake "--ranks wants numbers from 2 to 64, not '$number'"
done
for name in ${transports//,/ }; do
  lists shm,tcp "$name" || mistake "--transports wants shm or tcp, not '$name'"
done
for name in ${peers//,/ }; do
  lists openmpi,gloo "$name" || mistake "--peers wants openmpi or gloo, not '$name'"
done
bytes=()
for size in ${sizes//,/ }; do
  number=$(in_bytes "$size")
  bytes+=("$number")
done
[ "${#bytes[@]}" -gt 0 ] || mistake "--sizes wants at least one size"
[ -z "$json" ] || : >>"$json" || mistake "cannot write '$json'"

scratch=$(mktemp -d)
python=${PYTHON:-python3}
! lists "$peers" openmpi || find_openmpi
! lists "$peers" gloo || has_gloo || install_gloo
find_tensorwire
load=$(cut -d ' ' -f 1 /proc/loadavg)
folders=()
for round in $(seq "$rounds"); do
  folders+=("$scratch/$round")
  mkdir "$scratch/$round"
  for number in ${ranks//,/ }; do
    for size in "${bytes[@]}"; do
      say "round $round of $rounds: $number processes, $size bytes"
      measure "$scratch/$round" "$number" "$size"
    done
  done
done
"$python" "$here/compare_allreduce.py" "${folders[@]}" ${json:+--json "$json"} \
  --load "$load" --tensorwire-version "$("$tensorwire" --version)"
