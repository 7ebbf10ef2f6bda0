# Training over a key-value store across both machines: rings and direct writes go over RDMA, and the weights are
# those of training with shared memory on one of them.
job="--steps 2 --batch 2 --data synthetic:16 --seed 3 --deadline 60 --json"
across="--hosts $own,$peer --rsh rsh --transport verbs"
weights() { sed -n 's/.*"weights_sha256":"\([0-9a-f]*\)".*/\1/p' "$1"; }
tensorwire train --transport shm $job | tee /tmp/ps
tensorwire train --strategy dist-sgd $across $job | tee /tmp/store
expect "$(weights /tmp/store)" "$(weights /tmp/ps)"
