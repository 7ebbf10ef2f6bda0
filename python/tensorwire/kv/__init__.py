"""A key-value store of tensors, with the verbs of MXNet's.

Workers push gradients and pull weights; servers sum what is pushed, or update by an optimizer of their own::

    import numpy as np
    import tensorwire.kv

    kv = tensorwire.kv.create("dist_sync")
    kv.set_optimizer("sgd", learning_rate=0.5)
    kv.init("weight", np.zeros(1000, np.float32))
    gradient = kv.empty(1000).numpy()  # memory that servers reach: nothing is copied on its way
    gradient[:] = kv.rank + 1
    weight = kv.pushpull("weight", gradient, out=kv.empty(1000)).numpy()

``python -m tensorwire.kv --workers 2 SCRIPT`` runs a script like this on one host, and so do torchrun, mpirun,
srun, and MXNet's own launchers, which set ``DMLC_ROLE``. Values are arrays of NumPy, tensors of PyTorch, or whatever has
``__dlpack__`` and lies in memory of the host.

A push returns when its tensors may be written again, a pull when they are filled. A process that is lost ends the waits of all
others with a `StoreError` that names it.
"""

from __future__ import annotations

import atexit
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tensorwire import _native
from tensorwire._native import StoreError, Tensor

__all__ = ["KVStore", "StoreError", "Tensor", "create"]

_log = logging.getLogger("tensorwire.kv")

Key = Union[int, str]
Keys = Union[Key, Sequence[Key]]

# MXNet's names; None: a store of one process
_MODES = {
    "local": None,
    "device": None,
    "dist": "sync",
    "dist_sync": "sync",
    "dist_device_sync": "sync",
    "dist_sync_device": "sync",
    "dist_async": "async",
}
_ALIASES = {"lr": "learning_rate", "wd": "weight_decay", "eps": "epsilon"}
_SERVER = "import tensorwire.kv; tensorwire.kv._serve()"


def create(
    name: str = "dist_sync",
    *,
    servers: int = 1,
    max_delay: int | None = None,
    big_elements: int = 1_000_000,
    elastic: bool = False,
    transport: str = "auto",
    timeout: float = 60.0,
) -> KVStore:
    """Returns a store that this process shares with the others of its job; all are to ask for the same, in the same order.

    ``dist_sync`` takes a push once all workers' are there, ``dist_async`` each as it comes, and ``local`` has no other
    process. With ``max_delay`` d, a pull from ``dist_async`` waits until no worker is more than d pushes behind.

    ``servers`` are started by rank 0, unless a launcher of MXNet's has started some. Values of more than ``big_elements``
    elements are split over all of them. In an ``elastic`` store the others go on when a worker is lost. ``transport`` is
    ``auto``, ``shm``, ``tcp`` or ``verbs``. ``timeout`` is how many seconds a wait may take.

    In a process that such a launcher started as a server or as the scheduler it does that one's part, and exits.
    """
    if name not in _MODES:
        raise ValueError(f"there is no store '{name}'; there are {', '.join(_MODES)}")
    mode = _MODES[name]
    if max_delay is not None and mode != "async":
        raise ValueError(f"max_delay is of dist_async; all workers of {name} go at one pace")
    if mode is None:
        return KVStore(name, _native.local_store(), timeout)
    options = {
        "mode": mode,
        "servers": servers,
        "max_delay": max_delay,
        "big_elements": big_elements,
        "elastic": elastic,
        "transport": transport,
        "server": (sys.executable, ["-c", _SERVER]),
    }
    store = _native.open_store(options)
    if store is None:
        sys.exit(0)
    return KVStore(name, store, timeout)


class KVStore:
    """A worker's end of a store, as `create` returns it.

    Keys are numbers or names. Where a key is taken, a list of keys is too, with a list of values. A value may be a list of
    tensors, one of each device: they are added before they are pushed, and all filled by a pull.
    """

    def __init__(self, name: str, store: _native.Store, timeout: float) -> None:
        self.type = name
        self.timeout = timeout
        self._store = store
        # until it is closed, the others count on this worker
        atexit.register(self._leave)

    @property
    def rank(self) -> int:
        """Which of the workers this is."""
        return self._store.rank

    @property
    def num_workers(self) -> int:
        """How many workers there were at the beginning."""
        return self._store.num_workers

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Tensor:
        """Returns a tensor in memory that servers reach, whose elements are anything.

        What is pushed from it or pulled into it is not copied. ``.numpy()`` and ``.torch()`` show it to these libraries, and
        ``from_dlpack`` to any; the memory lives as long as any of them uses it.
        """
        return self._store.empty(_shape(shape), _dtype(dtype), self.timeout)

    def zeros(self, shape: int | Sequence[int], dtype: Any = "float32") -> Tensor:
        """As `empty`, all zero."""
        return self._store.zeros(_shape(shape), _dtype(dtype), self.timeout)

    def init(self, key: Keys, value: Any) -> None:
        """Makes keys known. Every worker calls it, with tensors of the same shape; those of rank 0 are the first values."""
        names, tensors = _pairs(key, value)
        self._store.init(names, [devices[0] for devices in tensors], self.timeout)

    def push(self, key: Keys, value: Any, priority: int = 0) -> None:
        """Pushes tensors; returns when they may be written again. Of all that is under way, larger priorities go first.

        Without an optimizer a value becomes the sum of what all workers push. A sparse tensor of PyTorch is pushed by its rows.
        """
        names, tensors = _pairs(key, value)
        dense, sparse = [], []
        for name, devices in zip(names, tensors):
            if any(getattr(tensor, "is_sparse", False) for tensor in devices):
                sparse.append((name, _rows(name, devices)))
            else:
                dense.append((name, devices))
        if dense:
            self._store.push([name for name, _ in dense], [devices for _, devices in dense], priority, self.timeout)
        for name, rows in sparse:
            self.row_sparse_push(name, rows.values(), rows.indices()[0], priority)

    def pull(self, key: Keys, out: Any = None, priority: int = 0) -> Any:
        """Pulls values into ``out``, with all that this worker pushed before, and returns it; without it, new tensors."""
        out = self._outputs(key) if out is None else out
        names, tensors = _pairs(key, out)
        self._store.pull(names, tensors, priority, self.timeout)
        return out

    def pushpull(self, key: Keys, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Pushes and pulls in the same messages; without ``out``, into ``value``. Returns what was pulled into."""
        out = value if out is None else out
        names, pushed = _pairs(key, value)
        _, pulled = _pairs(key, out)
        self._store.pushpull(names, pushed, pulled, priority, self.timeout)
        return out

    def broadcast(self, key: Keys, value: Any, out: Any, priority: int = 0) -> Any:
        """As `init`, then `pull`."""
        self.init(key, value)
        return self.pull(key, out, priority)

    def row_sparse_push(self, key: Key, value: Any, row_ids: Any, priority: int = 0) -> None:
        """Pushes some rows of a table: row ``i`` of ``value`` is row ``row_ids[i]``. Rows of one number are added."""
        rows, tensor = _numbers(row_ids), _plain(value)
        order = sorted(range(len(rows)), key=rows.__getitem__)
        if order != list(range(len(rows))):
            values = tensor.numpy() if isinstance(tensor, Tensor) else tensor
            rows, tensor = [rows[at] for at in order], values[order]
        self._store.push_rows(key, rows, tensor, priority, self.timeout)

    def row_sparse_pull(self, key: Key, out: Any = None, priority: int = 0, *, row_ids: Any) -> Any:
        """Pulls some rows of a table: row ``i`` of ``out`` becomes row ``row_ids[i]``. Returns ``out``, or a new tensor."""
        rows = _numbers(row_ids)
        shape, dtype = self._store.shape_of(key)
        out = self.empty([len(rows), *shape[1:]], dtype) if out is None else out
        order = sorted(range(len(rows)), key=rows.__getitem__)
        if order == list(range(len(rows))):
            self._store.pull_rows(key, rows, _plain(out), priority, self.timeout)
            return out
        found = self.empty([len(rows), *shape[1:]], dtype)
        self._store.pull_rows(key, [rows[at] for at in order], found, priority, self.timeout)
        target = _plain(out)
        if isinstance(target, Tensor):
            target = target.numpy()
        target[order] = found.torch() if hasattr(target, "untyped_storage") else found.numpy()
        return out

    def set_optimizer(
        self, optimizer: Any, *, of_keys: Mapping[Key, Any] | None = None, **parameters: float
    ) -> None:
        """Has servers update by an optimizer, with the mean of what all workers push. Every worker calls it, before it pushes.

        It is a name with parameters, or an optimizer of PyTorch::

            kv.set_optimizer("adam", learning_rate=1e-3, beta1=0.9)
            kv.set_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

        There are sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw and lamb; sum and mean, which a value becomes; average
        and elastic, of weights. ``of_keys`` gives some keys another, as ``{"bias": ("sgd", {"learning_rate": 0.1})}``.
        """
        rule = _rule(optimizer, parameters)
        others = {}
        for key, other in (of_keys or {}).items():
            others[key] = _rule(*other) if isinstance(other, tuple) else _rule(other, {})
        if self.rank == 0:
            self._store.set_optimizer(rule, list(others.items()), self.timeout)
        self.barrier()

    def set_gradient_compression(self, compression: Mapping[str, Any] | None) -> None:
        """Has less cross of what is pushed; what that leaves of a tensor is added to the next one (error feedback). Every worker calls it::

            kv.set_gradient_compression({"type": "int8"})                   # a byte for each element, a scale for every 256
            kv.set_gradient_compression({"type": "top-k", "share": 0.01})   # the largest hundredth of the elements
            kv.set_gradient_compression(None)                               # all of it again

        Of tensors of float32 with 256 elements or more, of one device; others are pushed as they are. What is left is not saved.
        """
        given = dict(compression or {})
        kind, share = given.pop("type", None), given.pop("share", None)
        if given or (compression is not None and kind is None):
            raise ValueError(f"a compression has a type, and top-k a share, not {sorted(dict(compression or {}))}")
        self._store.set_gradient_compression(kind, share)

    def save_optimizer_states(self, path: str) -> None:
        """Has every server write its values and the state of its optimizer to a file whose name begins with ``path``."""
        self._store.save(path, self.timeout)

    def load_optimizer_states(self, path: str) -> None:
        """Has every server take what `save_optimizer_states` wrote; there are to be as many, with the same keys."""
        self._store.load(path, self.timeout)

    def barrier(self) -> None:
        """Waits until every worker is here."""
        self._store.barrier(self.timeout)

    def stats(self) -> dict[str, int]:
        """Returns what this worker moved so far.

        ``copied_bytes`` were copied from memory to memory here, ``staged_bytes`` of them because a tensor lay elsewhere than in
        memory of the store; ``direct_bytes`` went straight to their place.
        """
        return self._store.stats(self.timeout)

    def close(self) -> None:
        """Says goodbye; rank 0 waits until all others have. A process that ends does it by itself."""
        atexit.unregister(self._leave)
        self._store.close(self.timeout)

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        else:
            atexit.unregister(self._leave)
            try:
                self._store.fail(_said(error), self.timeout)
            except Exception as failure:
                # what the caller raises is why the block ended, and is what others are to see
                _note(error, f"and the other workers may not know of it: {_said(failure)}")

    def __repr__(self) -> str:
        return f"<KVStore {self.type}, rank {self.rank} of {self.num_workers}>"

    def _leave(self) -> None:
        """What a process does that ends: it says goodbye, or why it cannot."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self._store.close(self.timeout)
        else:
            self._store.fail(_said(error), self.timeout)

    def _outputs(self, key: Keys) -> Any:
        """New tensors for values, a list if it is one of keys."""
        names = _names(key)
        tensors = [self._store.empty(*self._store.shape_of(name), self.timeout) for name in names]
        return tensors if isinstance(key, (list, tuple)) else tensors[0]


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _note(error: BaseException, said: str) -> None:
    """Adds to what an exception says; before Python 3.11, which lets nobody, to the log."""
    if hasattr(error, "add_note"):
        error.add_note(said)
    else:
        _log.warning("%s, %s", _said(error), said)


def _serve() -> None:
    """Does a server's part, in a process that rank 0 started; the options come from there."""
    # Ctrl-C reaches the whole terminal; rank 0 decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _native.serve_store()
    except StoreError:
        # rank 0 has been told, and names whoever was the first
        sys.exit(1)


def _pairs(key: Keys, value: Any) -> tuple[list[Key], list[list[Any]]]:
    """Keys, and for each a list of tensors."""
    names, values = _names(key), [value]
    if isinstance(key, (list, tuple)):
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{len(names)} keys take a list of values, not one")
        values = list(value)
        if len(values) != len(names):
            raise ValueError(f"{len(names)} keys, but tensors for {len(values)}")
    tensors = [list(each) if isinstance(each, (list, tuple)) else [each] for each in values]
    return names, [[_plain(tensor) for tensor in devices] for devices in tensors]


def _names(key: Keys) -> list[Key]:
    names: list[Any] = list(key) if isinstance(key, (list, tuple)) else [key]
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (int, str)) or isinstance(name, int) and name < 0:
            raise TypeError(f"a key is a number from 0 on or a name, not {name!r}")
    return names


def _plain(tensor: Any) -> Any:
    """A tensor without what PyTorch knows of where it came from."""
    if hasattr(tensor, "is_neg") and tensor.is_neg():
        raise ValueError("PyTorch has put off to negate the tensor, whose memory holds other numbers; give x.resolve_neg()")
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def _rows(name: Key, devices: list[Any]) -> Any:
    """The sum of sparse tensors of PyTorch, row by row."""
    for tensor in devices:
        if not getattr(tensor, "is_sparse", False):
            raise TypeError(f"key {name!r}: of several tensors some are sparse; give all of one kind")
        if tensor.sparse_dim() != 1:
            raise ValueError(
                f"key {name!r}: the tensor is sparse in {tensor.sparse_dim()} dimensions, and rows are pushed; make it by to_sparse(1)"
            )
    total = devices[0]
    for tensor in devices[1:]:
        total = total + tensor
    return total.coalesce()


def _numbers(rows: Any) -> list[int]:
    return rows.tolist() if hasattr(rows, "tolist") else [int(row) for row in rows]


def _shape(shape: int | Sequence[int]) -> list[int]:
    return [shape] if isinstance(shape, int) else list(shape)


def _dtype(dtype: Any) -> str:
    """The name of an element type of NumPy, PyTorch or Python's own."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.removeprefix("torch.")


def _rule(optimizer: Any, parameters: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """The name and the parameters of an optimizer, as servers know them."""
    if not isinstance(optimizer, str):
        if parameters:
            raise TypeError("parameters go with the name of an optimizer; one of PyTorch has its own")
        return _rule_of_torch(optimizer)
    given = {_ALIASES.get(name, name): float(value) for name, value in parameters.items()}
    return optimizer, given


def _rule_of_torch(optimizer: Any) -> tuple[str, dict[str, float]]:
    kind = type(optimizer).__name__
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise TypeError(f"an optimizer is a name or one of torch.optim, not {kind}")
    if len(groups) > 1:
        raise ValueError(f"this {kind} has {len(groups)} groups of parameters; give of_keys instead")
    group, name = groups[0], kind.lower()
    if name not in ("sgd", "adagrad", "rmsprop", "adam", "adamw"):
        raise ValueError(f"servers have no {kind}; they have SGD, Adagrad, RMSprop, Adam and AdamW of torch.optim")
    given = {"learning_rate": float(group["lr"]), "weight_decay": float(group["weight_decay"])}
    if name == "sgd" and group["momentum"]:
        name = "nesterov" if group["nesterov"] else "momentum"
        given["momentum"] = group["momentum"]
    elif name in ("adam", "adamw"):
        given["beta1"], given["beta2"] = (float(beta) for beta in group["betas"])
    elif name == "rmsprop":
        given["alpha"] = group["alpha"]
    if "eps" in group:
        given["epsilon"] = group["eps"]
    odd = ["dampening", "amsgrad", "maximize", "centered", "lr_decay", "initial_accumulator_value"]
    odd += ["momentum"] if name == "rmsprop" else []
    used = [option for option in odd if group.get(option)]
    if used:
        raise ValueError(f"servers have {kind} without {', '.join(used)}")
    return name, given
