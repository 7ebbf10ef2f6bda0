"""TensorFlow's side of the transfer benchmark (Xue et al. section 5.1, Figure 8): a variable on one
process, its `reduce_max` on another; the tensor crosses by TensorFlow's own rendezvous over gRPC.

This process is the worker (the receiver) and the client; it starts the parameter server (the
sender) as a second process. The client is on the receiver's side because there it costs least: the
master is in this process, and while the sender is still being told to run, the receiver already
asks for the tensor. Prints one line of JSON a size. Knows nothing of tensorwire.

Three times are taken, in turn:

* end to end: in one step, from the moment in which the sender is about to read the variable to the
  moment in which `reduce_max` is done on the receiver, by two timestamp operators of the graph.
  This is what `tensorwire bench transfer` calls `end_to_end_ns`. The receiver's request is usually
  there before the sender reads: a sender that waited some milliseconds longer gave the same times.
* step: what a caller of `session.run` waits for, in a graph without timestamps.
* empty step: the same for a graph that runs one operator on each process and moves nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported

import tensorflow as tf

v1 = tf.compat.v1

SENDER, RECEIVER = "/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0"

WARM_UP = 3
TURNS_MIN, TURNS_MAX = 7, 200
SENDER_START_S = 120

# Element i is (i mod PERIOD) / 256 at first, and grows by 1 before every step: below 2^15 steps each
# value is exact in float32, and the ranges of two steps do not overlap.
PERIOD = 251
LARGEST = (PERIOD - 1) / 256


class WrongData(Exception):
    """What arrived is not what was sent, or nothing was sent."""


@dataclass(frozen=True)
class Program:
    """One size's graph, bound to a session."""

    advance: Callable[[], Any]  # changes every element of the sender's tensor
    step: Callable[[], float]  # its largest element
    timed_step: Callable[[], tuple[float, float, float]]  # largest, time when ready, when consumed
    empty_step: Callable[[], Any]
    bounds: Callable[[], tuple[float, float]]  # smallest and largest, both found by the receiver


@dataclass(frozen=True)
class Turn:
    """One of each, in seconds."""

    end_to_end: float
    step: float
    empty_step: float


def options() -> Any:
    """For both servers and the session."""
    config = v1.ConfigProto()
    # One thread for operators: the graph is a chain, and small tensors are a tenth faster so.
    config.inter_op_parallelism_threads = 1
    # The graph runs as it is written. (The transfer survives optimization; times are the same.)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    return config


def serve() -> None:
    """The sender's process: says where it listens, and ends when its standard input does."""
    server = tf.distribute.Server(
        {"ps": ["localhost:0"]}, job_name="ps", task_index=0, protocol="grpc", config=options()
    )
    print(server.target, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # a server of TensorFlow cannot be stopped


@contextlib.contextmanager
def sender() -> Iterator[str]:
    """The address of a sender, which ends with the block, or with this process."""
    command = [sys.executable, os.path.abspath(__file__), "--serve"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout  # it is a pipe
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(SENDER_START_S):
                    raise TimeoutError(f"the sender did not start within {SENDER_START_S} s")
            target = process.stdout.readline().strip()
            if not target:
                raise ConnectionError("the sender died before it said where it listens")
            yield target.removeprefix("grpc://")
        finally:
            process.kill()


def build(size: int) -> tuple[Any, Callable[[Any], Program]]:
    """The initializer of a graph for `size` bytes, and what binds that graph to its session."""
    elements = size // 4
    with tf.device(SENDER):
        pattern = tf.cast(tf.math.floormod(tf.range(elements), PERIOD), tf.float32) / 256
        variable = tf.Variable(pattern, name="payload")
        # All elements, although one would do: after a sparse update, every read makes a copy.
        advance = variable.assign_add(tf.fill([elements], 1.0), read_value=False)
        payload = variable.read_value()
        ready = tf.timestamp()
        with tf.control_dependencies([ready]):
            timed_payload = variable.read_value()
        nothing = tf.no_op()
    with tf.device(RECEIVER):
        largest, smallest = tf.reduce_max(payload), tf.reduce_min(payload)
        timed_largest = tf.reduce_max(timed_payload)
        with tf.control_dependencies([timed_largest]):
            consumed = tf.timestamp()
        scalar = tf.constant(0.0)

    def bind(session: Any) -> Program:
        return Program(
            advance=session.make_callable(advance),
            step=session.make_callable(largest),
            timed_step=session.make_callable([timed_largest, ready, consumed]),
            empty_step=session.make_callable([scalar, nothing]),
            bounds=session.make_callable([smallest, largest]),
        )

    return v1.global_variables_initializer(), bind


def measure(target: str, size: int, seconds: float) -> dict[str, Any]:
    """One size, for about so many seconds."""
    with tf.Graph().as_default():
        initialize, bind = build(size)
        with v1.Session(target, config=options()) as session:
            session.run(initialize)
            return repeat(bind(session), size, seconds)


def repeat(program: Program, size: int, seconds: float) -> dict[str, Any]:
    advances = 0

    def turn() -> Turn:
        nonlocal advances
        program.advance()
        advances += 1
        start = time.perf_counter()
        largest = program.step()
        step = time.perf_counter() - start
        expect(largest, LARGEST + advances)

        program.advance()
        advances += 1
        largest, ready, consumed = program.timed_step()
        expect(largest, LARGEST + advances)

        start = time.perf_counter()
        program.empty_step()
        empty_step = time.perf_counter() - start
        return Turn(consumed - ready, step, empty_step)

    for _ in range(WARM_UP):
        turn()
    turns: list[Turn] = []
    began, crossed = time.monotonic(), loopback_bytes()
    while len(turns) < TURNS_MIN or (
        len(turns) < TURNS_MAX and time.monotonic() - began < seconds
    ):
        turns.append(turn())
    crossed_per_step = (loopback_bytes() - crossed) / (2 * len(turns))
    if crossed_per_step < size:
        raise WrongData(
            f"{size} bytes were to cross in a step, {crossed_per_step:.0f} went over loopback"
        )
    smallest, largest = program.bounds()
    expect(smallest, advances)
    expect(largest, LARGEST + advances)
    return {
        "bench": "transfer",
        "peer": "tensorflow",
        "version": tf.__version__,
        "protocol": "grpc",
        "bytes": size,
        "end_to_end_ns": summary([turn.end_to_end for turn in turns]),
        "step_ns": summary([turn.step for turn in turns]),
        "empty_step_ns": summary([turn.empty_step for turn in turns]),
        "loopback_bytes_per_step": crossed_per_step,
        "values_verified": advances,
        "tensors_verified": 1,
    }


def expect(found: float, expected: float) -> None:
    if found != expected:
        raise WrongData(f"the receiver found {found}, the sender's tensor has {expected}")


def summary(times_s: list[float]) -> dict[str, float]:
    """Of at least two times."""
    return {
        "count": len(times_s),
        "median": statistics.median(times_s) * 1e9,
        "p90": statistics.quantiles(times_s, n=10, method="inclusive")[8] * 1e9,
        "min": min(times_s) * 1e9,
        "max": max(times_s) * 1e9,
    }


def loopback_bytes() -> int:
    """Bytes that the loopback device has received so far, from anyone."""
    with open("/proc/net/dev", encoding="ascii") as lines:
        for line in lines:
            device, _, counters = line.partition(":")
            if device.strip() == "lo":
                return int(counters.split()[0])
    raise OSError("/proc/net/dev has no loopback device")


def size_in_bytes(text: str) -> int:
    size = int(text)
    if size <= 0 or size % 4:
        raise ValueError(text)
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    add = parser.add_argument
    add("sizes", metavar="BYTES", nargs="*", type=size_in_bytes, help="multiples of 4")
    add("--seconds", type=float, default=3, help="for a size (%(default)s)")
    add("--deadline", type=float, default=280, help="seconds until it gives up (%(default)s)")
    add("--serve", action="store_true", help="be the sender")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    # Nothing that waits inside of TensorFlow can be interrupted.
    faulthandler.dump_traceback_later(arguments.deadline, exit=True)
    with sender() as address:
        server = tf.distribute.Server(
            {"ps": [address], "worker": ["localhost:0"]},
            job_name="worker",
            task_index=0,
            protocol="grpc",
            config=options(),
        )
        for size in arguments.sizes:
            print(json.dumps(measure(server.target, size, arguments.seconds)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a server of TensorFlow cannot be stopped


if __name__ == "__main__":
    main()
