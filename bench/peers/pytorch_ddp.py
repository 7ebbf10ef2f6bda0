"""PyTorch's side of the comparison of training steps: DistributedDataParallel over gloo, as it comes, which
reduces gradients in buckets while others are computed, between processes of this machine over loopback, or where
peer_hosts.py says.

This process imports PyTorch and becomes the processes that it measures on its host; all end with it. peer_step.py says what
is timed and printed, pytorch_models.py what is computed. Knows nothing of tensorwire but its models.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

from gloo_allreduce import PR_SET_PDEATHSIG, watch
from peer_hosts import DEVICE, HOSTS, host_of, start
from peer_step import LEARNING_RATE, MOMENTUM, Timed, count, options, print_row, time_steps
from step_models import RECURRENT, classes_of, samples_of

# models that the other peers do not have
MORE = ("gpt2-small",)


def take_part(rank: int, given: Any, store: str) -> None:
    """One of the processes, or the only one."""
    import torch
    from torch import distributed

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    together = given.workers > 1
    if together:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=given.workers,
            timeout=timedelta(seconds=given.deadline),
        )
    module, parameters = build(torch, given)
    if together:
        module = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = module()
        loss.backward()
        optimizer.step()
        loss.item()

    found = time_steps(step, given.steps)
    if together:
        # of the slowest
        slowest = torch.tensor(found, dtype=torch.float64)
        distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
        found = Timed(*slowest.tolist())
    if rank == 0:
        print_row("pytorch-ddp", torch.__version__, given, parameters, found)
    if together:
        distributed.barrier()
        distributed.destroy_process_group()


def feed_of(torch: Any, given: Any) -> dict[str, Any]:
    """A batch of made-up samples: images, sequences, or windows of text and what comes next in each."""
    from pytorch_transformers import CHARACTERS, MODULES

    window = MODULES.get(given.model, (None,))[0]
    if window:
        tokens = torch.randint(CHARACTERS, (given.batch, (given.sequence or window) + 1))
        return {"input": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}
    shape = samples_of(given.model, given.batch)
    if given.model in RECURRENT:
        shape = (shape[0] * shape[1], shape[2])
    return {"input": torch.rand(shape), "labels": torch.randint(classes_of(given.model), (given.batch,))}


def build(torch: Any, given: Any) -> tuple[Any, int]:
    """A module from nothing to the loss of its batch, and its number of parameters."""
    from pytorch_models import Variables, loss_of

    feed = feed_of(torch, given)
    variables = Variables(1)
    variables.exact_dropout = False
    with torch.no_grad():
        loss_of(given.model, variables, feed, 1)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if variables.transformer:
                # its parameters are the module's own
                self.transformer = variables.transformer.module
                return
            for name, tensor in variables.all.items():
                variables.all[name] = torch.nn.Parameter(tensor.detach())
                self.register_parameter(name.replace("/", "_"), variables.all[name])

        def forward(self) -> Any:
            return loss_of(given.model, variables, feed, 1)

    return Model(), sum(tensor.numel() for tensor in variables.all.values())


class Elsewhere:
    """A process on another host, as those of this one are watched."""

    def __init__(self, address: str, rank: int, store: str) -> None:
        own = ["--rank", str(rank), "--store", store]
        self.process = start(address, [sys.executable, os.path.abspath(__file__), *sys.argv[1:], *own])

    @property
    def exitcode(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        self.process.kill()

    def join(self) -> None:
        self.process.wait()


def main() -> None:
    parser = options(__doc__, servers=False, more=MORE)
    parser.add_argument("--sequence", type=count, help="tokens of a window of text [as many as the model takes]")
    parser.add_argument("--rank", type=int, help="be this process of a job")
    parser.add_argument("--store", help="a file by which its processes meet")
    given = parser.parse_args()
    # gloo listens on the interface of this machine's name otherwise
    os.environ.setdefault("GLOO_SOCKET_IFNAME", DEVICE)
    # before PyTorch makes its threads
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch.nn.parallel  # noqa: F401  once, for all processes

    if given.rank is not None:
        return take_part(given.rank, given, given.store)
    end = time.monotonic() + given.deadline
    processes = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        members: list[Any] = []
        try:
            for rank in range(given.workers):
                host = host_of(rank, given.workers)
                if HOSTS and host != HOSTS[0]:
                    members.append(Elsewhere(host, rank, store))
                    continue
                member = processes.Process(target=take_part, args=(rank, given, store))
                member.start()
                members.append(member)
            watch(members, end)
        finally:
            for member in members:
                member.kill()
                member.join()


if __name__ == "__main__":
    main()
