#!/bin/bash
# Trains on the nodes that Slurm gives. What follows the script's name are options of `tensorwire train`:
#
#   sbatch examples/clusters/slurm.sh --epochs 20
#   sbatch --nodes 8 examples/clusters/slurm.sh --data mnist:/shared/mnist --checkpoint /shared/run --resume auto
#
# Every node needs the program `tensorwire` on its PATH (else TENSORWIRE is set to where it lies), and what --data and
# --checkpoint name under the same path.
# Half of the tasks are workers and half are servers, unless --workers or --servers says otherwise.
#
#SBATCH --job-name=tensorwire
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
# Where a node is lost, the job is queued again; with --checkpoint DIR --resume auto it goes on.
#SBATCH --requeue
set -eu

# Who knows this text takes part in the job, and nobody else. srun hands it to every task.
export TENSORWIRE_SECRET="${TENSORWIRE_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}"

# --kill-on-bad-exit   all end when one dies before it has called the others
# --distribution       workers and servers are on all nodes; without it the first nodes have the workers
# --cpus-per-task      srun does not take it over from sbatch
exec srun --kill-on-bad-exit=1 --distribution=cyclic --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
  "${TENSORWIRE:-tensorwire}" train "$@"
