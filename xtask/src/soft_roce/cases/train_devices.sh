# Training on GPUs that stand in for real ones: their memory is registered as it is mapped, as with nvidia-peermem, and tensors
# go from memory to memory by the NIC. The bits are those of devices that map each other's memory.
driver=$(readlink -f "$(command -v libtensorwire_fakecuda.so)")
FAKE_CUDA_KERNELS=$(readlink -f "$(command -v cuda_shim)")
export FAKE_CUDA_KERNELS
job="--device cuda --cuda-driver $driver --model sentence-embedding --data synthetic:128 --batch 2 --steps 2 --seed 3 --deadline 120 --json"
number() { sed -n "s/.*\"$1\":\"\?\([0-9a-f]*\).*/\1/p" "$2"; }
tensorwire train --transport shm $job | tee /tmp/shm
tensorwire train --transport verbs $job | tee /tmp/verbs
expect "$(number weights_sha256 /tmp/verbs)" "$(number weights_sha256 /tmp/shm)"
expect "$(number bytes_copied /tmp/verbs)" 0
expect "$(number bytes_copied_to_host /tmp/verbs)" "$(number bytes_copied_to_host /tmp/shm)"
