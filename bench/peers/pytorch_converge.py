"""PyTorch's side of the comparison of learning: DistributedDataParallel over gloo; gpt-mini is the module of Hugging
Face's transformers. peer_converge.py says what is learned and written. Knows nothing of tensorwire but its models.
"""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
from datetime import timedelta
from typing import Any

# before PyTorch makes its threads, and where gloo listens
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.nn.functional as F
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from converge_models import DIGITS, PIXELS, UNITS
from gloo_allreduce import PR_SET_PDEATHSIG
from peer_converge import BETA1, BETA2, EPSILON, MOMENTUM, TASKS, VOCABULARY, WORKERS, Log, batches, options, save, write
from pytorch_models import glorot, he
from pytorch_transformers import Transformer


def mlp() -> Any:
    first, second = torch.nn.Linear(PIXELS, UNITS), torch.nn.Linear(UNITS, UNITS)
    last = torch.nn.Linear(UNITS, DIGITS)
    for layer, limit in ((first, he(PIXELS)), (second, he(UNITS)), (last, glorot(UNITS, DIGITS))):
        torch.nn.init.uniform_(layer.weight, -limit, limit)
        torch.nn.init.zeros_(layer.bias)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)


class Gpt(torch.nn.Module):
    """From tokens to a row of logits for each."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.module = Transformer("gpt-mini", seed, VOCABULARY).module

    def forward(self, tokens: Any) -> Any:
        return self.module(input_ids=tokens).logits.flatten(0, 1)


def take_part(rank: int, given: Any, folder: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORKERS,
        timeout=timedelta(seconds=given.deadline),
    )
    task = TASKS[given.task]
    module = DistributedDataParallel(mlp() if task.model == "mlp" else Gpt(given.seed))
    if task.optimizer == "momentum":
        optimizer: Any = torch.optim.SGD(module.parameters(), lr=task.rate, momentum=MOMENTUM)
    else:
        optimizer = torch.optim.Adam(module.parameters(), lr=task.rate, betas=(BETA1, BETA2), eps=EPSILON)

    def logits_of(x: Any) -> Any:
        with torch.no_grad():
            return module.module(torch.from_numpy(x)).numpy()

    log = Log(given)
    for step, (x, labels) in enumerate(batches(given, rank), 1):
        for group in optimizer.param_groups:
            group["lr"] = task.rate_of(step)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(labels).long().flatten())
        loss.backward()
        optimizer.step()
        log.step(loss.item())
        if rank == 0 and log.is_evaluated():
            log.evaluate(logits_of)
    save(log, folder, rank)
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    given = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(take_part, (given, folder), nprocs=WORKERS)
        write(given, folder)


if __name__ == "__main__":
    main()
