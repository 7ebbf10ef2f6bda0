"""What PyTorch asks of a backend that is written in Python: every method of its class, each by the way in which PyTorch calls it.

A method that is neither walked here nor in the table of what is not offered fails this, so that a new PyTorch says what it has more.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10DBackend
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ErrorType,
    ReduceScatterOptions,
)

from tests import ranks
from tests.test_backend import check, good

WORLD = 2
CPU = torch.device("cpu")
Group, Backend = Any, Any


def of(rank: int, length: int = 4) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float32) + 10 * rank


BOTH = of(0) + of(1)
LINE = torch.cat([of(0), of(1)])


def reductions(group: Group, backend: Backend, rank: int) -> None:
    own = of(rank)
    assert group.allreduce([own]).wait()
    check(own, BOTH, "allreduce")
    options, own = AllreduceOptions(), of(rank)
    options.reduceOp, options.asyncOp = dist.ReduceOp.MAX, False
    group.allreduce([own], options).wait()
    check(own, of(1), "allreduce of the largest")
    several = [of(rank), of(rank, 7)]
    backend.allreduce_coalesced(several, AllreduceCoalescedOptions()).wait()
    check(several[1], of(0, 7) + of(1, 7), "allreduce_coalesced")
    negated = torch._neg_view(of(rank))
    backend.allreduce([negated], AllreduceOptions()).wait()
    check(negated, -BOTH, "allreduce of what is yet to be negated")
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([2.0]), (3,), check_invariants=True)
    backend.allreduce_sparse([sparse], AllreduceOptions()).wait()
    check(sparse.to_dense(), torch.tensor([2.0, 2.0, 0.0]), "allreduce_sparse")
    own = of(rank)
    group.reduce(own, 1).wait()
    if rank == 1:
        check(own, BOTH, "reduce")
    own, inputs = torch.empty(4), [of(rank) * (r + 1) for r in range(WORLD)]
    group.reduce_scatter([own], [inputs]).wait()
    check(own, BOTH * (rank + 1), "reduce_scatter")
    for call in (backend.reduce_scatter_single, backend._reduce_scatter_base):
        own = torch.empty(4)
        call(own, torch.cat(inputs), ReduceScatterOptions()).wait()
        check(own, BOTH * (rank + 1), call.__name__)
    outputs = [torch.empty(4), torch.empty(4)]
    group.reduce_scatter_single_coalesced(outputs, [torch.cat(inputs), torch.cat(inputs)]).wait()
    check(outputs[1], BOTH * (rank + 1), "reduce_scatter_single_coalesced")


def moves(group: Group, backend: Backend, rank: int) -> None:
    own = of(rank)
    group.broadcast(own, 1).wait()
    check(own, of(1), "broadcast")
    parts = [torch.empty(4) for _ in range(WORLD)]
    group.allgather([parts], [of(rank)]).wait()
    check(torch.cat(parts), LINE, "allgather")
    for call in (group.all_gather_single, backend._allgather_base):
        whole = torch.empty(8)
        call(whole, of(rank)).wait()
        check(whole, LINE, call.__name__)
    lists = [[torch.empty(4) for _ in range(2)] for _ in range(WORLD)]
    group.allgather_coalesced(lists, [of(rank), of(rank) + 1]).wait()
    check(lists[1][1], of(1) + 1, "allgather_coalesced")
    outputs = [torch.empty(8), torch.empty(8)]
    group.all_gather_single_coalesced(outputs, [of(rank), of(rank) + 1]).wait()
    check(outputs[1], LINE + 1, "all_gather_single_coalesced")
    parts = [torch.empty(4) for _ in range(WORLD)]
    group.gather(parts if rank == 1 else [], of(rank), 1).wait()
    if rank == 1:
        check(torch.cat(parts), LINE, "gather")
    own = torch.empty(4)
    group.scatter(own, [of(0), of(1)] if rank == 0 else [], 0).wait()
    check(own, of(rank), "scatter")
    gives = torch.cat([of(rank) + to for to in range(WORLD)])
    wanted = torch.cat([of(other) + rank for other in range(WORLD)])
    for call in (group.all_to_all_single, backend.alltoall_base):
        gets = torch.empty(8)
        call(gets, gives, [], []).wait()
        check(gets, wanted, call.__name__)
    parts = [torch.empty(4) for _ in range(WORLD)]
    group.alltoall(parts, list(gives.split(4))).wait()
    check(torch.cat(parts), wanted, "alltoall")
    # nothing is written behind an output that is too small, and nobody waits for who asked for it
    whole = torch.zeros(8)
    for call in (
        lambda: group.all_to_all_single(whole[:4], gives, [], []),
        lambda: group.all_to_all_single(whole.view(torch.int32), gives, [], []),
        lambda: group.alltoall([*parts, own], list(gives.split(4))),
        lambda: group.alltoall([part[:3] for part in parts], list(gives.split(4))),
    ):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError("an output that does not fit was taken")
    check(whole, torch.zeros(8), "all_to_all_single into what is too small")


def messages(group: Group, backend: Backend, rank: int) -> None:
    if rank == 0:
        group.send([of(3)], 1, 5).wait()
        group.send([of(4)], 1, 6).wait()
    else:
        own = torch.empty(4)
        group.recv([own], 0, 5).wait()
        check(own, of(3), "recv")
        work = group.recv_anysource([own], 6)
        work.wait()
        check(own, of(4), "recv_anysource")
        assert work._source_rank() == 0
    group.barrier().wait()
    group.monitored_barrier(timedelta(seconds=10), True)


def works(group: Group, backend: Backend, rank: int) -> None:
    """What is started is waited for, asked, and has a future; several are one."""
    tensors = [of(rank) for _ in range(4)]
    started = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in started:
        assert work.wait(timedelta(seconds=10)) and work.is_completed() and work.is_success()
        assert work.exception() is None
    check(tensors[3], BOTH, "operations under way together")
    own = of(rank)
    future = dist.all_reduce(own, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    check(doubled.wait(), BOTH * 2, "what follows a future")
    own, peer, other = of(rank), 1 - rank, torch.empty(4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, other, peer)]):
        work.wait()
    check(other, of(peer), "batch_isend_irecv")
    group._start_coalescing(CPU)
    several = [of(rank), of(rank) + 1]
    for own in several:
        group.allreduce([own])
    group._end_coalescing(CPU).wait()
    check(several[1], BOTH + 2, "what is coalesced")
    backend._wait_for_pending_works()


def what_it_is(group: Group, backend: Backend, rank: int) -> None:
    assert isinstance(backend, C10DBackend) and not isinstance(backend, dist.ProcessGroup)
    assert (group.rank(), group.size()) == (backend.rank(), backend.size()) == (rank, WORLD)
    assert backend.name() == backend._get_backend_name() == "tensorwire"
    assert backend.options.backend == "tensorwire" and backend.options._timeout == timedelta(seconds=30)
    assert backend.bound_device_id is None
    assert backend.supports_splitting and backend.supports_coalescing and backend.supports_shrinking
    assert backend.supports_tensor_alloc(CPU)
    for name in ("supports_reconfigure", "supports_window", "_supports_time_estimate", "supports_time_estimate"):
        # a table of PyTorch's own, which its versions have more or less of
        assert getattr(backend, name, False) is False, name
    for name in ("supports_abort_hooks", "supports_completion_hooks"):
        assert getattr(backend, name, False) is False, name
    assert not (getattr(group, "supports_window", False) or getattr(group, "supports_reconfigure", False))
    tensor = backend.allocate_tensor(6, dtype=torch.float64, device=CPU)
    assert tensor.shape == (6,) and tensor.dtype == torch.float64
    assert backend.memory_stats()["registered_bytes"] >= tensor.nbytes
    assert backend.get_error() == ErrorType.SUCCESS
    backend._set_sequence_number_for_group()
    before = backend._get_sequence_number_for_group()
    group.barrier().wait()
    assert backend._get_sequence_number_for_group() == before + 1
    backend.eager_connect_single_device(CPU)


def other_groups(group: Group, backend: Backend, rank: int) -> None:
    """Groups that are made of a group."""
    for made in (
        group.split_group([1, 0], timeout=timedelta(seconds=10)),
        group.merge_remote_group(dist.PrefixStore("merged", dist.distributed_c10d._get_default_store()), WORLD),
    ):
        own = of(rank)
        made.allreduce([own]).wait()
        check(own, BOTH, made.group_name)
        made.shutdown()
    left = backend.shrink([1 - rank])
    assert left.size() == 1 and left.rank() == 0
    own = of(rank)
    left.allreduce([own], AllreduceOptions()).wait()
    check(own, of(rank), "an allreduce of one")
    left.shutdown()


def timeouts_and_ends(group: Group, backend: Backend, rank: int) -> None:
    group.set_timeout(timedelta(milliseconds=300))
    if rank == 0:
        try:
            group.barrier().wait()
        except RuntimeError as error:
            assert "its timeout of 0.3 s has passed" in str(error), error
        else:
            raise AssertionError("a barrier of one")
        assert backend.get_error() == ErrorType.TIMEOUT
    else:
        dist.distributed_c10d._get_default_store().wait(["timed out"], timedelta(seconds=20))
    dist.distributed_c10d._get_default_store().set("timed out", "")
    group.abort()
    try:
        group.barrier().wait()
    except dist.DistBackendError as error:
        assert "was destroyed" in str(error), error
    else:
        raise AssertionError("a group that was aborted goes on")
    assert backend.get_error() == ErrorType.SUCCESS
    group.shutdown()


PARTS: list[Callable[[Group, Backend, int], None]] = [
    what_it_is, reductions, moves, messages, works, other_groups, timeouts_and_ends,
]  # fmt: skip

#: What a backend may leave out, and what PyTorch says then.
NOT_OFFERED: dict[str, Callable[[Group, Backend], Any]] = {
    "_start_time_estimate": lambda group, backend: backend._start_time_estimate(),
    "_end_time_estimate": lambda group, backend: backend._end_time_estimate(),
    "_register_on_completion_hook": lambda group, backend: group._register_on_completion_hook(lambda _: None),
    "_enable_collectives_timing": lambda group, backend: group._enable_collectives_timing(),
    "get_reconfigure_handle": lambda group, backend: group.get_reconfigure_handle(),
    "reconfigure": lambda group, backend: group.reconfigure(torch._C._distributed_c10d.ReconfigureOptions()),
    "new_window": lambda group, backend: backend.new_window(),
    "suspend": lambda group, backend: backend.suspend(),
    "resume": lambda group, backend: backend.resume(),
    "mem_allocator": lambda group, backend: backend.mem_allocator,
    # PyTorch does not hand these on to a backend in Python
    "gather_single": lambda group, backend: backend.gather_single(torch.empty(8), of(0)),
    "register_abort_hook": lambda group, backend: backend.register_abort_hook(1, lambda: None),
    "unregister_abort_hook": lambda group, backend: backend.unregister_abort_hook(1),
}
#: PyTorch's own, which does something of its own or nothing.
ITS_OWN = {
    "Options", "_add_ephemeral_timeout", "_pybind11_conduit_v1_", "_set_group_uid", "setUsePgForSymmMemRendezvous",
    "gather_into_tensor",
}  # fmt: skip
#: What the parts walk.
WALKED = {
    "name", "rank", "size", "options", "bound_device_id", "_get_backend_name", "supports_splitting", "supports_coalescing",
    "supports_shrinking", "supports_tensor_alloc", "supports_reconfigure", "supports_window", "_supports_time_estimate",
    "supports_time_estimate", "supports_abort_hooks", "supports_completion_hooks", "allocate_tensor", "memory_stats", "get_error",
    "_set_sequence_number_for_group", "_get_sequence_number_for_group", "eager_connect_single_device",
    "allreduce", "allreduce_coalesced", "allreduce_sparse", "reduce", "reduce_scatter", "reduce_scatter_single",
    "_reduce_scatter_base", "reduce_scatter_single_coalesced", "broadcast", "allgather", "all_gather_single", "_allgather_base",
    "allgather_coalesced", "all_gather_single_coalesced", "gather", "scatter", "all_to_all_single", "alltoall_base", "alltoall",
    "send", "recv", "recv_anysource", "barrier", "monitored_barrier", "_start_coalescing", "_end_coalescing",
    "_wait_for_pending_works", "split", "merge", "shrink", "set_timeout", "abort", "shutdown",
}  # fmt: skip


class Contract(unittest.TestCase):
    def test_every_method(self) -> None:
        def body(rank: int) -> None:
            group = dist.group.WORLD
            for part in PARTS:
                part(group, group._get_backend(CPU), rank)

        for transport in ("shm", "tcp"):
            good(self, ranks.run(WORLD, body, transport=transport))

    def test_what_is_not_offered_says_so(self) -> None:
        def body(_rank: int) -> dict[str, str]:
            group, said = dist.group.WORLD, {}
            for name, call in NOT_OFFERED.items():
                if hasattr(C10DBackend, name):
                    try:
                        call(group, group._get_backend(CPU))
                    except RuntimeError as error:
                        said[name] = str(error)
                    else:
                        said[name] = "nothing"
            return said

        for said in good(self, ranks.run(WORLD, body)):
            for name, text in said.items():
                self.assertRegex(text, "tensorwire", name)

    def test_no_method_is_forgotten(self) -> None:
        there = {name for name in dir(C10DBackend) if not name.startswith("__")}
        self.assertEqual(there - WALKED - set(NOT_OFFERED) - ITS_OWN, set(), "what of PyTorch's is new")


if __name__ == "__main__":
    unittest.main()
