# Training on GPUs that stand in for real ones: their memory is registered as it is mapped, as with nvidia-peermem, and tensors
# go from memory to memory by the NIC. The bits are those of devices that map each other's memory, and those of devices whose
# memory no NIC reaches: tensors go by way of the host then.
driver=$(readlink -f "$(command -v libtensorwire_fakecuda.so)")
FAKE_CUDA_KERNELS=$(readlink -f "$(command -v cuda_shim)")
export FAKE_CUDA_KERNELS
job="--device cuda --cuda-driver $driver --model sentence-embedding --data synthetic:128"
job+=" --batch 2 --steps 2 --seed 3 --deadline 120 --json"
number() { sed -n "s/.*\"$1\":\"\?\([0-9a-f]*\).*/\1/p" "$2"; }
tensorwire train --transport shm $job | tee /tmp/shm
tensorwire train --transport verbs $job 2>&1 | tee /tmp/verbs
grep -q "the NIC reaches the GPU's memory by nvidia-peermem (no dma-buf: " /tmp/verbs
expect "$(number weights_sha256 /tmp/verbs)" "$(number weights_sha256 /tmp/shm)"
expect "$(number bytes_copied /tmp/verbs)" 0
expect "$(number bytes_copied_to_host /tmp/verbs)" "$(number bytes_copied_to_host /tmp/shm)"
FAKE_CUDA_GUARD=1 tensorwire train --transport verbs $job 2>&1 | tee /tmp/staged
grep -q 'tensors of GPUs go by way of pinned host memory: ' /tmp/staged
expect "$(number weights_sha256 /tmp/staged)" "$(number weights_sha256 /tmp/shm)"
# Gradients of embeddings are rows, of as many words as a batch has: the servers' NICs read them in the memory of the workers'
# devices.
rows="--device cuda --cuda-driver $driver --model seq2seq --data reverse:16 --batch 2 --steps 2 --deadline 240 --json"
tensorwire train --transport shm $rows | tee /tmp/rows-shm
tensorwire train --transport verbs $rows 2>&1 | tee /tmp/rows-verbs
expect "$(number weights_sha256 /tmp/rows-verbs)" "$(number weights_sha256 /tmp/rows-shm)"
expect "$(number bytes_copied_from_peers /tmp/rows-verbs)" 0
expect "$(number bytes_copied_to_host /tmp/rows-verbs)" "$(number bytes_copied_to_host /tmp/rows-shm)"
FAKE_CUDA_GUARD=1 tensorwire train --transport verbs $rows 2>&1 | tee /tmp/rows-staged
expect "$(number weights_sha256 /tmp/rows-staged)" "$(number weights_sha256 /tmp/rows-shm)"
# A store in the memory of its servers' devices, which the NIC writes and reads: the servers' devices copy nothing but what goes in
# messages. Where it is kept from that memory they copy all.
store="--strategy dist-sgd --transport verbs $job"
tensorwire train $store 2>&1 | tee /tmp/store
grep -q "the NIC reaches the memory of servers' GPUs by nvidia-peermem (no dma-buf: " /tmp/store
expect "$(number weights_sha256 /tmp/store)" "$(number weights_sha256 /tmp/shm)"
FAKE_CUDA_GUARD=1 tensorwire train $store 2>&1 | tee /tmp/store-staged
grep -q 'gradients and weights go by pinned memory of the host: ' /tmp/store-staged
expect "$(number weights_sha256 /tmp/store-staged)" "$(number weights_sha256 /tmp/shm)"
(( $(number bytes_copied_store_staging /tmp/store) < $(number bytes_copied_store_staging /tmp/store-staged) / 2 ))
# Nothing of this model has a size that changes: its steps are told as a whole, whose gates the host opens for what the NIC wrote.
whole="--device cuda --cuda-driver $driver --model cifar --data synthetic:16,8x8x1"
whole+=" --batch 4 --steps 3 --deadline 120 --json"
for transport in shm verbs; do
    tensorwire train --transport $transport $whole 2>&1 | tee /tmp/whole-$transport
    grep -q '"device_steps":"one graph a step"' /tmp/whole-$transport
done
expect "$(number weights_sha256 /tmp/whole-verbs)" "$(number weights_sha256 /tmp/whole-shm)"
expect "$(number bytes_copied /tmp/whole-verbs)" 0
