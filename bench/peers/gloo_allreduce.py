"""gloo's side of the all-reduce benchmark: torch.distributed.all_reduce of a float32 tensor, in place,
by processes of this machine over loopback, one thread each.

This process imports PyTorch and becomes the processes that it measures, which end with it. Prints one
line of JSON a size. Knows nothing of tensorwire.

A repetition fills the tensor with values of this step and process, waits at a barrier, is timed, and
compares the whole tensor with the sum in closed form. Its time is that of the process that was slowest.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

# More change nothing: with 2 processes, 4 KiB, 0.42 and 0.42 ms; after 2,000 of them 0.45 and 0.42.
WARM_UP = 3

# Element i of what process r adds is (r + 1) * (i mod PERIOD + 1), in every other step 3 times that: the
# sums of 64 processes are exact in float32.
PERIOD = 251
FACTORS = (1, 3)

PR_SET_PDEATHSIG = 1


class WrongData(Exception):
    """What was reduced is not the sum of what was given."""


def take_part(rank: int, ranks: int, sizes: list[int], times: int, store: str, limit_s: float) -> None:
    """One of the processes."""
    import torch
    from torch import distributed

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=limit_s),
    )
    for size in sizes:
        seconds = measure(torch, distributed, size, times)
        # the slowest of each repetition
        slowest = torch.tensor(seconds, dtype=torch.float64)
        distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
        if rank == 0:
            row = {
                "bench": "allreduce",
                "system": "gloo",
                "version": torch.__version__,
                "ranks": ranks,
                "bytes": size,
                "repetitions": times,
                **summary(slowest.tolist()),
                "verified": True,  # what is wrong ends the job
            }
            print(json.dumps(row), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def measure(torch: Any, distributed: Any, size: int, times: int) -> list[float]:
    """This process's seconds of each repetition."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    period = torch.arange(1, PERIOD + 1, dtype=torch.float32)
    pattern = period.repeat(size // 4 // PERIOD + 1)[: size // 4]
    tensor = torch.empty_like(pattern)
    seconds = []
    for step in range(WARM_UP + times):
        factor = FACTORS[step % len(FACTORS)]
        torch.mul(pattern, factor * (rank + 1), out=tensor)
        distributed.barrier()
        start = time.perf_counter()
        distributed.all_reduce(tensor)
        took = time.perf_counter() - start
        if step >= WARM_UP:
            seconds.append(took)
        # in whole numbers, so that nothing is rounded
        if not torch.equal(tensor.div_(factor * (ranks * (ranks + 1) // 2)), pattern):
            raise WrongData(f"process {rank}, step {step}: {size} bytes are not the sum")
    return seconds


def summary(seconds: list[float]) -> dict[str, float]:
    if len(seconds) == 1:
        return dict.fromkeys(("median_s", "p10_s", "p90_s"), seconds[0])
    tenths = statistics.quantiles(seconds, n=10, method="inclusive")
    return {"median_s": statistics.median(seconds), "p10_s": tenths[0], "p90_s": tenths[8]}


def run(ranks: int, sizes: list[int], times: int, limit_s: float) -> None:
    import torch.distributed  # noqa: F401  once, for all processes

    end = time.monotonic() + limit_s
    processes = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        members = [
            processes.Process(target=take_part, args=(rank, ranks, sizes, times, store, limit_s))
            for rank in range(ranks)
        ]
        for member in members:
            member.start()
        try:
            watch(members, end)
        finally:
            for member in members:
                member.kill()
                member.join()


def watch(members: list[Any], end: float) -> None:
    """Until all have ended well."""
    while waiting := [member for member in members if member.exitcode != 0]:
        for member in waiting:
            # asked once: it may end well between two looks
            if (status := member.exitcode) not in (None, 0):
                sys.exit(f"a process of gloo ended with status {status}")
        if time.monotonic() > end:
            sys.exit(f"{len(waiting)} processes of gloo are not done in time")
        time.sleep(0.02)


def size_in_bytes(text: str) -> int:
    size = int(text)
    if size <= 0 or size % 4:
        raise ValueError(text)
    return size


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    add = parser.add_argument
    add("sizes", metavar="BYTES", nargs="+", type=size_in_bytes, help="multiples of 4")
    add("--ranks", type=count, default=2, help="processes [%(default)s]")
    add("--times", type=count, default=20, help="repetitions [%(default)s]")
    add("--deadline", type=float, default=280, help="seconds until it gives up [%(default)s]")
    arguments = parser.parse_args()
    # gloo listens on the interface of this machine's name otherwise
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    run(arguments.ranks, arguments.sizes, arguments.times, arguments.deadline)


if __name__ == "__main__":
    main()
