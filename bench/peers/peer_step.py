"""What the peers' training steps have in common: their options, how a step is timed, and the line that each
prints. Knows no framework.

A measurement is a new process or job: batches of made-up samples, SGD with momentum, a step to warm up, then the
mean of the others and how far they lie apart, from where all workers begin to where the last has the new weights.
`--workers 1` is the same work in one process that exchanges nothing.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from peer_hosts import DEVICE, HOSTS
from step_models import MODELS

LEARNING_RATE, MOMENTUM = 1e-4, 0.9
ELEMENT_BYTES = 4
# every variable of every worker crosses so often in a step, at least: a gradient and a weight, or parts of sums
CROSSINGS = {"servers": 2, "ranks": 1}


class NothingExchanged(Exception):
    """Fewer bytes crossed than the gradients have."""


def options(description: str, servers: bool, more: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """`more`: models that this peer alone has."""
    parser = argparse.ArgumentParser(description=description.partition(":")[0])
    add = parser.add_argument
    models = (*MODELS, *more)
    add("model", metavar="MODEL", choices=models, help=", ".join(models))
    add("--batch", type=count, default=8, help="samples of a worker [%(default)s]")
    add("--steps", type=count, default=3, help="that count, after one that warms up [%(default)s]")
    add("--workers", type=count, default=2, help="1: one process alone [%(default)s]")
    if servers:
        add("--servers", type=count, default=2, help="if there are several workers [%(default)s]")
    add("--deadline", type=float, default=280, help="seconds until it gives up [%(default)s]")
    return parser


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


class Timed(NamedTuple):
    """Milliseconds of a step, over all steps that count and of these steps themselves, by nearest rank; and the bytes
    of a step that crossed loopback, or came from other hosts."""

    ms: float
    p10_ms: float
    p90_ms: float
    crossed: float


def time_steps(step: Callable[[], Any], steps: int) -> Timed:
    """Steps after one that warms up."""
    step()
    crossed, ends = received_bytes(), [time.perf_counter()]
    for _ in range(steps):
        step()
        ends.append(time.perf_counter())
    crossed = (received_bytes() - crossed) / steps
    each = sorted((end - begun) * 1e3 for begun, end in zip(ends, ends[1:]))
    mean = (ends[-1] - ends[0]) * 1e3 / steps
    p10, p90 = (each[-(-steps * tenths // 10) - 1] for tenths in (1, 9))
    # a mean may lie beside nine of ten of what it is of
    return Timed(mean, min(p10, mean), max(p90, mean), crossed)


def received_bytes() -> int:
    """Bytes that the device between processes has received so far, from anyone."""
    with open("/proc/net/dev", encoding="ascii") as lines:
        for line in lines:
            device, _, counters = line.partition(":")
            if device.strip() == DEVICE:
                return int(counters.split()[0])
    raise OSError(f"/proc/net/dev has no device {DEVICE}")


def free_ports(number: int) -> list[int]:
    """Different ones, of loopback."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]


def print_row(
    system: str, version: str, given: Any, parameters: int, step: Timed
) -> None:
    """The result, if what had to cross did."""
    step_ms, p10_ms, p90_ms, crossed = step
    servers = getattr(given, "servers", 0) if given.workers > 1 else 0
    least = 0
    if given.workers > 1:
        times = CROSSINGS["servers" if servers else "ranks"] * given.workers
        if HOSTS:
            # what comes to one of two hosts: to each worker there half of the weights, and from each of the others half of its
            # gradients; or sums. Others may be a little ahead when counting begins or ends
            times = (given.workers / 2 if servers else 1) * 0.9
        least = times * parameters * ELEMENT_BYTES
    if crossed < least:
        raise NothingExchanged(
            f"{least:.0f} bytes have to cross in a step of {given.model}, {crossed:.0f} went over {DEVICE}"
        )
    row = {
        "bench": "step",
        "system": system,
        "version": version,
        "model": given.model,
        "batch": given.batch,
        "threads": 1,
        "workers": given.workers,
        "servers": servers,
        "steps": given.steps,
        "parameters": parameters,
        "step_ms": step_ms,
        "p10_ms": p10_ms,
        "p90_ms": p90_ms,
        "received_bytes_per_step": crossed,
    }
    print(json.dumps(row), flush=True)
