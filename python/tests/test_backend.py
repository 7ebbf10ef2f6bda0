"""The backend of torch.distributed: every operation, DDP and FSDP2 beside gloo, and what goes wrong."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import tempfile
import threading
import time
import unittest
import unittest.mock
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import tensorwire.torch as tensorwire
from tests import ranks

LONG = bool(os.environ.get("TENSORWIRE_LONG"))


def good(test: unittest.TestCase, results: list[Any]) -> list[Any]:
    """Returns results that are no errors."""
    for rank, result in enumerate(results):
        if isinstance(result, str) and "Traceback" in result:
            test.fail(f"rank {rank}: {result}")
    return results


def check(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    assert torch.equal(found, wanted), f"{what}: {found} and not {wanted}"


def operations(rank: int) -> None:
    """Every collective operation, on lengths that take one chunk and many."""
    world = dist.get_world_size()
    for length in (1, 1000, 300_001):
        given = [torch.arange(length, dtype=torch.float32) % 5 + r for r in range(world)]
        own = given[rank].clone()
        dist.all_reduce(own)
        check(own, sum(given[1:], given[0]), "all_reduce")
        own = given[rank].clone()
        dist.broadcast(own, src=world - 1)
        check(own, given[world - 1], "broadcast")
        own = given[rank].clone()
        dist.reduce(own, dst=0)
        if rank == 0:
            check(own, sum(given[1:], given[0]), "reduce")
        parts = [torch.empty(length) for _ in range(world)]
        dist.all_gather(parts, given[rank])
        check(torch.stack(parts), torch.stack(given), "all_gather")
        whole = torch.empty(world * length)
        dist.all_gather_into_tensor(whole, given[rank])
        check(whole, torch.cat(given), "all_gather_into_tensor")
        parts = [torch.empty(length) for _ in range(world)]
        dist.gather(given[rank], parts if rank == 0 else None, dst=0)
        if rank == 0:
            check(torch.stack(parts), torch.stack(given), "gather")
        own = torch.empty(length)
        dist.scatter(own, given if rank == 1 else None, src=1)
        check(own, given[rank], "scatter")
        own = torch.empty(length)
        dist.reduce_scatter(own, [part * (rank + 1) for part in given])
        check(own, given[rank] * sum(range(1, world + 1)), "reduce_scatter")
        own = torch.empty(length)
        dist.reduce_scatter_tensor(own, torch.cat(given) * (rank + 1), op=dist.ReduceOp.SUM)
        check(own, given[rank] * sum(range(1, world + 1)), "reduce_scatter_tensor")
        whole = torch.empty(world * length)
        dist.all_to_all_single(whole, torch.cat([given[rank] + 10 * to for to in range(world)]))
        check(whole, torch.cat([part + 10 * rank for part in given]), "all_to_all_single")
        parts = [torch.empty(length) for _ in range(world)]
        dist.all_to_all(parts, [given[rank] + 10 * to for to in range(world)])
        check(torch.stack(parts), torch.stack([part + 10 * rank for part in given]), "all_to_all")
    rows = [r + 1 for r in range(world)]
    uneven = torch.empty(world * (rank + 1), 2)
    sent = torch.full((sum(rows), 2), float(rank))
    dist.all_to_all_single(uneven, sent, [rank + 1] * world, rows)
    check(uneven[:, 0], torch.arange(world).float().repeat_interleave(rank + 1), "uneven all_to_all")
    # some have sent messages before, and parts of some have one length
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(torch.ones(3), 1 - rank)
    counts = [[5 if a == b == 1 else 2 for b in range(world)] for a in range(world)]
    parts = [torch.empty(counts[r][rank]) for r in range(world)]
    dist.all_to_all(parts, [torch.full((count,), float(rank)) for count in counts[rank]])
    check(torch.cat(parts), torch.cat([torch.full((counts[r][rank],), float(r)) for r in range(world)]), "all_to_all of some")
    strided = torch.zeros(6, 4).t()[:, ::2]
    strided.copy_(torch.full((4, 3), float(rank)))
    dist.all_reduce(strided)
    check(strided, torch.full((4, 3), float(sum(range(world)))), "a tensor with gaps")
    dist.barrier()


def types(rank: int) -> None:
    """Every reduction of every type that has it."""
    world = dist.get_world_size()
    floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    integers = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
    reductions: dict[Any, Any] = {
        dist.ReduceOp.SUM: lambda s: s.sum(0),
        dist.ReduceOp.PRODUCT: lambda s: s.prod(0),
        dist.ReduceOp.MIN: lambda s: s.amin(0),
        dist.ReduceOp.MAX: lambda s: s.amax(0),
    }
    given = torch.tensor([[1, 2, 3, 0], [2, 1, 2, 3], [3, 3, 1, 1]])[:world]
    for dtype in floats + integers:
        for op, wanted in reductions.items():
            own = given[rank].to(dtype).clone()
            dist.all_reduce(own, op=op)
            check(own, wanted(given).to(dtype), f"{op} of {dtype}")
    for dtype in floats:
        own = given[rank].to(dtype) * world
        dist.all_reduce(own, op=dist.ReduceOp.AVG)
        check(own, given.sum(0).to(dtype), f"the mean of {dtype}")
    for dtype in [*integers, torch.bool]:
        bits = given.to(dtype)
        for op, by in (
            (dist.ReduceOp.BAND, torch.bitwise_and),
            (dist.ReduceOp.BOR, torch.bitwise_or),
            (dist.ReduceOp.BXOR, torch.bitwise_xor),
        ):
            wanted = bits[0]
            for other in bits[1:]:
                wanted = by(wanted, other)
            own = bits[rank].clone()
            dist.all_reduce(own, op=op)
            check(own, wanted, f"{op} of {dtype}")
    own = given[rank] * (1 + 1j)
    dist.all_reduce(own)
    check(own, given.sum(0) * (1 + 1j), "a complex sum")
    _put_off(rank)
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 3]]), torch.tensor([1.0, 2.0]), (5,))
    dist.all_reduce(sparse)
    wanted = torch.zeros(5)
    wanted[:world] += 1
    wanted[3] += 2 * world
    check(sparse.to_dense(), wanted, "a sparse sum")


def _put_off(rank: int) -> None:
    """What PyTorch has yet to conjugate: others get what a tensor says, and what it is given is what it says."""
    world = dist.get_world_size()
    plain = torch.arange(6).reshape(2, 3) + 1j * (rank + 1)

    def said(r: int) -> torch.Tensor:
        return torch.arange(6).reshape(2, 3) - 1j * (r + 1)

    def conjugated(of: torch.Tensor | None = None) -> torch.Tensor:
        tensor = torch.empty_like(plain).conj() if of is None else of.clone().conj()
        assert tensor.is_conj() and tensor.is_contiguous()
        return tensor

    # PyTorch refuses them itself in its other calls
    parts = [conjugated() for _ in range(world)]
    dist.gather(conjugated(plain), parts if rank == 0 else None, dst=0)
    if rank == 0:
        check(torch.stack(parts), torch.stack([said(r) for r in range(world)]), "a conjugated gather")


def messages(rank: int) -> None:
    """Between two ranks, by tags, from anybody; objects; several at once; futures; a part of the ranks."""
    world = dist.get_world_size()
    if rank == 0:
        dist.send(torch.full((3,), 1.0), 1, tag=1)
        dist.send(torch.full((300_000,), 2.0), 1, tag=2)
        heard = set()
        for _ in range(world - 1):
            own = torch.empty(2)
            sender = dist.recv(own, tag=9)
            check(own, torch.full((2,), float(sender)), "from anybody")
            heard.add(sender)
        assert heard == set(range(1, world)), heard
    else:
        if rank == 1:
            long, short = torch.empty(300_000), torch.empty(3)
            # in another order than they were sent
            dist.recv(long, 0, tag=2)
            dist.recv(short, 0, tag=1)
            assert long[-1] == 2 and short[0] == 1
        dist.send(torch.full((2,), float(rank)), 0, tag=9)
    next_one, last = (rank + 1) % world, (rank - 1) % world
    own = torch.empty(10)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((10,), float(rank)), next_one),
            dist.P2POp(dist.irecv, own, last),
        ]
    ):
        work.wait()
    assert own[0] == last
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert [each["rank"] for each in objects] == list(range(world))
    said = ["one", {"two": 2}] if rank == 0 else [None, None]
    dist.broadcast_object_list(said, src=0)
    assert said == ["one", {"two": 2}]
    tensors = [torch.full((100,), float(rank + at)) for at in range(5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for at, tensor in enumerate(tensors):
        assert tensor[0] == sum(r + at for r in range(world)), tensor[0]
    work = dist.all_reduce(torch.ones(5), async_op=True)
    assert work.get_future().wait()[0][0] == world
    while not work.is_completed():
        time.sleep(0.001)
    assert work.is_success() and work.exception() is None
    group = dist.new_group([0, 1])
    if rank < 2:
        own = torch.ones(4)
        dist.all_reduce(own, group=group)
        assert own[0] == 2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 12))


def train(module: nn.Module, rank: int, steps: int, each: Any = None) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    for step in range(steps):
        x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        if each is not None:
            each(step)


def weights(module: nn.Module) -> str:
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in whole)).hexdigest()


def ddp(rank: int, adopt: bool = False) -> tuple[str, list[int]]:
    """Returns a hash of the weights, and the bytes copied after each step."""
    module = model()
    wrapped = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True, bucket_cap_mb=0.02)
    copied: list[int] = []
    if adopt:
        tensorwire.adopt(wrapped)
    is_ours = dist.get_backend() == "tensorwire"
    train(wrapped, rank, 5, lambda _: copied.append(tensorwire.stats()["copied_bytes"] if is_ours else 0))
    return weights(module), copied


def fsdp(rank: int) -> tuple[str, list[int]]:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    module = model()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    is_ours = dist.get_backend() == "tensorwire"
    for part in module.modules():
        if is_ours and isinstance(part, FSDPModule):
            part.set_allocate_memory_from_process_group_for_comm(True)
    copied: list[int] = []
    group = mesh.get_group()
    train(module, rank, 5, lambda _: copied.append(tensorwire.stats(group)["copied_bytes"] if is_ours else 0))
    return weights(module), copied


class Operations(unittest.TestCase):
    def test_every_operation(self) -> None:
        for world, transport in ((2, "shm"), (3, "shm"), (2, "tcp"), (3, "tcp")):
            with self.subTest(world=world, transport=transport):
                good(self, ranks.run(world, operations, transport=transport))

    def test_every_type(self) -> None:
        good(self, ranks.run(2, types))
        good(self, ranks.run(3, types))

    def test_messages_objects_and_groups(self) -> None:
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                good(self, ranks.run(3, messages, transport=transport))

    def test_options_choose_the_transport(self) -> None:
        def body(_rank: int) -> str:
            return dist.group.WORLD._get_backend(torch.device("cpu")).transport

        found = good(self, ranks.run(2, body))
        self.assertEqual(found, ["shm: all members are on one host"] * 2)
        found = good(self, ranks.run(2, body, options=tensorwire.Options(transport="tcp")))
        self.assertEqual(found, ["tcp: it was asked for"] * 2)
        wrong = ranks.run(2, body, transport="carrier-pigeon")
        self.assertIn("there is no transport 'carrier-pigeon'", wrong[0])


def offer(rank: int, at: int = 0) -> dict[str, Any]:
    from tensorwire.torch.rendezvous import _host, _process

    return {"at": at, "rank": rank, "name": "here", "host": _host(), "process": _process()}


def gathered(store: dist.Store, rank: int, world: int, at: int, timeout: float) -> Any:
    from tensorwire.torch.rendezvous import _Gathering

    return _Gathering(store, rank, world, timedelta(seconds=timeout)).gather(offer(rank, at))


def left_by_the_dead(rank: int) -> str:
    """Returns the offer of a process that has ended."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(there, json.dumps(offer(rank) | {"nonce": "the dead one's"}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(here, 4096).decode()
    os.close(here)
    os.close(there)
    return said


class Rendezvous(unittest.TestCase):
    def test_what_an_earlier_attempt_left_in_the_store_is_told_apart(self) -> None:
        world, store = 3, dist.HashStore()
        attempts = []
        for late in (0, 1, 2):
            found: dict[int, Any] = {}

            def member(rank: int, late: int = late, found: dict[int, Any] = found) -> None:
                # one comes when the others have called it as it was before
                time.sleep(0.05 if rank == late else 0.0)
                found[rank] = gathered(store, rank, world, late, 30.0)

            members = [threading.Thread(target=member, args=(rank,)) for rank in range(world)]
            for each in members:
                each.start()
            for each in members:
                each.join()
            self.assertEqual(len(found), world)
            self.assertEqual(found[0], found[1])
            self.assertEqual(found[0], found[2])
            attempt, offers = found[0]
            self.assertEqual([offer["at"] for offer in offers], [late] * world)
            attempts.append(attempt)
        self.assertEqual(len(set(attempts)), 3)

    def test_who_does_not_answer_ends_it_at_the_time_out(self) -> None:
        store = dist.HashStore()
        store.set("offer/1", left_by_the_dead(1))
        with self.assertRaisesRegex(dist.DistStoreError, "rank 1 on here has not answered"):
            gathered(store, 0, 2, 0, 0.3)
        with self.assertRaisesRegex(dist.DistStoreError, "rank 0 has not come"):
            gathered(dist.HashStore(), 1, 2, 0, 0.3)

    def test_who_has_died_and_is_not_followed_by_another_is_lost(self) -> None:
        store = dist.HashStore()
        store.set("offer/1", left_by_the_dead(1))
        with self.assertRaisesRegex(dist.DistBackendError, "rank 1 on here is lost: process .* died before"):
            gathered(store, 0, 3, 0, 30.0)
        store.set("offer/0", left_by_the_dead(0))
        with self.assertRaisesRegex(dist.DistBackendError, "rank 0 on here is lost"):
            gathered(store, 1, 2, 0, 30.0)
        # where a launcher starts another one in its place it is none of the others' business
        store.set("offer/0", store.get("offer/0").decode().replace("the dead", "another dead"))
        with unittest.mock.patch.dict(os.environ, TORCHELASTIC_RUN_ID="job"):
            with self.assertRaisesRegex(dist.DistStoreError, "rank 0 on here has not called this process"):
                gathered(store, 1, 2, 0, 3.0)
            # nor is what those before have said of it, on another host too
            elsewhere = json.loads(store.get("offer/0")) | {"host": "another", "nonce": "of another host"}
            for said in (store.get("offer/0").decode(), json.dumps(elsewhere)):
                store.set("offer/0", said)
                store.set(f"dead/{json.loads(said)['nonce']}", "rank 0 is lost")
                with self.assertRaisesRegex(dist.DistStoreError, "rank 0 on here has not called this process"):
                    gathered(store, 1, 2, 0, 1.0)


class Training(unittest.TestCase):
    def test_ddp_has_the_bits_of_gloo(self) -> None:
        wanted = good(self, ranks.run(2, ddp, backend="gloo"))[0][0]
        for transport in ("shm", "tcp"):
            for adopt in (False, True):
                with self.subTest(transport=transport, adopt=adopt):
                    results = good(self, ranks.run(2, lambda r, a=adopt: ddp(r, a), transport=transport))
                    self.assertEqual([bits for bits, _ in results], [wanted] * 2)
                    if adopt:
                        for _, copied in results:
                            self.assertEqual(copied[4], copied[2], "bytes are copied after the third step")

    def test_ddp_has_the_same_bits_everywhere(self) -> None:
        # each alone: PyTorch's own means of three divide, where a hook multiplies
        for world, adopt in ((3, False), (3, True), (4, False), (4, True)):
            found = set()
            for transport in ("shm", "tcp", "shm"):
                results = good(self, ranks.run(world, lambda r, a=adopt: ddp(r, a), transport=transport))
                found.update(bits for bits, _ in results)
                for _, copied in results if adopt else []:
                    self.assertEqual(copied[4], copied[2], f"{world} ranks over {transport} copy")
            self.assertEqual(len(found), 1, f"{world} ranks")

    def test_fsdp2_has_the_bits_of_gloo_and_copies_nothing(self) -> None:
        wanted = good(self, ranks.run(2, fsdp, backend="gloo"))[0][0]
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                for bits, copied in good(self, ranks.run(2, fsdp, transport=transport)):
                    self.assertEqual(bits, wanted)
                    self.assertEqual(copied[4], copied[2], "bytes are copied after the third step")

    def test_tensor_parallel_checkpoints_and_functional_collectives(self) -> None:
        def body(rank: int) -> None:
            import torch.distributed._functional_collectives as functional
            import torch.distributed.checkpoint as dcp
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            mesh = dist.init_device_mesh("cpu", (2,))
            torch.manual_seed(0)
            plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            torch.manual_seed(0)
            cut = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            parallelize_module(cut, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            torch.manual_seed(5)
            x = torch.randn(3, 8)
            torch.testing.assert_close(cut(x), plain(x))
            cut(x).sum().backward()
            folder = [tempfile.mkdtemp() if rank == 0 else ""]
            dist.broadcast_object_list(folder)
            state = cut.state_dict()
            kept = {name: tensor.full_tensor().clone() for name, tensor in state.items() if hasattr(tensor, "full_tensor")}
            dcp.save(state, checkpoint_id=folder[0])
            with torch.no_grad():
                for parameter in cut.parameters():
                    parameter.zero_()
            state = cut.state_dict()
            dcp.load(state, checkpoint_id=folder[0])
            for name, wanted in kept.items():
                check(state[name].full_tensor(), wanted, name)

            def sums(x: torch.Tensor) -> torch.Tensor:
                return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

            compiled = torch.compile(sums, fullgraph=True, backend="aot_eager")
            check(compiled(torch.ones(4)), torch.full((4,), 5.0), "compiled")

        good(self, ranks.run(2, body))


class Faults(unittest.TestCase):
    """Whoever is left raises within five seconds, and says whom it waited for."""

    def raised(self, body: Any) -> tuple[str, float]:
        begun = time.monotonic()
        try:
            body()
        except dist.DistBackendError as error:
            return str(error), time.monotonic() - begun
        return "nothing was raised", 0.0

    def test_ranks_that_call_different_things_all_learn_it(self) -> None:
        def body(rank: int) -> tuple[str, float]:
            if rank == 1:
                return self.raised(lambda: dist.broadcast(torch.ones(8), src=0))
            return self.raised(lambda: dist.all_reduce(torch.ones(8)))

        for said, _ in good(self, ranks.run(3, body)):
            self.assertIn("all_reduce(32 bytes of f32, sum)", said)
            self.assertIn("broadcast(32 bytes of float32, root 0)", said)

        def shapes(rank: int) -> tuple[str, float]:
            return self.raised(lambda: dist.all_reduce(torch.ones(8 + rank)))

        for said, _ in good(self, ranks.run(2, shapes)):
            self.assertIn("32 bytes", said)
            self.assertIn("36 bytes", said)

    def test_a_rank_that_never_comes_ends_the_others(self) -> None:
        def body(rank: int) -> str:
            try:
                dist.new_group([0, 1], timeout=timedelta(seconds=2)) if rank == 0 else time.sleep(0.5)
            except RuntimeError as error:
                return str(error)
            return "nothing was raised"

        begun = time.monotonic()
        said = good(self, ranks.run(2, body))[0]
        self.assertNotEqual(said, "nothing was raised")
        self.assertLess(time.monotonic() - begun, 15.0)

    def test_a_fork_cannot_use_the_group_and_ends(self) -> None:
        def body(_rank: int) -> tuple[int, str]:
            dist.all_reduce(torch.ones(4))
            here, there = os.pipe()
            child = os.fork()
            if child == 0:
                said, _ = self.raised(lambda: dist.all_reduce(torch.ones(4)))
                os.write(there, said.encode())
                gc.collect()
                os._exit(0)
            os.close(there)
            said = os.read(here, 4096).decode()
            _, status = os.waitpid(child, 0)
            dist.all_reduce(torch.ones(4))
            return status, said

        for status, said in good(self, ranks.run(2, body)):
            self.assertEqual(status, 0)
            self.assertIn("fork", said)

    def test_groups_come_and_go(self) -> None:
        def held() -> tuple[int, int]:
            with open("/proc/self/status") as file:
                resident = next(line for line in file if line.startswith("VmRSS"))
            threads = len(os.listdir("/proc/self/task"))
            return len(os.listdir("/proc/self/fd")) + threads, int(resident.split()[1])

        def body(_rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
            def one() -> None:
                group = dist.new_group([0, 1])
                own = torch.ones(10)
                work = dist.all_reduce(own, group=group, async_op=True)
                work.wait()
                dist.destroy_process_group(group)

            for _ in range(10):
                one()
            before = held()
            for _ in range(990 if LONG else 90):
                one()
            gc.collect()
            # a thread that ends may be there for a moment
            end = time.monotonic() + 30.0
            while (after := held())[0] > before[0] + 2 and time.monotonic() < end:
                time.sleep(0.02)
            return before, after

        for before, after in good(self, ranks.run(2, body)):
            self.assertLessEqual(after[0], before[0] + 2, "descriptors and threads")
            self.assertLess(after[1] - before[1], 30_000, "KiB of memory")


if __name__ == "__main__":
    unittest.main()
