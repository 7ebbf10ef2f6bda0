"""MXNet's side of the key-value store benchmark (Li et al., figure 7): push and pull of one
key by `dist_sync`, which is ps-lite over ZeroMQ and TCP.

This process starts a scheduler, servers and workers on this machine, over loopback, and watches
them; they end with it. Prints one line of JSON a size. Knows nothing of tensorwire.

A repetition is what a worker waits for between `push` and the end of `pull`, taken by worker 0; the
others do the same at the same time, and `dist_sync` keeps them in step: a pull waits for everybody's
push. Without an optimizer the servers keep the sum of what was pushed last. Workers push two arrays
in turn, so that a sum of the wrong step is found; whole arrays are compared between blocks of
repetitions, and nobody times that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from peer_hosts import host_of, start

WARM_UP = 3
BLOCK = 50  # repetitions between two comparisons
TURNS_MIN, TURNS_MAX = 15, 1000
TURNS_BYTES = 1 << 30  # pushed by each worker for a size, if the limits above allow

# Element i of what worker r pushes is (r + 1) * (i mod PERIOD + 1), in every other step 3 times that:
# the sums of 64 workers are exact in float32.
PERIOD = 251
FACTORS = (1, 3)


class WrongData(Exception):
    """What was pulled is not the sum of what was pushed."""


def work(sizes: list[int], times: int | None) -> None:
    """A worker's process."""
    import mxnet as mx  # it joins the job when it is imported

    store = mx.kv.create("dist_sync")
    for key, size in enumerate(sizes):
        turns = times or max(TURNS_MIN, min(TURNS_MAX, TURNS_BYTES // size))
        seconds = measure(mx, store, key, size, turns)
        if store.rank == 0:
            row = {
                "bench": "kvstore",
                "system": "mxnet",
                "version": mx.__version__,
                "workers": store.num_workers,
                "servers": int(os.environ["DMLC_NUM_SERVER"]),
                "bytes": size,
                "repetitions": turns,
                **summary(seconds),
                "verified": True,  # what is wrong ends the job
            }
            print(json.dumps(row), flush=True)


def measure(mx: Any, store: Any, key: int, size: int, turns: int) -> list[float]:
    """The seconds of each push and pull of so many bytes."""
    import numpy

    pattern = numpy.arange(size // 4, dtype=numpy.float32) % PERIOD + 1
    sources = [mx.nd.array(pattern * (store.rank + 1) * factor) for factor in FACTORS]
    ranks = store.num_workers * (store.num_workers + 1) // 2
    sums = [pattern * ranks * factor for factor in FACTORS]
    pushed, pulled = mx.nd.zeros(size // 4), mx.nd.zeros(size // 4)
    store.init(key, pulled)
    mx.nd.waitall()

    def turn(step: int) -> float:
        # a pull leaves its result in the array that was pushed before, too: `pushed` is used up
        sources[step % len(sources)].copyto(pushed)
        pushed.wait_to_read()
        start = time.perf_counter()
        store.push(key, pushed)
        store.pull(key, out=pulled)
        pulled.wait_to_read()
        return time.perf_counter() - start

    seconds: list[float] = []
    while len(seconds) < turns:
        store._barrier()
        # the first of a block are late by as much as the barrier let workers go at different times
        for step in range(WARM_UP):
            turn(step)
        block = range(WARM_UP, WARM_UP + min(BLOCK, turns - len(seconds)))
        seconds += [turn(step) for step in block]
        if not numpy.array_equal(pulled.asnumpy(), sums[block[-1] % len(sums)]):
            raise WrongData(f"worker {store.rank} pulled {size} bytes that are not the sum")
    store._barrier()
    return seconds


def summary(seconds: list[float]) -> dict[str, float]:
    if len(seconds) == 1:
        return dict.fromkeys(("median_s", "p10_s", "p90_s"), seconds[0])
    tenths = statistics.quantiles(seconds, n=10, method="inclusive")
    return {"median_s": statistics.median(seconds), "p10_s": tenths[0], "p90_s": tenths[8]}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def job(workers: int, servers: int, join: list[str]) -> Iterator[list[Any]]:
    """The processes of a job by role, which end with the block, or with this process, each where peer_hosts.py says. `join` is
    a worker's command."""
    common = {
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": host_of(0, 1),
        "DMLC_PS_ROOT_PORT": str(free_port()),
    }
    # whoever is no worker serves, and ends, while it imports MXNet
    serve = [sys.executable, "-c", "import mxnet"]
    roles = [("scheduler", serve, 1), ("server", serve, servers), ("worker", join, workers)]
    members: list[Any] = []
    try:
        for role, command, count in roles:
            for number in range(count):
                host = host_of(number, count)
                own = {"DMLC_ROLE": role, "DMLC_NODE_HOST": host}
                members.append((role, start(host, command, {**common, **own})))
        yield members
    finally:
        for _, process in members:
            process.kill()
            process.wait()


def watch(members: list[Any], deadline_s: float) -> None:
    """Until all have ended well."""
    end = time.monotonic() + deadline_s
    waiting = members
    while waiting:
        if time.monotonic() > end:
            roles = ", ".join(role for role, _ in waiting)
            sys.exit(f"not done within {deadline_s:g} s: {roles}; what ended before may be above")
        for role, process in waiting:
            if process.poll() not in (None, 0):
                sys.exit(f"a {role} of MXNet ended with status {process.returncode}")
        waiting = [(role, process) for role, process in waiting if process.poll() is None]
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
    add("--workers", type=count, default=2, help="[%(default)s]")
    add("--servers", type=count, default=1, help="[%(default)s]")
    add("--times", type=count, help="repetitions [by size]")
    add("--deadline", type=float, default=280, help="seconds until it gives up [%(default)s]")
    add("--work", action="store_true", help="be a worker")
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.sizes, arguments.times)
        return
    join = [sys.executable, os.path.abspath(__file__), "--work", *map(str, arguments.sizes)]
    if arguments.times:
        join += ["--times", str(arguments.times)]
    with job(arguments.workers, arguments.servers, join) as members:
        watch(members, arguments.deadline)


if __name__ == "__main__":
    main()
