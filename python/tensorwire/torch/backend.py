"""The backend ``tensorwire`` of ``torch.distributed``.

PyTorch calls its methods with tensors; each becomes an operation of a communicator, on the addresses of their memory. This is
the one file that knows what PyTorch calls private.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, ErrorType, ReduceOp
from torch._C._distributed_c10d import Backend as C10DBackend
from torch._C._distributed_c10d import Work as C10DWork

from tensorwire import _native
from tensorwire.torch import _tensors
from tensorwire.torch.rendezvous import Settings, ask, meet

NAME = "tensorwire"

_ELEMENTS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
}
#: Of the same bits: what is added up is the same.
_WRAPPING = {torch.uint16: "i16", torch.uint32: "i32", torch.uint64: "i64"}
_COMPLEX = {torch.complex64: "f32", torch.complex128: "f64"}

_FOLDS = {
    ReduceOp.RedOpType.SUM: "sum",
    ReduceOp.RedOpType.AVG: "avg",
    ReduceOp.RedOpType.PRODUCT: "product",
    ReduceOp.RedOpType.MIN: "min",
    ReduceOp.RedOpType.MAX: "max",
    ReduceOp.RedOpType.BAND: "band",
    ReduceOp.RedOpType.BOR: "bor",
    ReduceOp.RedOpType.BXOR: "bxor",
    ReduceOp.RedOpType.PREMUL_SUM: "sum",
}

#: Groups of this process that are not destroyed. With TORCH_DISTRIBUTED_DEBUG=DETAIL PyTorch keeps them by what they are in
#: C++ alone.
_living: set[Backend] = set()


class Options(C10DBackend.Options):
    """What ``init_process_group(pg_options=...)`` takes.

    ``transport``: ``auto`` (shared memory on one host; else RDMA if every host has it, else TCP), ``shm``, ``tcp`` or
    ``verbs``. ``listen``: the ``ADDRESS:PORT`` at which others reach this process, where there are several networks;
    port 0 has the system choose. What is not given is read of TENSORWIRE_TRANSPORT and TENSORWIRE_LISTEN.
    """

    def __init__(
        self,
        transport: str | None = None,
        listen: str | None = None,
        timeout: timedelta = dist.default_pg_timeout,
    ) -> None:
        super().__init__(NAME, timeout)
        found = Settings.from_environment()
        self.settings = Settings(transport or found.transport, listen or found.listen)


class _Work(dist._Work):
    """An operation that was started, or several."""

    def __init__(
        self,
        operations: list[_native.Operation],
        result: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._operations = operations
        self._result = result
        self._finish = finish

    def _end(self) -> None:
        """Does what is left to do behind the operations, once."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def is_completed(self) -> bool:
        if not all(operation.is_over() for operation in self._operations):
            return False
        if self.is_success():
            self._end()
        return True

    def is_success(self) -> bool:
        return all(o.is_over() and o.error() is None for o in self._operations)

    def exception(self) -> BaseException | None:
        errors = [error for o in self._operations if (error := o.error()) is not None]
        return dist.DistBackendError(errors[0]) if errors else None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds() if timeout > timedelta(0) else None
        try:
            for operation in self._operations:
                operation.wait(seconds)
        except _native.GroupError as error:
            raise dist.DistBackendError(str(error)) from None
        self._end()
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        source = self._operations[0].source() if self._operations else None
        return -1 if source is None else source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if getattr(_sought, "is_on", False):
            _sought.work = self
            return torch.futures.Future()
        ended: torch.futures.Future[str | None] = torch.futures.Future()
        left = len(self._operations)

        def over(error: str | None) -> None:
            nonlocal left
            left -= 1
            if not ended.done() and (error is not None or left == 0):
                ended.set_result(error)

        def result(ended: torch.futures.Future[str | None]) -> list[torch.Tensor]:
            # what is raised here is an error of PyTorch's future in C++, too; its set_exception makes one in Python alone
            error = ended.value()
            if error is not None:
                raise dist.DistBackendError(error)
            self._end()
            return self._result

        future = ended.then(result)
        if left == 0:
            ended.set_result(None)
        for operation in self._operations:
            operation.on_over(over)
        return future


#: Whether this thread asks for the future of a work only to find out whose it is, and what it found.
_sought = threading.local()


def _find(work: dist.Work) -> _Work | None:
    """Returns our work inside of one that PyTorch has wrapped, which hands on `wait` and `get_future` alone."""
    _sought.is_on, _sought.work = True, None
    try:
        work.get_future()
        return _sought.work
    except RuntimeError:
        # a work of another backend that has no futures
        return None
    finally:
        # which would keep its group
        _sought.is_on, _sought.work = False, None


def _hand_on(name: str) -> None:
    """Has a method of PyTorch's wrapped works ask ours; those of other backends are as they were."""
    theirs, ours = getattr(C10DWork, name), getattr(_Work, name)

    @functools.wraps(theirs)
    def method(self: dist.Work) -> Any:
        found = None if isinstance(self, _Work) else _find(self)
        return theirs(self) if found is None else ours(found)

    setattr(C10DWork, name, method)


class _Laid:
    """Tensors whose elements lie one behind the other: themselves, or copies that are brought back."""

    def __init__(self) -> None:
        self.back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        return _tensors.laid(tensor)

    def written(self, tensor: torch.Tensor) -> torch.Tensor:
        laid = _tensors.laid(tensor)
        if laid is not tensor:
            self.back.append((tensor, laid))
        return laid

    def finish(self) -> Callable[[], None] | None:
        if not self.back:
            return None

        def bring() -> None:
            for tensor, laid in self.back:
                tensor.copy_(laid)

        return bring


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns address and bytes."""
    return tensor.data_ptr(), tensor.nbytes


def _check(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if not tensor.is_cpu:
            raise ValueError(
                f"the backend {NAME} takes tensors of the CPU, and this one is on {tensor.device}; "
                'for others name a backend of theirs: "cpu:tensorwire,cuda:nccl"'
            )
        if tensor.layout != torch.strided:
            raise ValueError(f"the backend {NAME} takes dense tensors here, and this one is {tensor.layout}")


def _one(tensors: Sequence[torch.Tensor], what: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"{what} takes one tensor, and these are {len(tensors)}")
    _check(tensors)
    return tensors[0]


def _word(tensor: torch.Tensor) -> str:
    """Returns a name for the elements of what is moved."""
    return str(tensor.dtype).removeprefix("torch.")[:24]


def _fold(tensor: torch.Tensor, op: ReduceOp) -> tuple[str, str]:
    """Returns names of the elements and of the reduction."""
    return _named(tensor.dtype, op.op)


@functools.cache
def _named(dtype: torch.dtype, kind: ReduceOp.RedOpType) -> tuple[str, str]:
    fold = _FOLDS.get(kind)
    if fold is None:
        raise ValueError(f"the backend {NAME} knows no reduction {kind}")
    element = _ELEMENTS.get(dtype)
    if element is None and fold in ("sum", "avg"):
        element = _COMPLEX.get(dtype)
    if element is None and fold in ("sum", "product", "band", "bor", "bxor"):
        element = _WRAPPING.get(dtype)
    if element is None:
        raise ValueError(f"the backend {NAME} has no {fold} of {dtype}")
    return element, fold


class Backend(C10DBackend):
    """One group of processes."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        options: C10DBackend.Options,
        settings: Settings,
        global_ranks: list[int],
    ) -> None:
        super().__init__(rank, size)
        self._options = options
        self._settings = settings
        self._global_ranks = global_ranks
        self._sequence = 0
        #: All-to-alls of parts that have lengths of their own, so far.
        self._unevens = 0
        self._monitored = 0
        self._shrunk = 0
        self._window: list[_Work] | None = None
        #: What was adopted, by its address: it is kept, so that no other memory has that address.
        self._adopted: dict[int, torch.UntypedStorage] = {}
        self._timeout = options._timeout.total_seconds()
        meeting = meet(store, rank, size, options._timeout, settings, global_ranks)
        self._store = meeting.store
        self._communicator: _native.Communicator | None = meeting.communicator
        self.transport = f"{meeting.communicator.transport}: {meeting.why}"
        _living.add(self)

    # what PyTorch asks of a backend

    def getBackendName(self) -> str:
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    @property
    def options(self) -> C10DBackend.Options:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_shrinking(self) -> bool:
        return True

    # PyTorch asks its own without end for what is not said here

    @property
    def supports_reconfigure(self) -> bool:
        return False

    @property
    def supports_window(self) -> bool:
        return False

    @property
    def supports_time_estimate(self) -> bool:
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    def supports_tensor_alloc(self, device: Any) -> bool:
        return True

    def allocate_tensor(
        self, size: int, *, dtype: torch.dtype = torch.float32, device: Any = None
    ) -> torch.Tensor:
        """Returns a tensor in memory in which operations of this group copy nothing."""
        return self.empty((size,), dtype)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()
        self._options._timeout = timeout

    def split(
        self, store: dist.Store, ranks: Sequence[int], options: C10DBackend.Options | None
    ) -> Backend | None:
        """Makes a group of some of this one's members, all of whom call this."""
        ranks = list(ranks)
        if self.rank() not in ranks:
            return None
        if options is None:
            options = C10DBackend.Options(NAME, timeout=self._options._timeout)
        of_all = [self._global_ranks[r] if self._global_ranks else r for r in ranks]
        return Backend(
            store, ranks.index(self.rank()), len(ranks), options, self._settings, of_all
        )

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: C10DBackend.Options | None = None
    ) -> Backend | None:
        """Makes a group of those members that are not named: of those that are left when one is lost."""
        if shrink_flags == dist.distributed_c10d.SHRINK_ABORT:
            self.abort()
        self._shrunk += 1
        left = [rank for rank in range(self.size()) if rank not in ranks_to_exclude]
        return self.split(dist.PrefixStore(f"shrunk/{self._shrunk}", self._store), left, opts_override)

    def merge(
        self, store: dist.Store, options: C10DBackend.Options | None, rank: int, size: int
    ) -> Backend:
        """Makes a group of this one's members and of others, all of whom call this with their rank in it."""
        if options is None:
            options = C10DBackend.Options(NAME, timeout=self._options._timeout)
        return Backend(store, rank, size, options, self._settings, [])

    def perform_nocolor_split(self, _device: Any) -> None:
        pass

    def eager_connect_single_device(self, _device: Any) -> None:
        pass

    def abort(self) -> None:
        communicator = self._taken()
        if communicator is not None:
            communicator.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Leaves the group in good order."""
        communicator = self._taken()
        if communicator is not None:
            try:
                communicator.close(_GOODBYE)
            except _native.GroupError:
                # who does not answer has gone, or will see that this one has
                pass

    def _taken(self) -> _native.Communicator | None:
        """Takes what this has of the group, which it is in no more."""
        _living.discard(self)
        communicator, self._communicator = self._communicator, None
        self._adopted.clear()
        return communicator

    def get_error(self) -> ErrorType:
        failure = self._communicator.failure() if self._communicator is not None else None
        return ErrorType.SUCCESS if failure is None else getattr(ErrorType, failure)

    def memory_stats(self) -> dict[str, int]:
        return {"registered_bytes": self.stats()["registered_bytes"]}

    def _wait_for_pending_works(self) -> None:
        # each is known to whoever started it, and there are no hooks that would be called behind it
        pass

    def stats(self) -> dict[str, int]:
        """Returns counts of this group."""
        return self._living().stats()

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns a tensor in memory in which operations of this group copy nothing."""
        count = math.prod(shape)
        size = count * torch.empty((), dtype=dtype).element_size()
        if size == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        flat = torch.from_dlpack(self._living().memory(size))
        return flat.view(dtype).view(tuple(shape))

    def adopt(self, tensor: torch.Tensor) -> None:
        """Makes the memory of a tensor, and of all that views it, memory in which operations of this group copy nothing."""
        storage = tensor.untyped_storage()
        # private to PyTorch: it moves the storage itself, so that whatever views it follows
        file, size = storage._share_fd_cpu_()
        self._living().adopt(os.dup(file), size, storage.data_ptr())
        self._adopted[storage.data_ptr()] = storage

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Undoes :meth:`adopt`."""
        if self._communicator is not None:
            self._communicator.forget(storage.data_ptr())
        self._adopted.pop(storage.data_ptr(), None)

    # operations

    def _living(self) -> _native.Communicator:
        if self._communicator is None:
            raise dist.DistBackendError("the process group was destroyed")
        return self._communicator

    def _seconds(self, options: Any) -> float:
        timeout = options.timeout
        return timeout.total_seconds() if timeout > timedelta(0) else self._timeout

    def _start(
        self,
        kind: str,
        options: Any,
        element: str,
        bytes: int,
        inputs: Any,
        outputs: Any,
        keep: Any,
        result: list[torch.Tensor],
        fold: str | None = None,
        root: int = 0,
        finish: Callable[[], None] | None = None,
    ) -> _Work:
        communicator = self._communicator or self._living()
        self._sequence += 1
        wait = not getattr(options, "asyncOp", True) and self._window is None
        seconds = self._seconds(options)
        try:
            operation = communicator.start(
                kind, root, bytes, element, fold, inputs, outputs, keep, seconds, wait
            )
        except _native.GroupError as error:
            raise dist.DistBackendError(str(error)) from None
        work = _Work([operation], result, finish)
        if self._window is not None:
            self._window.append(work)
        return work

    def _done(self, result: list[torch.Tensor]) -> _Work:
        return _Work([], result)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> _Work:
        if tensors and tensors[0].layout == torch.sparse_coo:
            return self.allreduce_sparse(tensors, options)
        tensor = _one(tensors, "all_reduce")
        return self._all_reduce(tensor, options)

    def _all_reduce(self, tensor: torch.Tensor, options: Any) -> _Work:
        op = options.reduceOp
        kind = op.op
        element, fold = _named(tensor.dtype, kind)
        if kind == ReduceOp.RedOpType.PREMUL_SUM:
            tensor.mul_(op.factor)
        laid = _Laid()
        flat, finish = laid.written(tensor), laid.finish()
        size, address = flat.nbytes, flat.data_ptr()
        return self._start(
            "all_reduce", options, element, size, None, address, flat, [tensor], fold, 0, finish
        )

    def allreduce_coalesced(self, tensors: list[torch.Tensor], options: Any) -> _Work:
        _check(tensors)
        return self._together([self._all_reduce(tensor, options) for tensor in tensors], tensors)

    def _together(self, works: list[_Work], result: list[torch.Tensor]) -> _Work:
        def finish() -> None:
            for work in works:
                work._end()

        return _Work([o for work in works for o in work._operations], result, finish)

    def allreduce_sparse(self, tensors: list[torch.Tensor], options: Any) -> _Work:
        """The sum of sparse tensors: all members give their entries to all."""
        if len(tensors) != 1:
            raise ValueError(f"all_reduce takes one sparse tensor, and these are {len(tensors)}")
        tensor = tensors[0]
        if options.reduceOp.op != ReduceOp.RedOpType.SUM:
            raise ValueError("of sparse tensors there is the sum alone")
        own = tensor.coalesce()
        indices, values = own.indices().contiguous(), own.values().contiguous()
        counts = torch.empty(self.size(), dtype=torch.int64)
        sync = AllgatherOptions()
        sync.asyncOp = False
        sync.timeout = options.timeout
        self.all_gather_single(counts, torch.tensor([indices.shape[1]]), sync).wait()
        most = int(counts.max())

        def gathered(part: torch.Tensor) -> list[torch.Tensor]:
            padded = part.new_zeros((most, *part.shape[1:]))
            padded[: part.shape[0]] = part
            everyone = part.new_empty((self.size(), most, *part.shape[1:]))
            self.all_gather_single(everyone, padded, sync).wait()
            return [everyone[r, : int(counts[r])] for r in range(self.size())]

        all_indices = torch.cat(gathered(indices.t().contiguous())).t()
        all_values = torch.cat(gathered(values))
        total = torch.sparse_coo_tensor(all_indices, all_values, tensor.shape, check_invariants=False).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return self._done([tensor])

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> _Work:
        tensor = _one(tensors, "broadcast")
        laid = _Laid()
        flat = laid.written(tensor)
        return self._start(
            "broadcast", options, _word(flat), flat.nbytes, None, flat.data_ptr(), flat, [tensor],
            None, options.rootRank, laid.finish(),
        )  # fmt: skip

    def reduce(self, tensors: list[torch.Tensor], options: Any) -> _Work:
        tensor = _one(tensors, "reduce")
        element, fold = _fold(tensor, options.reduceOp)
        if options.reduceOp.op == ReduceOp.RedOpType.PREMUL_SUM:
            tensor = tensor * options.reduceOp.factor if self.rank() != options.rootRank else tensor.mul_(options.reduceOp.factor)
        laid = _Laid()
        flat = laid.written(tensor)
        return self._start(
            "reduce", options, element, flat.nbytes, None, flat.data_ptr(), flat, [tensor],
            fold, options.rootRank, laid.finish(),
        )  # fmt: skip

    def _gather(
        self,
        kind: str,
        outputs: list[torch.Tensor] | torch.Tensor | None,
        input: torch.Tensor,
        options: Any,
        root: int,
    ) -> _Work:
        laid = _Laid()
        flat = laid.read(input)
        size = flat.nbytes
        into: Any = None
        keep: list[torch.Tensor] = [flat]
        result: list[torch.Tensor] = []
        if isinstance(outputs, torch.Tensor):
            whole = laid.written(outputs)
            _fits(whole, flat, self.size(), "the output")
            into, result = whole.data_ptr(), [outputs]
            keep.append(whole)
        elif outputs is not None:
            _all_fit(outputs, flat, self.size(), "an output")
            parts = [laid.written(out) for out in outputs]
            into, result = [part.data_ptr() for part in parts], outputs
            keep.extend(parts)
        return self._start(
            kind, options, _word(flat), size, flat.data_ptr(), into, keep, result, None, root, laid.finish()
        )

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any
    ) -> _Work:
        tensor = _one(inputs, "all_gather")
        return self._gather("all_gather", outputs[0], tensor, options, 0)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, options: Any) -> _Work:
        _check([output, input])
        return self._gather("all_gather", output, input, options, 0)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any
    ) -> _Work:
        pairs = zip(outputs, inputs, strict=True)
        works = [self.all_gather_single(output, input, options) for output, input in pairs]
        return self._together(works, outputs)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any
    ) -> _Work:
        works = [
            self._gather("all_gather", [out[at] for out in outputs], input, options, 0)
            for at, input in enumerate(inputs)
        ]
        return self._together(works, [tensor for output in outputs for tensor in output])

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any
    ) -> _Work:
        tensor = _one(inputs, "gather")
        root = options.rootRank
        return self._gather("gather", outputs[0] if self.rank() == root else None, tensor, options, root)

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], options: Any
    ) -> _Work:
        tensor = _one(outputs, "scatter")
        laid = _Laid()
        into = laid.written(tensor)
        parts: list[torch.Tensor] = []
        if self.rank() == options.rootRank:
            _check(inputs[0])
            _all_fit(inputs[0], into, self.size(), "an input")
            parts = [laid.read(part) for part in inputs[0]]
        addresses = [part.data_ptr() for part in parts]
        return self._start(
            "scatter", options, _word(into), into.nbytes, addresses, into.data_ptr(), [into, *parts], [tensor],
            None, options.rootRank, laid.finish(),
        )  # fmt: skip

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], options: Any
    ) -> _Work:
        tensor = _one(outputs, "reduce_scatter")
        _check(inputs[0])
        _all_fit(inputs[0], tensor, self.size(), "an input")
        laid = _Laid()
        parts = [self._scaled(laid.read(part), options.reduceOp) for part in inputs[0]]
        return self._reduce_scatter(tensor, [part.data_ptr() for part in parts], parts, options, laid)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, options: Any) -> _Work:
        _check([output, input])
        laid = _Laid()
        whole = self._scaled(laid.read(input), options.reduceOp)
        _fits(whole, output, self.size(), "the input")
        return self._reduce_scatter(output, whole.data_ptr(), [whole], options, laid)

    def _scaled(self, tensor: torch.Tensor, op: ReduceOp) -> torch.Tensor:
        return tensor * op.factor if op.op == ReduceOp.RedOpType.PREMUL_SUM else tensor

    def _reduce_scatter(
        self, output: torch.Tensor, addresses: Any, keep: list[torch.Tensor], options: Any, laid: _Laid
    ) -> _Work:
        element, fold = _fold(output, options.reduceOp)
        into = laid.written(output)
        return self._start(
            "reduce_scatter", options, element, into.nbytes, addresses, into.data_ptr(), [into, *keep], [output],
            fold, 0, laid.finish(),
        )  # fmt: skip

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any
    ) -> _Work:
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(output, input, options) for output, input in pairs]
        return self._together(works, outputs)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any) -> _Work:
        _check([*outputs, *inputs])
        laid = _Laid()
        gets = [laid.written(tensor) for tensor in outputs]
        gives = [laid.read(tensor) for tensor in inputs]
        # parts of one length here may have others elsewhere
        return self._uneven(gets, gives, options, outputs, laid)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        options: Any,
    ) -> _Work:
        _check([output, input])
        laid = _Laid()
        gets, gives = laid.written(output), laid.read(input)
        size = self.size()
        if not output_splits and not input_splits:
            if gives.shape[0] % size or gets.shape[0] % size:
                raise ValueError(
                    f"tensors of {gives.shape[0]} and {gets.shape[0]} rows are not divided equally among {size} ranks"
                )
            _fits(gets, gives, 1, "the output")
            return self._start(
                "all_to_all", options, _word(gives), gives.nbytes // size, gives.data_ptr(), gets.data_ptr(),
                [gets, gives], [output], None, 0, laid.finish(),
            )  # fmt: skip
        return self._uneven(
            _split(gets, output_splits, size), _split(gives, input_splits, size), options, [output], laid
        )

    def _uneven(
        self,
        gets: Sequence[torch.Tensor],
        gives: Sequence[torch.Tensor],
        options: Any,
        result: list[torch.Tensor],
        laid: _Laid,
    ) -> _Work:
        """Parts of different lengths go as messages: nobody knows those between others."""
        for parts in (gets, gives):
            if len(parts) != self.size():
                raise ValueError(f"there are {len(parts)} tensors for {self.size()} ranks")
        _fits(gets[self.rank()], gives[self.rank()], 1, "the output for this rank itself")
        communicator, me, seconds = self._living(), self.rank(), self._seconds(options)
        # of these alone: all members call as many, and not all of them send as many messages
        self._unevens += 1
        tag = _UNEVEN + self._unevens
        # by it those learn it that call something else
        nowhere = [0] * self.size()
        operations = self._start("all_to_all", options, _word(gives[me]), 0, nowhere, nowhere, None, [])._operations
        gets[me].copy_(gives[me].view_as(gets[me]))
        for peer in range(self.size()):
            if peer != me and gets[peer].numel():
                get = gets[peer]
                operations.append(_told(communicator.receive, peer, tag, _memory(get), get, seconds))
        for peer in range(self.size()):
            if peer != me and gives[peer].numel():
                give = gives[peer]
                operations.append(_told(communicator.send, peer, tag, _memory(give), give, seconds))
        work = _Work(operations, result, laid.finish())
        if self._window is not None:
            self._window.append(work)
        return work

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> _Work:
        tensor = _one(tensors, "send")
        flat = _tensors.laid(tensor)
        operation = self._mail(self._living().send, dst, tag, _memory(flat), flat, self._timeout)
        return self._messaged(operation, tensors, None)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> _Work:
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> _Work:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: list[torch.Tensor], src: int | None, tag: int) -> _Work:
        tensor = _one(tensors, "recv")
        laid = _Laid()
        flat = laid.written(tensor)
        operation = self._mail(self._living().receive, src, tag, _memory(flat), flat, self._timeout)
        return self._messaged(operation, tensors, laid.finish())

    def _mail(self, call: Callable[..., _native.Operation], *arguments: Any) -> _native.Operation:
        self._sequence += 1
        return _told(call, *arguments)

    def _messaged(
        self,
        operation: _native.Operation,
        result: list[torch.Tensor],
        finish: Callable[[], None] | None,
    ) -> _Work:
        work = _Work([operation], result, finish)
        if self._window is not None:
            self._window.append(work)
        return work

    def barrier(self, options: Any) -> _Work:
        return self._start("barrier", options, "", 0, None, None, None, [])

    def monitored_barrier(self, options: Any, wait_all_ranks: bool = False) -> None:
        """A barrier whose rank 0 says who has not come; by the store, so that whoever fails it can go on."""
        timeout = options.timeout if options.timeout >= timedelta(0) else self._options._timeout
        name, within = f"monitored/{self._monitored}", f"{timeout.total_seconds() * 1000:.0f} ms"
        self._monitored += 1
        if self.rank() != 0:
            try:
                self._store.set(f"{name}/{self.rank()}", "here")
                ask(timeout.total_seconds(), self._store.wait, [f"{name}/all"], timeout)
                said = self._store.get(f"{name}/all").decode()
            except RuntimeError:
                said = "no answer"
            if said != "here":
                raise dist.DistBackendError(
                    f"Rank {self.rank()} successfully reached monitoredBarrier, but received errors while waiting for "
                    "send/recv from rank 0. What rank 0 says names who has not come."
                )
            return
        end = time.monotonic() + timeout.total_seconds()
        missing: list[int] = []
        for rank in range(1, self.size()):
            left = end - time.monotonic()
            if left <= 0 and not missing:
                self._store.set(f"{name}/all", "failed")
                raise dist.DistBackendError(f"Rank 0 timed out in monitoredBarrier after {within}")
            try:
                left = max(left, 0.01)
                ask(left, self._store.wait, [f"{name}/{rank}"], timedelta(seconds=left))
            except RuntimeError:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        self._store.set(f"{name}/all", "failed" if missing else "here")
        if missing:
            who = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
            raise dist.DistBackendError(f"{who} failed to pass monitoredBarrier in {within}")

    def start_coalescing(self) -> None:
        self._window = []

    def end_coalescing(self) -> _Work:
        window, self._window = self._window or [], None
        return self._together(window, [tensor for work in window for tensor in work._result])


def _told(call: Callable[..., _native.Operation], *arguments: Any) -> _native.Operation:
    """Starts a message; a failure is one of PyTorch's kind."""
    try:
        return call(*arguments)
    except _native.GroupError as error:
        raise dist.DistBackendError(str(error)) from None


#: Seconds that others have to confirm a goodbye.
_GOODBYE = 2.0
#: Tags of messages of all-to-all lie above all tags of a user's.
_UNEVEN = 1 << 40


def _fits(whole: torch.Tensor, part: torch.Tensor, count: int, what: str) -> None:
    if whole.dtype != part.dtype or whole.numel() != count * part.numel():
        raise ValueError(
            f"{what} has {whole.numel()} elements of {whole.dtype}; it takes {count} times {part.numel()} of {part.dtype}"
        )


def _all_fit(parts: Sequence[torch.Tensor], part: torch.Tensor, count: int, what: str) -> None:
    if len(parts) != count:
        raise ValueError(f"there are {len(parts)} tensors for {count} ranks")
    _check(parts)
    for each in parts:
        _fits(each, part, 1, what)


def _split(tensor: torch.Tensor, splits: list[int], size: int) -> Sequence[torch.Tensor]:
    """Returns the rows for each rank."""
    rows = tensor.shape[0]
    if not splits:
        if rows % size:
            raise ValueError(f"a tensor of {rows} rows is not divided equally among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"splits {splits} are not the {rows} rows of a tensor for {size} ranks")
    return tensor.split(splits)


def _create(given: Any, options: C10DBackend.Options | None) -> Backend | None:
    """Makes the backend of a group, as PyTorch asks for it."""
    if isinstance(options, Options):
        settings = options.settings
    elif options is None or isinstance(options, C10DBackend.Options):
        settings = Settings.from_environment()
    else:
        raise TypeError(
            f"pg_options of the backend {NAME} are tensorwire.torch.Options, and these are {type(options).__name__}"
        )
    if options is None:
        options = C10DBackend.Options(NAME, timeout=given.timeout)
    options._timeout = given.timeout
    options.global_ranks_in_group = given.global_ranks_in_group
    options.group_name = given.group_id
    if given.split_from is not None:
        return given.split_from.split(given.store, given.global_ranks_in_group, options)
    return Backend(
        given.store, given.group_rank, given.group_size, options, settings, list(given.global_ranks_in_group)
    )


def register() -> None:
    """Makes the backend known to PyTorch, which calls this by the entry point of the package."""
    if not hasattr(dist.Backend, NAME.upper()):
        for name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank"):
            _hand_on(name)
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _of(group: dist.ProcessGroup | None) -> Backend:
    """Returns the backend of a group, the default one if none is given."""
    group = group or dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts another one around it
    backend = getattr(backend, "wrapped_pg", backend)
    if not isinstance(backend, Backend):
        raise ValueError(f"the group's backend for tensors of the CPU is {backend.name()}, not {NAME}")
    return backend


def stats(group: dist.ProcessGroup | None = None) -> dict[str, int]:
    """Returns counts of a group so far: operations, those of them in place, bytes copied by this process and sent."""
    return _of(group).stats()


def empty(
    *shape: int, dtype: torch.dtype = torch.float32, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Returns a tensor in memory in which operations of a group copy nothing, if all members take such memory."""
    return _of(group).empty(shape, dtype)


def adopt(
    ddp: torch.nn.parallel.DistributedDataParallel,
    hook: Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]] | None = None,
    state: Any = None,
) -> None:
    """Puts the gradient buckets of a model into memory in which its group copies nothing, as soon as they are there.

    PyTorch makes them in the first step and anew in the second: from the third on nothing is copied. This takes the
    model's communication hook; ``hook`` and ``state`` are one of yours, which is called with each bucket behind it.
    Give the model ``gradient_as_bucket_view=True``, or PyTorch itself copies gradients in and out of buckets.
    """
    ddp.register_comm_hook(_Adopter(_of(ddp.process_group), ddp.process_group, hook, state), _adopting)


class _Adopter:
    """The buckets of a model that are in a group's memory."""

    def __init__(self, backend: Backend, group: dist.ProcessGroup, hook: Any, state: Any) -> None:
        self.backend, self.group, self.hook, self.state = backend, group, hook, state
        #: By bucket.
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __del__(self) -> None:
        for storage in self.storages.values():
            self.backend.forget(storage)

    def take(self, index: int, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self.storages.get(index)
        if known is not None and known.data_ptr() == storage.data_ptr():
            return
        if known is not None:
            self.backend.forget(known)
            del self.storages[index]
        try:
            self.backend.adopt(tensor)
        except (AttributeError, RuntimeError) as error:
            warnings.warn(
                f"gradients are copied on their way: this PyTorch does not share a bucket's memory ({error})",
                stacklevel=2,
            )
        self.storages[index] = tensor.untyped_storage()


def _adopting(state: _Adopter, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    state.take(bucket.index(), bucket.buffer())
    if state.hook is not None:
        return state.hook(state.state, bucket)
    # as PyTorch does it, to the bit
    tensor = bucket.buffer().mul_(1.0 / state.group.size())
    work = dist.all_reduce(tensor, group=state.group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


# PyTorch compares them, and those above are texts
_adopting.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


def _leave() -> None:
    """Says goodbye where the program has not."""
    for backend in list(_living):
        backend.shutdown()


atexit.register(_leave)
