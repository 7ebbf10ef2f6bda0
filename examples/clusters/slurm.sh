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
# Two minutes before the time is over all end behind one step, which is kept with --checkpoint.
#SBATCH --signal=INT@120
# Slurm may queue the job again where it loses the node of this script; below the script does, where anything else is lost.
#SBATCH --requeue
set -eu

# Who knows this text takes part in the job, and nobody else. srun hands it to every task.
export TENSORWIRE_SECRET="${TENSORWIRE_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}"

# --kill-on-bad-exit   all end when one dies before it has called the others
# --distribution       workers and servers are on all nodes; without it the first nodes have the workers
# --cpus-per-task      srun does not take it over from sbatch
status=0
srun --kill-on-bad-exit=1 --distribution=cyclic --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
  "${TENSORWIRE:-tensorwire}" train "$@" || status=$?

# A lost node, a killed task, time that is over: with --checkpoint DIR --resume auto the job is queued again, and goes on.
# Status 2 is for what only another command line mends.
case " $* " in
  *" --resume auto "* | *" --resume=auto "*) ;;
  *) exit "$status" ;;
esac
if [ "$status" -ne 0 ] && [ "$status" -ne 2 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
