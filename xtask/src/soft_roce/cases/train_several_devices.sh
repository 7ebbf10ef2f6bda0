# Training on several GPUs a worker, which stand in for real ones as in train_devices.sh. Each deals with those of the same number:
# by the NIC from memory to memory, and by pinned memory where the NIC is kept from it.
driver=$(readlink -f "$(command -v libtensorwire_fakecuda.so)")
FAKE_CUDA_KERNELS=$(readlink -f "$(command -v cuda_shim)")
export FAKE_CUDA_KERNELS FAKE_CUDA_DEVICES=8
job="--device cuda --cuda-driver $driver --devices-per-worker 2 --model cifar --data synthetic:8,8x8x1"
job+=" --batch 2 --steps 2 --deadline 240 --json"
number() { sed -n "s/.*\"$1\":\"\?\([0-9a-f]*\).*/\1/p" "$2"; }
# nobody is waited for there
tensorwire train --strategy local ${job/ --deadline 240/} | tee /tmp/local
reached="the NIC reaches the GPU's memory by nvidia-peermem"
staged='tensors of GPUs go by way of pinned host memory: '
for way in ps 'ps --design reg' allreduce 'allreduce --design reg' 'mpi-sgd --clients 1' 'mpi-sgd --clients 1 --design reg' \
    'mpi-sgd --clients 1 --servers 0'; do
    tensorwire train --transport verbs --strategy $way $job 2>&1 | tee /tmp/verbs
    grep -q "$reached" /tmp/verbs
    FAKE_CUDA_GUARD=1 tensorwire train --transport verbs --strategy $way $job 2>&1 | tee /tmp/staged
    grep -q "$staged" /tmp/staged
    for found in verbs staged; do
        expect "$(number weights_sha256 /tmp/$found)" "$(number weights_sha256 /tmp/local)"
    done
    # each GPU but the first has gradients, and weights, of the others of its worker
    (($(number bytes_copied_between_devices /tmp/verbs) > 0))
    (($(number bytes_copied_to_host /tmp/verbs) < $(number bytes_copied_to_host /tmp/staged)))
done
# A centre: the first of a worker's GPUs meets it.
for way in 'dist-esgd --workers 1' 'mpi-esgd --workers 2 --clients 1'; do
    centre="--strategy $way --alpha 0.3 --interval 1 $job"
    tensorwire train --transport shm $centre 2>&1 | tee /tmp/shm
    tensorwire train --transport verbs $centre 2>&1 | tee /tmp/verbs
    grep -q "the NIC reaches the memory of workers' GPUs by nvidia-peermem" /tmp/verbs
    FAKE_CUDA_GUARD=1 tensorwire train --transport verbs $centre 2>&1 | tee /tmp/staged
    for found in verbs staged; do
        expect "$(number weights_sha256 /tmp/$found)" "$(number weights_sha256 /tmp/shm)"
    done
    (($(number bytes_copied_to_host /tmp/verbs) < $(number bytes_copied_to_host /tmp/staged)))
done
