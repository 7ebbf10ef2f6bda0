# Tensors in a device's memory go by RDMA from one device to the other: the weights are those of the same job over
# shared memory, and no more goes by the host. The driver stands in a GPU's place, and registers its memory by address.
export FAKE_CUDA_KERNELS=$(readlink -f "$(command -v made-by-portable_cuda_shim)")
driver=$(readlink -f "$(command -v libtensorwire_fakecuda.so)")
job="--strategy ps --steps 2 --batch 2 --data synthetic:8 --seed 3 --deadline 120"
device="--device cuda --cuda-driver $driver"
of() { grep -o "\"$2\":[^,}]*" "$1" | cut -d: -f2-; }
tensorwire train --transport shm $job $device --json >/tmp/shm
tensorwire train --transport verbs $job $device --json >/tmp/verbs
tail -n 1 /tmp/shm; tail -n 1 /tmp/verbs
[[ -n $(of /tmp/shm weights_sha256) ]]
expect "$(of /tmp/verbs transport)" '"verbs"'
expect "$(of /tmp/verbs weights_sha256)" "$(of /tmp/shm weights_sha256)"
expect "$(of /tmp/verbs bytes_copied)" 0
(( $(of /tmp/verbs bytes_copied_to_host) <= $(of /tmp/shm bytes_copied_to_host) ))
# Writes of a NIC to a GPU come in no order among themselves: flags that lie behind the payload prove nothing there.
for arrival in flag-separate flag-tail; do
  status=0
  tensorwire train --transport verbs --arrival $arrival $job $device >/tmp/refused 2>&1 || status=$?
  cat /tmp/refused
  [[ $status != 0 && $status != 124 ]] || { echo "$arrival: status $status"; exit 1; }
  grep -q "arrival" /tmp/refused
done
