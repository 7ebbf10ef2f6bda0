"""Times tensors from actor to actor by the transport of tensorwire.ray and by Ray's object store, in turns, on this machine.

    python bench/peers/ray_tensors.py [--sizes 1MiB,16MiB,64MiB] [--rounds 15]

A tensor is handed over and read whole: the receiver compares each element. It is new in each round ("new"), or it stays in shared
memory and is filled anew ("shared"). Prints a line a size: medians, and what the object store takes of it. "no copy" is the object
store with RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=1; "tcp" is tensorwire between two nodes, both on this machine. Needs PyTorch, Ray
and the package `tensorwire`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

# nobody else reaches it
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
import torch
from ray.cluster_utils import Cluster

import tensorwire.ray

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
# a method names it below
tensorwire.ray.register()

#: Rounds that do not count.
WARM = 3
ZERO_COPY = {"env_vars": {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}}


def size(text: str) -> int:
    """Returns the bytes of a text like 4KiB."""
    number, unit = text[:-3], text[-3:]
    if unit not in UNITS or not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write 4KiB or 16MiB")
    return int(number) * UNITS[unit]


class Source:
    """Has a tensor."""

    def __init__(self, transport: str = "auto") -> None:
        torch.set_num_threads(1)
        os.environ["TENSORWIRE_TRANSPORT"] = transport
        self.kept = torch.zeros(0)

    def fill(self, elements: int, value: float, is_shared: bool) -> None:
        if not is_shared or not self.kept.is_shared() or self.kept.numel() != elements:
            self.kept = torch.empty(elements)
        if is_shared:
            self.kept.share_memory_()
        self.kept.fill_(value)

    def by_store(self) -> torch.Tensor:
        return self.kept

    @ray.method(tensor_transport="TENSORWIRE")
    def by_tensorwire(self) -> torch.Tensor:
        return self.kept


class Sink:
    """Reads it."""

    def __init__(self, transport: str = "auto") -> None:
        torch.set_num_threads(1)
        os.environ["TENSORWIRE_TRANSPORT"] = transport

    def read(self, tensor: torch.Tensor) -> tuple[int, float, float]:
        least, most = torch.aminmax(tensor)
        return tensor.numel(), least.item(), most.item()


def measure(ways: dict[str, tuple[Any, Any, str]], bytes: int, rounds: int, is_shared: bool) -> dict[str, float]:
    """Returns seconds by way."""
    elements = bytes // 4
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(WARM + rounds):
        for way, (source, sink, method) in ways.items():
            value = float(turn + 1)
            ray.get(source.fill.remote(elements, value, is_shared))
            begun = time.perf_counter()
            found = ray.get(sink.read.remote(getattr(source, method).remote()))
            times[way].append(time.perf_counter() - begun)
            assert found == (elements, value, value), f"{way}: {found}, not {elements} times {value}"
    return {way: statistics.median(found[WARM:]) for way, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    sizes = "4KiB,1MiB,16MiB,64MiB"
    parser.add_argument("--sizes", type=lambda text: [size(each) for each in text.split(",")], default=sizes, help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=15, help="in turns [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    given = parser.parse_args()

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"first": 10}, "include_dashboard": False})
    cluster.add_node(num_cpus=2, resources={"second": 10})
    ray.init(address=cluster.address, log_to_driver=False)
    here, there = {"resources": {"first": 1}}, {"resources": {"second": 1}}
    remote = {"num_cpus": 0, "enable_tensor_transport": True}
    source, sink = ray.remote(**remote)(Source), ray.remote(**remote)(Sink)
    zero = [each.options(**here, runtime_env=ZERO_COPY).remote() for each in (source, sink)]
    ways = {
        "tensorwire": (source.options(**here).remote(), sink.options(**here).remote(), "by_tensorwire"),
        "tcp": (source.options(**here).remote("tcp"), sink.options(**there).remote("tcp"), "by_tensorwire"),
        "object store": (source.options(**here).remote(), sink.options(**here).remote(), "by_store"),
        "no copy": (zero[0], zero[1], "by_store"),
    }
    for bytes in given.sizes:
        for is_shared in (False, True):
            # between hosts it is the same wherever it lies
            those = {way: actors for way, actors in ways.items() if way != "tcp" or not is_shared}
            found = measure(those, bytes, given.rounds, is_shared)
            line = {"bytes": bytes, "tensors": "shared" if is_shared else "new"}
            if given.json:
                print(json.dumps(line | {f"{way.replace(' ', '_')}_s": seconds for way, seconds in found.items()}), flush=True)
                continue
            print(
                f"{bytes >> 10:8} KiB, {line['tensors']:6}  "
                + "  ".join(f"{way} {seconds * 1e3:7.2f} ms" for way, seconds in found.items())
                + f"  object store over ours {found['object store'] / found['tensorwire']:5.1f}"
                + f", no copy {found['no copy'] / found['tensorwire']:5.1f}",
                flush=True,
            )
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
