#!/bin/bash
# Trains in processes that torchrun starts. What follows the script's name are options of `tensorwire train`:
#
#   examples/clusters/torchrun.sh --epochs 20                                                     # on one host
#   NODES=2 NODE_RANK=0 MASTER_ADDR=node0 TENSORWIRE_SECRET=$KEY examples/clusters/torchrun.sh    # on node0
#   NODES=2 NODE_RANK=1 MASTER_ADDR=node0 TENSORWIRE_SECRET=$KEY examples/clusters/torchrun.sh    # on node1
#
#   PROCESSES     how many each node starts, 4 if it is not set: half are workers and half are servers
#   RESTARTS      how often torchrun starts all again when one dies, 3; with --checkpoint DIR --resume auto they go on
#   MASTER_PORT   of torchrun's own store on the first node, 29500; the processes meet at the next port
#
# Every node needs PyTorch's `torchrun` on its PATH, and the program `tensorwire` (else TENSORWIRE is set to where it lies).
set -eu

# On one host the processes find a key that the first of them leaves for this user. Several hosts need one that you give.
if [ "${NODES:-1}" -gt 1 ]; then
  : "${TENSORWIRE_SECRET:?give all nodes the same random text, as of: openssl rand -hex 32}"
  : "${MASTER_ADDR:?give all nodes the name of the first one}"
  : "${NODE_RANK:?give the first node 0, the next one 1, and so on}"
fi

# --no-python: tensorwire is a program by itself.
exec torchrun --no-python \
  --nnodes "${NODES:-1}" --node-rank "${NODE_RANK:-0}" --nproc-per-node "${PROCESSES:-4}" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" \
  --max-restarts "${RESTARTS:-3}" \
  "${TENSORWIRE:-tensorwire}" train "$@"
