# Training across both machines gives the bits of training on one of them: over RDMA here, through
# shared memory there. Then once more with the link down for a second: whatever failed meanwhile was
# built anew, and nothing is lost. (That queue pairs that die are built anew is tested from inside.)
job="--steps 2 --batch 2 --data synthetic:16 --seed 3 --deadline 60 --json"
across="--hosts $own,$peer --rsh rsh --transport verbs --servers 2"
weights() { sed -n 's/.*"weights_sha256":"\([0-9a-f]*\)".*/\1/p' "$1"; }
tensorwire train --transport shm $job | tee /tmp/one
tensorwire train $across $job | tee /tmp/two
expect "$(weights /tmp/two)" "$(weights /tmp/one)"
grep -q '"bytes_copied":0,' /tmp/two
TENSORWIRE_LOG=info fault link-down 1 --when 'rank 3: 4 queue pairs' -- \
  tensorwire train $across $job | tee /tmp/outage
expect "$(weights /tmp/outage)" "$(weights /tmp/one)"
echo "failures of queue pairs: $(grep -c 'building it anew' /tmp/outage || true)"
