"""Times all-reduces of torch.distributed over tensorwire and over gloo, in turns, on this machine.

    python bench/peers/pytorch_backend.py [--world 2] [--transport shm|tcp] [--sizes 4KiB,1MiB,...] [--rounds 3]

Prints a line a size: medians of the slower rank over all rounds, what gloo takes of it, and the same in memory of the group
(``tensorwire.torch.empty``), where nothing is copied; over shared memory also what the memory alone takes. Calls follow each
other, some 32 MiB of them between two barriers; what they make of the last is compared. Needs PyTorch and the package
`tensorwire`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
#: Bytes that calls between two barriers move, about; calls between them, at least and at most; and such turns.
MOVED, CALLS_MIN, CALLS_MAX, TURNS = 32 << 20, 2, 20, 15


def size(text: str) -> int:
    """Returns the bytes of a text like 4KiB."""
    number, unit = text[:-3], text[-3:]
    if unit not in UNITS or not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write 4KiB or 16MiB")
    return int(number) * UNITS[unit]


def rank(me: int, world: int, backend: str, own: bool, transport: str, sizes: list[int], store: str, said: Any) -> None:
    torch.set_num_threads(1)
    os.environ["TENSORWIRE_TRANSPORT"] = transport
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, init_method=f"file://{store}", rank=me, world_size=world)
    medians = []
    for bytes in sizes:
        if own:
            import tensorwire.torch

            tensor = tensorwire.torch.empty(bytes // 4)
        else:
            tensor = torch.empty(bytes // 4)
        times = []
        calls = max(CALLS_MIN, min(CALLS_MAX, MOVED // bytes))
        for turn in range(3 + TURNS):
            tensor.fill_(me + turn)
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor)
            times.append((time.perf_counter() - begun) / calls)
            wanted = float(sum(range(world)) + world * turn) * world ** (calls - 1)
            # what is no power of two is rounded, by each of them
            near = torch.isclose(tensor, torch.tensor(wanted), rtol=1e-7 if world & (world - 1) == 0 else 1e-5, atol=0)
            assert bool(near.all()), f"a wrong sum of {bytes} bytes"
        medians.append(statistics.median(times[3:]))
    slowest = torch.tensor(medians)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if me == 0:
        said.send(slowest.tolist())
    dist.destroy_process_group()


def bare(me: int, mine: torch.Tensor, other: torch.Tensor, meet: Any, said: Any) -> None:
    """What two ranks that see each other's vector must do at least: each adds up one half, and hands it to the other."""
    torch.set_num_threads(1)
    half = slice(0, len(mine) // 2) if me == 0 else slice(len(mine) // 2, None)
    times = []
    for _ in range(3 + TURNS):
        meet.wait()
        begun = time.perf_counter()
        mine[half].add_(other[half])
        other[half].copy_(mine[half])
        times.append(time.perf_counter() - begun)
    said.put(statistics.median(times[3:]))


def limit(bytes: int) -> float:
    """Returns the seconds of that, without a message between the two."""
    context = multiprocessing.get_context("spawn")
    vectors = [torch.ones(bytes // 4).share_memory_() for _ in range(2)]
    meet, said = context.Barrier(2), context.SimpleQueue()
    ranks = [context.Process(target=bare, args=(me, vectors[me], vectors[1 - me], meet, said)) for me in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    return max(said.get() for _ in ranks)


def measure(world: int, backend: str, own: bool, transport: str, sizes: list[int]) -> list[float]:
    """Returns seconds by size."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world, backend, own, transport, sizes, f"{folder}/store", there)
        ranks = [context.Process(target=rank, args=(me, *arguments)) for me in range(world)]
        for each in ranks:
            each.start()
        there.close()
        found = here.recv()
        for each in ranks:
            each.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--world", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--transport", default="shm", choices=["shm", "tcp", "verbs", "auto"])
    parser.add_argument(
        "--sizes",
        type=lambda text: [size(each) for each in text.split(",")],
        default=[4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20],
        help="default 4KiB,64KiB,256KiB,1MiB,16MiB,64MiB",
    )
    parser.add_argument("--rounds", type=int, default=3, help="in turns (default 3)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON a size")
    given = parser.parse_args()
    ways = {"tensorwire": ("tensorwire", False), "in place": ("tensorwire", True), "gloo": ("gloo", False)}
    times: dict[str, list[list[float]]] = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way, (backend, own) in ways.items():
            times[way].append(measure(given.world, backend, own, given.transport, given.sizes))
        if given.transport == "shm" and given.world == 2:
            times.setdefault("memory alone", []).append([limit(bytes) for bytes in given.sizes])
    for at, bytes in enumerate(given.sizes):
        of = {way: statistics.median(found[at] for found in rounds) for way, rounds in times.items()}
        line = {"bytes": bytes, "world": given.world, "transport": given.transport}
        if given.json:
            print(json.dumps(line | {f"{way.replace(' ', '_')}_s": of[way] for way in of}))
            continue
        print(
            f"{bytes >> 10:8} KiB  " + "  ".join(f"{way} {seconds * 1e6:9.1f} µs" for way, seconds in of.items())
            + f"  gloo over ours {of['gloo'] / of['tensorwire']:6.1f}, in place {of['gloo'] / of['in place']:6.1f}"
        )


if __name__ == "__main__":
    main()
