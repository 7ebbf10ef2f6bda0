"""What PyTorch builds on DDP: hooks, optimizers of parts, models whose gradients come in other ways; to the bits of gloo."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import tensorwire.torch as tensorwire
from tests import ranks
from tests.test_backend import good, model, train, weights

BUCKET_MB = 0.02


def wrapped(module: nn.Module, **options: Any) -> DistributedDataParallel:
    given = {"gradient_as_bucket_view": True, "bucket_cap_mb": BUCKET_MB, **options}
    return DistributedDataParallel(module, **given)


def register(ddp: DistributedDataParallel, hook: Any, state: Any) -> None:
    """Gives the model a hook; over tensorwire, behind adopt."""
    if dist.get_backend() == "tensorwire":
        tensorwire.adopt(ddp, hook, state)
    else:
        ddp.register_comm_hook(state, hook)


def hooked(
    rank: int, hook: Any, state: Callable[[], Any] = lambda: None, adopts: bool = True, bucket_mb: float = BUCKET_MB
) -> str:
    ddp = wrapped(model(), bucket_cap_mb=bucket_mb)
    if adopts:
        register(ddp, hook, state())
    else:
        ddp.register_comm_hook(state(), hook)
    train(ddp, rank, 6)
    return weights(ddp)


# without annotations: PyTorch compares them, and here they would be texts
def halved(state, bucket):
    """A user's hook: has a state, and does something to what comes back."""
    state["calls"] += 1
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0].mul_(0.5))


def mine(rank: int) -> str:
    state = {"calls": 0}
    found = hooked(rank, halved, lambda: state)
    assert state["calls"] >= 6, state
    return found


def power(rank: int) -> str:
    def state() -> powerSGD_hook.PowerSGDState:
        return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)

    # one bucket: it starts operations when others are over, which with several may be in another order on another rank
    return hooked(rank, powerSGD_hook.powerSGD_hook, state, bucket_mb=25.0)


def zero(rank: int) -> str:
    ddp = wrapped(model())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    torch.manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=1)
    if rank == 1:
        assert len(optimizer.state_dict()["state"]) == 6
    return weights(ddp)


def accumulated(rank: int) -> str:
    """Gradients of three batches add up before they go anywhere."""
    ddp = wrapped(model())
    if dist.get_backend() == "tensorwire":
        tensorwire.adopt(ddp)
    else:
        ddp.register_comm_hook(None, plain)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        with ddp.no_sync():
            for _ in range(2):
                ddp(torch.randn(8, 64)).square().mean().backward()
        ddp(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    return weights(ddp)


def plain(_state, bucket):
    """As adopt has it: PyTorch's own way divides where this one multiplies."""
    work = dist.all_reduce(bucket.buffer().mul_(0.5), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


class Branches(nn.Module):
    """A model of which a rank uses a part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(64, 12) for _ in range(4))

    def forward(self, x: torch.Tensor, at: int) -> torch.Tensor:
        return self.branches[at](x)


def unused(rank: int) -> str:
    ddp = wrapped(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)
        ddp(torch.randn(8, 64), (step + rank) % 4).square().mean().backward()
        optimizer.step()
    return weights(ddp)


class Twice(nn.Module):
    """A model that uses a layer twice, and computes it anew for the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()
        self.again = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x = checkpoint(self.inner, x, use_reentrant=False)
        return self.again(self.again(x))


def static(rank: int) -> str:
    torch.manual_seed(1)
    ddp = wrapped(Twice(), static_graph=True)
    train(ddp, rank, 6)
    return weights(ddp)


def buffers(rank: int) -> str:
    """Buffers, which are rank 0's at every step, and ranks that have more batches than others."""
    torch.manual_seed(2)
    ddp = wrapped(nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 12)))
    torch.manual_seed(rank)
    with ddp.join():
        for _ in range(3 + rank):
            ddp(torch.randn(8, 64)).square().mean().backward()
    return weights(ddp)


WAYS: dict[str, Callable[[int], str]] = {
    "fp16_compress_hook": lambda rank: hooked(rank, default_hooks.fp16_compress_hook, lambda: None),
    "bf16_compress_hook": lambda rank: hooked(rank, default_hooks.bf16_compress_hook, lambda: None),
    "fp16_compress_hook without adopt": lambda rank: hooked(rank, default_hooks.fp16_compress_hook, adopts=False),
    "a hook of the user's": mine,
    "powerSGD": power,
    "ZeroRedundancyOptimizer": zero,
    "no_sync": accumulated,
    "find_unused_parameters": unused,
    "static_graph": static,
    "buffers and join": buffers,
}


def all_ways(rank: int) -> dict[str, str]:
    return {name: way(rank) for name, way in WAYS.items()}


class Ddp(unittest.TestCase):
    maxDiff = None

    def test_every_way_has_the_bits_of_gloo(self) -> None:
        wanted = good(self, ranks.run(2, all_ways, backend="gloo"))[0]
        for transport in ("shm", "tcp"):
            for found in good(self, ranks.run(2, all_ways, transport=transport)):
                self.assertEqual(found, wanted, transport)

    def test_by_the_name_of_the_device(self) -> None:
        def body(rank: int) -> tuple[str, str]:
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            group = dist.new_group([0, 1], backend="cpu:tensorwire")
            own = torch.full((3,), float(rank))
            dist.all_reduce(own, group=group)
            assert own[0] == 1.0
            objects: list[Any] = [None, None]
            dist.all_gather_object(objects, rank)
            assert objects == [0, 1]
            return backend.name(), hooked(rank, plain)

        names = {found[0] for found in good(self, ranks.run(2, body, backend="cpu:tensorwire"))}
        self.assertEqual(names, {"tensorwire"})

    def test_with_pytorchs_checks_in_detail(self) -> None:
        ways = ("a hook of the user's", "no_sync", "find_unused_parameters")

        def trained(rank: int) -> dict[str, str]:
            return {name: WAYS[name](rank) for name in ways}

        def body(rank: int) -> tuple[dict[str, str], str, int]:
            found, wrong = trained(rank), ""
            own = tensorwire.empty(10).fill_(1.0)
            dist.all_reduce(own)
            assert own[0] == 2.0
            in_place = tensorwire.stats()["in_place"]
            try:
                dist.all_reduce(torch.ones(4 + rank))
            except RuntimeError as error:
                wrong = str(error)
            return found, wrong, in_place

        # as gloo has it without the checks: with them it dies of PyTorch 2.15's own
        wanted = good(self, ranks.run(2, trained, backend="gloo"))[0]
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
        try:
            for found, wrong, in_place in good(self, ranks.run(2, body)):
                self.assertEqual(found, wanted)
                self.assertGreater(in_place, 0)
                # PyTorch's own check finds it, before the operation begins
                self.assertIn("Detected mismatch between collectives on ranks", wrong)
        finally:
            del os.environ["TORCH_DISTRIBUTED_DEBUG"]
            dist.set_debug_level_from_env()


if __name__ == "__main__":
    unittest.main()
