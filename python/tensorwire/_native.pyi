"""What crate `python` offers; `tensorwire`'s modules are what users call."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, final

__version__: str

# the store

class StoreError(RuntimeError):
    """What a store could not do, and why. Where a process was lost, it is named."""

@final
class Tensor:
    """A tensor in memory that servers reach: what is pushed from it and pulled into it is not copied."""

    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def numpy(self) -> Any:
        """Returns it as an array of NumPy, of the same memory."""

    def torch(self) -> Any:
        """Returns it as a tensor of PyTorch, of the same memory."""

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Store:
    @property
    def rank(self) -> int: ...
    @property
    def num_workers(self) -> int: ...
    def empty(self, shape: Sequence[int], dtype: str, timeout: float) -> Tensor: ...
    def zeros(self, shape: Sequence[int], dtype: str, timeout: float) -> Tensor: ...
    def init(self, names: Sequence[int | str], tensors: Sequence[Any], timeout: float) -> None: ...
    def push(
        self,
        names: Sequence[int | str],
        tensors: Sequence[Sequence[Any]],
        priority: int,
        timeout: float,
    ) -> None: ...
    def pull(
        self,
        names: Sequence[int | str],
        tensors: Sequence[Sequence[Any]],
        priority: int,
        timeout: float,
    ) -> None: ...
    def pushpull(
        self,
        names: Sequence[int | str],
        pushed: Sequence[Sequence[Any]],
        pulled: Sequence[Sequence[Any]],
        priority: int,
        timeout: float,
    ) -> None: ...
    def push_rows(
        self, name: int | str, rows: Sequence[int], tensor: Any, priority: int, timeout: float
    ) -> None: ...
    def pull_rows(
        self, name: int | str, rows: Sequence[int], tensor: Any, priority: int, timeout: float
    ) -> None: ...
    def set_optimizer(
        self,
        default: tuple[str, dict[str, float]],
        of_keys: Sequence[tuple[int | str, tuple[str, dict[str, float]]]],
        timeout: float,
    ) -> None: ...
    def set_gradient_compression(self, kind: str | None, share: float | None) -> None: ...
    def save(self, path: str, timeout: float) -> None: ...
    def load(self, path: str, timeout: float) -> None: ...
    def barrier(self, timeout: float) -> None: ...
    def shape_of(self, name: int | str) -> tuple[list[int], str]: ...
    def stats(self, timeout: float) -> dict[str, int]: ...
    def close(self, timeout: float) -> bool: ...
    def fail(self, why: str, timeout: float) -> bool: ...

def open_store(options: dict[str, Any]) -> Store | None: ...
def serve_store() -> None: ...
def local_store() -> Store: ...

# groups

class GroupError(RuntimeError):
    """What a group could not do, and why. Where a member was lost, it is named."""

@final
class Endpoint:
    """This process's end of a group, before it knows the others. ``secret`` is 40 bytes that all members know, and nobody else."""

    def __new__(cls, rank: int, transport: str, listen: str | None, secret: bytes) -> Endpoint: ...
    @property
    def address(self) -> str:
        """What others find it by."""

    def connect(
        self,
        addresses: Sequence[str],
        names: Sequence[str],
        timeout: float,
        spread: bool,
        watch: Callable[[], object],
    ) -> Communicator:
        """Becomes a communicator of all whose addresses these are, by rank. ``spread``: they are on more than one host.

        ``watch`` is called now and then while one has not come; what it raises ends the wait."""

@final
class Communicator:
    """A group of processes that move and reduce memory. Memory is named by its address; ``keep`` keeps it alive."""

    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def transport(self) -> str: ...
    def start(
        self,
        kind: str,
        root: int,
        bytes: int,
        element: str,
        fold: str | None,
        inputs: int | list[int] | None,
        outputs: int | list[int] | None,
        keep: Any,
        timeout: float,
        wait: bool,
    ) -> Operation:
        """Starts an operation of parts of ``bytes``. Memory is one address for all its parts, or a list with that of each.

        Without ``wait`` it moves by itself; else this returns when it is over.
        """

    def send(
        self, to: int, tag: int, memory: tuple[int, int], keep: Any, timeout: float
    ) -> Operation: ...
    def receive(
        self, from_: int | None, tag: int, memory: tuple[int, int], keep: Any, timeout: float, /
    ) -> Operation:
        """Receives from a member, or from any."""

    def memory(self, bytes: int) -> Memory:
        """Returns memory in which operations copy nothing."""

    def adopt(self, file: int, bytes: int, address: int) -> None:
        """Makes memory that is shared by a file, and mapped at ``address``, memory without copies. The file is given away."""

    def forget(self, address: int) -> None:
        """Undoes `adopt`."""

    def stats(self) -> dict[str, int]:
        """Returns operations, in_place, messages, bytes_sent, registered_bytes and copied_bytes."""

    def failure(self) -> str | None:
        """What it failed of, as PyTorch calls it; None if it has not."""

    def abort(self, why: str) -> None:
        """Ends all operations with an error."""

    def close(self, timeout: float) -> None:
        """Leaves in good order."""

@final
class Operation:
    """An operation under way."""

    def is_over(self) -> bool: ...
    def error(self) -> str | None:
        """Returns why it failed; None while it is under way, and where it did not."""

    def source(self) -> int | None:
        """Returns who sent what a receive got."""

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is over: as long as it may take, and ``timeout`` seconds at most."""

    def on_over(self, listener: Callable[[str | None], None]) -> None:
        """Calls ``listener`` once with the error or None: at once if it is over, else on another thread."""

@final
class Memory:
    """Memory of a group, as bytes that others take by DLPack."""

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def random(count: int) -> bytes:
    """Returns so many random bytes."""

def verbs_offer() -> tuple[str | None, str]:
    """Returns what RDMA would go over here, or None with the reason why it cannot be used."""

# modules of PyTorch, and jobs

class ImportFailed(ValueError):
    """A module is no model: what is wrong, the operator, the part of the module, and its line."""

class JobFailed(RuntimeError):
    """A job was not done: the first cause."""

def operators() -> list[str]: ...
def check_module(described: str, constants: bytes, dtype: str) -> None: ...
def run_job(
    folder: str, program: str, arguments: list[str], on_step: Callable[[str], None], again: bool
) -> str:
    """Runs the job of a folder. ``again``: it was begun before, and goes on from its newest checkpoint, if it has one."""

def run_with_parent(command: list[str]) -> NoReturn:
    """Becomes another command, which ends when the process does that started this one."""

def job_members(folder: str) -> tuple[int, int]:
    """Returns how many workers and servers the job of a folder has."""
