#!/usr/bin/env bash
# What distribution costs a training step: tensorwire's `bench step` and three frameworks on this machine, in
# turns, side by side; `--help` says more. Knows how to take turns. peer_step.py says what is timed,
# compare_step.py what is made of it.
#
# Exit status: 0 all that could be was measured, whether or not it is fast; 2 something that you gave cannot be
# right; 1 anything else, such as a peer that failed with a model: the others are measured all the same.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

rounds=1
models=mlp,fcn5,lstm,gru,alexnet,inception-v3,vgg16
quick=mlp,fcn5,lstm
peers=tensorflow,mxnet,pytorch
strategies=ps,allreduce,dist-sgd
transports=tcp,shm
messages=
batch=8
steps=
sequence=
link=
workers=2
json=
tensorflow_venv=$here/.venv
mxnet_venv=$here/.venv-mxnet
pytorch_venv=$here/.venv-gloo
servers=2

# Longest that a part may take, in seconds. A peer gives up by itself a little earlier.
BUILD_S=1800
PEER_S=400
OURS_S=400

STEPS=3
STEPS_INCEPTION=2
STEPS_VGG=1

# of messages, who sends them
declare -A SENDERS=([grpc-tcp]=ps [zmq]=dist-sgd)
# who alone has a model
declare -A ONLY=([gpt2-small]=pytorch)
declare -A SCRIPTS=([tensorflow]=tensorflow_step.py [mxnet]=mxnet_step.py [pytorch]=pytorch_ddp.py)
declare -A MODULES=([tensorflow]=tensorflow [mxnet]=mxnet [pytorch]=torch)
declare -A REQUIREMENTS=([tensorflow]=requirements.txt [mxnet]=requirements-mxnet.txt [pytorch]=requirements-gloo.txt)

usage() {
  cat <<TEXT
Usage: bench/peers/step.sh [OPTIONS]

Measures a training step of a job of two workers (and $servers servers, where a system has servers), and of one
process that does a worker's work alone: by TensorFlow's parameter servers over gRPC, MXNet's dist_sync,
PyTorch's DistributedDataParallel over gloo, and tensorwire's \`ps\`, \`allreduce\` and \`dist-sgd\` over tcp and
shm, one after the other. Every process has one thread. Prints what the job's step takes over the lone one's. What a peer
needs is not installed here: one whose virtual environment is not there is left out, with a line that says
what makes it.

Options:
      --rounds N             How often all is measured, each time in new processes [default: $rounds]
      --models LIST          [default: $models;
                             also resnet50, and gpt2-small, which of the peers only PyTorch has here]
      --quick                The same as --models $quick
      --peers LIST           Whom to measure beside tensorwire [default: $peers]
      --strategies LIST      tensorwire's [default: $strategies]
      --transports LIST      tensorwire's [default: $transports; over links tcp]
      --messages LIST        Tensorwire's jobs whose tensors go as messages, to compare with: grpc-tcp (\`ps\`) and zmq
                             (\`dist-sgd\`, as ps-lite sends them); wants a tensorwire with --features baselines [default: none]
      --workers N            [default: $workers]
      --link RATE            Between two hosts with links of this rate, such as 1gbit, with half of the workers each
                             and a server each, as bench/link.sh makes them [default: one host, by loopback]
      --batch N              Samples of a worker in a step [default: $batch]
      --steps N              That count, after one that warms up
                             [default: $STEPS; inception-v3 $STEPS_INCEPTION, vgg16 and gpt2-small $STEPS_VGG, whose steps take seconds]
      --sequence N           Tokens of a window of text, of gpt2-small [default: 1024]
      --json F               Append JSON lines to this file
      --tensorflow-venv DIR  TensorFlow's virtual environment [default: bench/peers/.venv]
      --mxnet-venv DIR       MXNet's [default: bench/peers/.venv-mxnet]
      --pytorch-venv DIR     PyTorch's [default: bench/peers/.venv-gloo]
  -h, --help                 Print help

Environment:
  TENSORWIRE                 A tensorwire to measure [default: what cargo build --release makes here]
  PYTHON                     What compares [default: python3]

While TensorFlow and MXNet measure, their processes listen on all network interfaces, and trust whoever connects.
TEXT
}

# shellcheck source=common.sh
. "$here/common.sh"

# $1: a peer; prints its virtual environment.
venv_of() { local name=$1_venv; echo "${!name}"; }

has_peer() {
  local python
  python=$(venv_of "$1")/bin/python
  [ -x "$python" ] && "$python" - "${MODULES[$1]}" >/dev/null 2>&1 <<'PYTHON'
import sys
from importlib.util import find_spec
sys.exit(find_spec(sys.argv[1]) is None)
PYTHON
}

# Sets `peers` to those that are there.
find_peers() {
  local peer venv found=
  for peer in ${peers//,/ }; do
    venv=$(venv_of "$peer")
    if has_peer "$peer"; then
      found+=${found:+,}$peer
    else
      say "no $peer in $venv, which is left out; to have it:" \
        "python3.11 -m venv $venv && $venv/bin/pip install -r bench/peers/${REQUIREMENTS[$peer]}"
    fi
  done
  peers=$found
}

# $1: a model; prints how many of its steps count.
steps_of() {
  case $1 in
    inception-v3) echo "${steps:-$STEPS_INCEPTION}" ;;
    vgg16 | gpt2-small) echo "${steps:-$STEPS_VGG}" ;;
    *) echo "${steps:-$STEPS}" ;;
  esac
}

# $1: a model; prints the options that say how long its windows of text are, if it takes such.
sequence_of() { [ "$1" != gpt2-small ] || [ -z "$sequence" ] || echo "--sequence $sequence"; }

failed=false
# $1: what could not be measured.
left_out() { say "$1 could not be measured, and is left out; its messages are above"; failed=true; }

# $1: a round's folder; $2: model; $3: peer.
measure_peer() {
  local number hosts of=("$2" --batch "$batch" --steps "$(steps_of "$2")" --deadline $((PEER_S - 20)))
  local windows
  read -ra windows <<<"$(sequence_of "$2")"
  of+=("${windows[@]}")
  for number in 1 "$workers"; do
    hosts=()
    [ -z "$link" ] || [ "$number" -eq 1 ] || hosts=("$root/bench/link.sh" --rate "$link" --plain --)
    quietly_bounded "$PEER_S" "${hosts[@]}" "$(venv_of "$3")/bin/python" "$here/${SCRIPTS[$3]}" "${of[@]}" \
      --workers "$number" >>"$1/$3.jsonl" || { left_out "$3's $2"; return; }
  done
}

# $1: a round's folder; $2: model; $3: of how many workers; the rest: options.
measure_ours() {
  local status=0 hosts=() windows
  read -ra windows <<<"$(sequence_of "$2")"
  [ -z "$link" ] || [ "$3" -eq 1 ] || hosts=("$root/bench/link.sh" --rate "$link" --slots $((workers / 2)) --)
  # as few samples as a step takes: what they are does not matter
  quietly_bounded "$OURS_S" "${hosts[@]}" "$tensorwire" bench step --model "$2" --batch "$batch" --threads 1 --lr 1e-4 \
    --data "synthetic:$((workers * batch))" --steps $(($(steps_of "$2") + 1)) --iterations 1 \
    "${windows[@]}" --json "$1/tensorwire.jsonl" --workers "$3" "${@:4}" >/dev/null || status=$?
  [ "$status" -ne 2 ] || { say "its messages are above"; exit 2; }
  [ "$status" -eq 0 ] || left_out "tensorwire's $2 (${*:4})"
}

# $1: a round's folder; $2: model.
measure() {
  local transport strategy message peer
  measure_ours "$1" "$2" 1 --strategy local
  for transport in ${transports//,/ }; do
    for strategy in ${strategies//,/ }; do
      local of=(--strategy "$strategy")
      # over links what a user has: shared memory for peers of one host
      [ -n "$link" ] || of+=(--transport "$transport")
      # over hosts as it is by default: servers where the workers are
      [ "$strategy" = allreduce ] || [ -n "$link" ] || of+=(--servers "$servers")
      measure_ours "$1" "$2" "$workers" "${of[@]}"
    done
  done
  for message in ${messages//,/ }; do
    local of=(--strategy "${SENDERS[$message]}" --exchange "$message")
    [ -n "$link" ] || of+=(--servers "$servers")
    measure_ours "$1" "$2" "$workers" "${of[@]}"
  done
  for peer in ${peers//,/ }; do
    [[ ,${ONLY[$2]:-$peer}, == *",$peer,"* ]] || { say "$2 in $peer is not measured: its scripts do not have the model"; continue; }
    measure_peer "$1" "$2" "$peer"
  done
}

# $1: an option; $2: the words that it may have; $3: what it has.
all_known() {
  local word
  [ -n "$3" ] || mistake "--$1 wants at least one of $2"
  for word in ${3//,/ }; do
    [[ ",$2," == *",$word,"* ]] || mistake "--$1 wants some of $2, not '$word'"
  done
}

known=$models
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --quick) models=$quick; shift ;;
    --rounds | --models | --peers | --strategies | --transports | --messages | --batch | --steps | --sequence | --workers | --link | --json | \
      --tensorflow-venv | --mxnet-venv | --pytorch-venv)
      [ $# -ge 2 ] && [ -n "$2" ] || mistake "$1 wants a value; see --help"
      name=${1#--}
      declare "${name//-/_}=$2"
      shift 2 ;;
    *) mistake "there is no option '$1'; see --help" ;;
  esac
done
for option in rounds batch steps sequence workers; do
  [[ ${!option:-1} =~ ^[1-9][0-9]{0,3}$ ]] || mistake "--$option wants a number from 1 on, not '${!option}'"
done
all_known models "$known,resnet50,gpt2-small" "$models"
all_known peers tensorflow,mxnet,pytorch "$peers"
all_known strategies ps,allreduce,dist-sgd "$strategies"
all_known transports tcp,shm "$transports"
[ -z "$messages" ] || all_known messages grpc-tcp,zmq "$messages"
[ "$workers" -gt 1 ] || mistake "--workers wants two and more"
if [ -n "$link" ]; then
  [ $((workers % 2)) -eq 0 ] || mistake "--link has two hosts with as many workers each: --workers wants an even number"
  transports=tcp
fi
[ -z "$json" ] || : >>"$json" || mistake "cannot write '$json'"

scratch=$(mktemp -d)
python=${PYTHON:-python3}
command -v "$python" >/dev/null || mistake "no '$python'; install Python 3.10 or newer, or name one: PYTHON=python3.11"
find_peers
find_tensorwire
load=$(cut -d ' ' -f 1 /proc/loadavg)
folders=()
for round in $(seq "$rounds"); do
  folders+=("$scratch/$round")
  mkdir "$scratch/$round"
  for model in ${models//,/ }; do
    say "round $round of $rounds: $model"
    measure "$scratch/$round" "$model"
  done
done
"$python" "$here/compare_step.py" "${folders[@]}" ${json:+--json "$json"} --load "$load" ${link:+--link "$link"} \
  --tensorwire-version "$("$tensorwire" --version)" --models-table "$("$tensorwire" models)"
! $failed || exit 1
