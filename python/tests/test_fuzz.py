"""Operations drawn by a seed, on tensors that are freed and made anew at the same addresses, in another order on each rank.

Memory of all kinds is mixed: PyTorch's own, the group's, and what it has adopted. Each result has a closed form. An ordinary run
tries a few seeds, TENSORWIRE_LONG many.
"""

from __future__ import annotations

import gc
import os
import random
import unittest
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tensorwire.torch as tensorwire
from tests import ranks

LONG = bool(os.environ.get("TENSORWIRE_LONG"))
SEEDS = range(200 if LONG else 6)
STEPS = 120
TYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bfloat16]


def values(step: int, rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns what a rank gives in a step: small whole numbers, which every type adds exactly."""
    return ((torch.arange(length) * 3 + step * 5 + rank * 7) % 11).to(dtype)


class Memory:
    """Tensors of a rank. What is given back is freed at a time that is this rank's own."""

    def __init__(self, seed: int, rank: int) -> None:
        self.drawn = random.Random(seed * 1000 + rank)
        self.backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        self.old: list[torch.Tensor] = []
        self.adopted: list[torch.Tensor] = []
        #: Addresses that were taken before, and how many were taken again.
        self.seen: set[int] = set()
        self.again = 0

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the same elements, in memory of a kind that is drawn by this rank."""
        if like.numel() == 0:
            return like.clone()
        kind = self.drawn.choice(["plain", "plain", "group", "adopted"])
        self.free()
        if kind == "group":
            tensor = tensorwire.empty(*like.shape, dtype=like.dtype)
        elif kind == "adopted":
            tensor = self.adopt(like)
        else:
            tensor = torch.empty_like(like)
        self.again += tensor.data_ptr() in self.seen
        self.seen.add(tensor.data_ptr())
        tensor.copy_(like)
        self.old.append(tensor)
        return tensor

    def adopt(self, like: torch.Tensor) -> torch.Tensor:
        if len(self.adopted) > 6:
            self.backend.forget(self.adopted.pop(self.drawn.randrange(7)).untyped_storage())
        tensor = torch.empty_like(like)
        self.backend.adopt(tensor)
        self.adopted.append(tensor)
        return tensor

    def free(self) -> None:
        self.drawn.shuffle(self.old)
        del self.old[: self.drawn.randrange(len(self.old) + 1) if self.drawn.random() < 0.7 else 0]


def total(step: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    return sum(values(step, rank, length, dtype) for rank in range(dist.get_world_size()))


def all_reduce(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, _root: int) -> Any:
    own = memory.take(values(step, rank, length, dtype))
    return dist.all_reduce(own, async_op=True), [(own, total(step, length, dtype))]


def part_of_all_reduce(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, _root: int) -> Any:
    """Of a part of a tensor, whose other elements stay as they are."""
    own = memory.take(values(step, rank, length + 10, dtype))
    wanted = own.clone()
    wanted[3 : length + 3] = total(step, length + 10, dtype)[3 : length + 3]
    return dist.all_reduce(own[3 : length + 3], async_op=True), [(own, wanted)]


def broadcast(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, root: int) -> Any:
    own = memory.take(values(step, rank, length, dtype))
    return dist.broadcast(own, src=root, async_op=True), [(own, values(step, root, length, dtype))]


def reduce(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, root: int) -> Any:
    own = memory.take(values(step, rank, length, dtype))
    return dist.reduce(own, dst=root, async_op=True), [(own, total(step, length, dtype))] if rank == root else []


def all_gather(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, _root: int) -> Any:
    world = dist.get_world_size()
    whole, own = memory.take(torch.zeros(world * length, dtype=dtype)), memory.take(values(step, rank, length, dtype))
    wanted = torch.cat([values(step, other, length, dtype) for other in range(world)])
    return dist.all_gather_into_tensor(whole, own, async_op=True), [(whole, wanted)]


def reduce_scatter(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, _root: int) -> Any:
    world = dist.get_world_size()
    whole, own = memory.take(values(step, rank, world * length, dtype)), memory.take(torch.zeros(length, dtype=dtype))
    wanted = total(step, world * length, dtype)[rank * length : (rank + 1) * length]
    return dist.reduce_scatter_tensor(own, whole, async_op=True), [(own, wanted)]


def scatter(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, root: int) -> Any:
    own = memory.take(torch.zeros(length, dtype=dtype))
    parts = [memory.take(values(step, r, length, dtype)) for r in range(dist.get_world_size())]
    given = parts if rank == root else None
    return dist.scatter(own, given, src=root, async_op=True), [(own, values(step, rank, length, dtype))]


def all_to_all(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, _root: int) -> Any:
    world = dist.get_world_size()
    gets = memory.take(torch.zeros(world * length, dtype=dtype))
    gives = memory.take(torch.cat([values(step + to, rank, length, dtype) for to in range(world)]))
    wanted = torch.cat([values(step + rank, other, length, dtype) for other in range(world)])
    return dist.all_to_all_single(gets, gives, async_op=True), [(gets, wanted)]


def ring(memory: Memory, step: int, length: int, dtype: torch.dtype, rank: int, _root: int) -> Any:
    world = dist.get_world_size()
    last = (rank - 1) % world
    get, give = memory.take(torch.zeros(length, dtype=dtype)), memory.take(values(step, rank, length, dtype))
    sends, receives = dist.isend(give, (rank + 1) % world, tag=step), dist.irecv(get, last, tag=step)

    class Both:
        def wait(self) -> None:
            sends.wait()
            receives.wait()

    return Both(), [(get, values(step, last, length, dtype))]


KINDS: list[Callable[..., Any]] = [
    all_reduce, all_reduce, part_of_all_reduce, broadcast, reduce, all_gather, reduce_scatter, scatter, all_to_all, ring,
]  # fmt: skip


def steps(rank: int, seed: int) -> int:
    """Does what the seed says; returns how often an address was taken again."""
    shared, memory = random.Random(seed), Memory(seed, rank)
    under_way: list[tuple[str, Any, Any]] = []

    def settle(count: int) -> None:
        for what, work, results in under_way[:count]:
            work.wait()
            for found, wanted in results:
                assert torch.equal(found, wanted), f"seed {seed}, {what}: {found} and not {wanted}"
        del under_way[:count]

    for step in range(STEPS):
        kind, dtype = shared.choice(KINDS), shared.choice(TYPES)
        if shared.random() < 0.1:
            length = shared.randrange(300_000)
        else:
            length = shared.choice([1, 17, 1000, 4096, shared.randrange(1, 40_000)])
        root = shared.randrange(dist.get_world_size())
        what = f"step {step}, {kind.__name__} of {length} {dtype}"
        work, results = kind(memory, step, length, dtype, rank, root)
        under_way.append((what, work, results))
        if len(under_way) > shared.randrange(4):
            settle(shared.randrange(1, len(under_way) + 1))
    settle(len(under_way))
    return memory.again


class Fuzz(unittest.TestCase):
    def test_memory_of_all_kinds_that_comes_and_goes(self) -> None:
        again = 0
        for seed in SEEDS:
            world, transport = 2 + seed % 2, ("shm", "tcp")[seed // 2 % 2]
            with self.subTest(seed=seed, world=world, transport=transport):
                results = ranks.run(world, lambda rank, seed=seed: steps(rank, seed), transport=transport)
                for result in results:
                    self.assertIsInstance(result, int, result)
                    again += result
        self.assertGreater(again, len(SEEDS) * STEPS // 4, "addresses are hardly taken again")
        print(f"{len(SEEDS)} seeds of {STEPS} operations; an address was taken again {again} times")

    def test_what_a_model_has_adopted_is_nobodys_when_the_model_is_gone(self) -> None:
        def body(rank: int) -> None:
            from torch.nn.parallel import DistributedDataParallel

            for round in range(3):
                model = DistributedDataParallel(torch.nn.Linear(3200, 3000), gradient_as_bucket_view=True)
                tensorwire.adopt(model)
                for _ in range(3):
                    model(torch.ones(2, 3200)).sum().backward()
                backend = dist.group.WORLD._get_backend(torch.device("cpu"))
                assert backend._adopted, "nothing was adopted"
                del model
                gc.collect()
                assert not backend._adopted, "the bucket is adopted still"
                # so large that the system gives it the place of what is gone
                for _ in range(5):
                    own = torch.full((9_000_000,), float(rank + round))
                    dist.all_reduce(own)
                    assert bool((own == 2.0 * round + 1.0).all()), own
                    own = None

        for result in ranks.run(2, body):
            self.assertIsNone(result, result)


if __name__ == "__main__":
    unittest.main()
