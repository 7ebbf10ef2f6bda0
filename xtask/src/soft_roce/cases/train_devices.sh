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
# Nothing of this model has a size that changes: its steps are told as a whole, whose gates the host opens for what the NIC wrote.
whole="--device cuda --cuda-driver $driver --model cifar --data synthetic:16,8x8x1"
whole+=" --batch 4 --steps 3 --deadline 120 --json"
for transport in shm verbs; do
    tensorwire train --transport $transport $whole 2>&1 | tee /tmp/whole-$transport
    grep -q '"device_steps":"one graph a step"' /tmp/whole-$transport
done
expect "$(number weights_sha256 /tmp/whole-verbs)" "$(number weights_sha256 /tmp/whole-shm)"
expect "$(number bytes_copied /tmp/whole-verbs)" 0
# A store in the memory of its servers' devices: NICs read what workers push in the memory of their devices, and write there what
# they pull. What is smaller than 16 KiB goes by the hosts, at both ends; so does all where NICs are kept from devices' memory.
store="--device cuda --cuda-driver $driver --model cifar --data synthetic:8,8x8x1 --batch 2 --steps 2 --deadline 240 --json"
small=$((4 * 4234)) weights=$((4 * 278666)) steps=2
more() { echo $(($(number "$1" "$2") - $(number "$1" "$3"))); }
tensorwire train --transport shm --strategy dist-sgd $store 2>&1 | tee /tmp/store-shm
tensorwire train --transport verbs --strategy dist-sgd $store 2>&1 | tee /tmp/store
grep -q "the NIC reaches the memory of servers' GPUs by nvidia-peermem (no dma-buf: " /tmp/store
grep -q "the NIC reaches the memory of workers' GPUs by nvidia-peermem (no dma-buf: " /tmp/store
FAKE_CUDA_GUARD=1 tensorwire train --transport verbs --strategy dist-sgd $store 2>&1 | tee /tmp/store-staged
grep -q 'at servers what is pushed and pulled goes by pinned memory of the host: ' /tmp/store-staged
grep -q 'at workers what is pushed and pulled goes by pinned memory of the host: ' /tmp/store-staged
for way in store store-staged; do
    expect "$(number weights_sha256 /tmp/$way)" "$(number weights_sha256 /tmp/store-shm)"
done
# two workers' gradients a step, and each version of the weights once: those of the beginning, too
expect "$(more bytes_copied_to_host /tmp/store /tmp/store-shm)" $((2 * steps * small))
expect "$(more bytes_copied_to_host /tmp/store-staged /tmp/store-shm)" $((2 * steps * weights))
expect "$(number bytes_copied_store_staging /tmp/store)" $(((2 * steps + steps + 1) * small))
expect "$(number bytes_copied_store_staging /tmp/store-staged)" $(((2 * steps + steps + 1) * weights))
# workers that are not bound to each other's steps, or may be lost; several devices a worker; means alone
export FAKE_CUDA_DEVICES=6
for way in 'dist-asgd --workers 1' 'dist-sgd --elastic' 'dist-sgd --devices-per-worker 2' 'dist-sgd --clip-norm 1'; do
    for transport in shm verbs; do
        tensorwire train --transport $transport --strategy $way $store 2>&1 | tee /tmp/way-$transport
    done
    grep -q "the NIC reaches the memory of workers' GPUs " /tmp/way-verbs
    expect "$(number weights_sha256 /tmp/way-verbs)" "$(number weights_sha256 /tmp/way-shm)"
    (($(more bytes_copied_to_host /tmp/way-verbs /tmp/way-shm) <= 2 * steps * small))
    (($(number bytes_copied_store_staging /tmp/way-verbs) <= (3 * steps + 2) * small))
done
# Groups before a store: what members reduce, what the first pushes and pulls, and what it gives the others.
group='mpi-sgd --workers 2 --clients 1'
for transport in shm verbs; do
    tensorwire train --transport $transport --strategy $group $store 2>&1 | tee /tmp/group-$transport
done
FAKE_CUDA_GUARD=1 tensorwire train --transport verbs --strategy $group $store 2>&1 | tee /tmp/group-staged
grep -q "the NIC reaches the GPU's memory by nvidia-peermem" /tmp/group-verbs
grep -q "the NIC reaches the memory of workers' GPUs by nvidia-peermem" /tmp/group-verbs
for way in group-shm group-verbs group-staged; do
    expect "$(number weights_sha256 /tmp/$way)" "$(number weights_sha256 /tmp/store-shm)"
done
expect "$(more bytes_copied_to_host /tmp/group-verbs /tmp/group-shm)" $((steps * small))
expect "$(number bytes_copied_store_staging /tmp/group-verbs)" $(((2 * steps + 1) * small))
# A centre: a master's NIC reads what it pushes, and writes what it pulls where nobody else of its client reads it.
for way in 'dist-esgd --workers 1' 'mpi-esgd --workers 2 --clients 1'; do
    for transport in shm verbs; do
        for interval in 1 100; do
            tensorwire train --transport $transport --strategy $way --alpha 0.3 --interval $interval $store 2>&1 |
                tee /tmp/centre-$transport-$interval
        done
    done
    grep -q "the NIC reaches the memory of workers' GPUs by nvidia-peermem" /tmp/centre-verbs-1
    FAKE_CUDA_GUARD=1 tensorwire train --transport verbs --strategy $way --alpha 0.3 --interval 1 $store 2>&1 | tee /tmp/centre-staged
    for centre in centre-verbs-1 centre-staged; do
        expect "$(number weights_sha256 /tmp/$centre)" "$(number weights_sha256 /tmp/centre-shm-1)"
    done
    # of one meeting more
    expect "$(more bytes_copied_to_host /tmp/centre-verbs-1 /tmp/centre-verbs-100)" $small
    expect "$(more bytes_copied_store_staging /tmp/centre-verbs-1 /tmp/centre-verbs-100)" $((2 * small))
done
