"""A Ray Direct Transport: tensors of the CPU from actor to actor.

What lies in shared memory is mapped by receivers of the same host, as with Ray's CUDA IPC. All else a receiver asks the sender's
process for, and it comes over a group of the two: by shared memory on one host, else by RDMA if both hosts can, else by TCP.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import mmap
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import ray
import torch
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

from tensorwire import _native

NAME = "TENSORWIRE"
#: Bytes of what the two processes of a group know, and nobody else: a key of 32, and a number of 8.
_SECRET_BYTES = 40
#: Seconds that two processes may take to come together, and that one tensor may take.
_PATIENCE = 60.0
#: Seconds until a listener that could not accept tries again.
_AGAIN = 0.1
#: Bytes from which on large pages are worth asking for.
_LARGE = 4 << 20


def register() -> None:
    """Announces the transport ``TENSORWIRE``. To be called where actors are created, before they are."""
    register_tensor_transport(NAME, ["cpu"], _Transport, torch.Tensor)


#: Where a tensor lies in shared memory: a file of the sender, its bytes, and the tensor's offset and strides in it.
_Place = tuple[int, int, int, tuple[int, ...]]


@dataclass
class _Described(TensorTransportMetadata):
    """Who has tensors, and where they lie."""

    #: What the sender's host has and no other.
    host: str = ""
    process: int = 0
    #: None where a tensor lies in private memory.
    places: list[_Place | None] = field(default_factory=list)
    #: Where the sender's process is asked for them, and what others prove themselves by.
    address: tuple[str, int] = ("", 0)
    secret: bytes = b""


class _Transport(TensorTransportManager):
    def __init__(self) -> None:
        self._sender: _Sender | None = None
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._beginning, self._meeting = threading.Lock(), threading.Lock()

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> _Described:
        with self._beginning:
            self._sender = self._sender or _Sender()
        self._sender.tensors[obj_id] = rdt_object
        return _Described(
            [(tensor.shape, tensor.dtype) for tensor in rdt_object],
            "cpu",
            _host(),
            os.getpid(),
            [_place(tensor) for tensor in rdt_object],
            self._sender.address,
            self._sender.secret,
        )

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        if not getattr(dst_actor, "_ray_enable_tensor_transport", True):
            # without it Ray has the method wait in the thread that would receive what it waits for
            said = f"declare {dst_actor}, which takes tensors, by @ray.remote(enable_tensor_transport=True); it may hang"
            warnings.warn(said, stacklevel=2)
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        described = tensor_transport_metadata
        assert isinstance(described, _Described)
        tensors: list[Any] = list(target_buffers or [None] * len(described.places))
        asked = {}
        for at, place in enumerate(described.places):
            shape, dtype = cast("tuple[torch.Size, torch.dtype]", described.tensor_meta[at])
            mapped = _mapped(described, place, shape, dtype)
            if mapped is None:
                asked[at] = tensors[at] = _room(shape, dtype) if tensors[at] is None else tensors[at]
            elif tensors[at] is None:
                tensors[at] = mapped
            else:
                tensors[at].copy_(mapped)
        if asked:
            self._peer(described).receive(obj_id, asked)
        return tensors

    def _peer(self, described: _Described) -> _Peer:
        with self._meeting:
            peer = self._peers.get(described.address)
            if peer is None or peer.is_gone:
                peer = self._peers[described.address] = _Peer(described.address, described.secret)
            return peer

    def send_multiple_tensors(self, *arguments: Any) -> None:
        raise NotImplementedError("receivers take what they want")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        # the memory goes with the last tensor of it
        if self._sender is not None:
            self._sender.tensors.pop(obj_id, None)

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        # who waits for a process that is lost is told by its connection
        pass


def _host() -> str:
    """Returns a name that two processes share only where they see each other's memory and files."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return " ".join([boot, *(os.readlink(f"/proc/self/ns/{space}") for space in ("net", "pid"))])


def _place(tensor: torch.Tensor) -> _Place | None:
    """Returns where a tensor lies, if that is shared memory which holds what it says."""
    storage = tensor.untyped_storage()
    if not tensor.is_shared() or storage.nbytes() == 0 or tensor.is_conj() or tensor.is_neg():
        return None
    # the file is the storage's, which Ray keeps
    file, size = storage._share_fd_cpu_()
    return file, size, int(tensor.storage_offset()), tensor.stride()


def _mapped(described: _Described, place: _Place | None, shape: Any, dtype: Any) -> torch.Tensor | None:
    """Returns a tensor in the memory of the sender; None if it cannot be seen from here."""
    if place is None or described.host != _host():
        return None
    file, size, offset, strides = place
    try:
        own = os.open(f"/proc/{described.process}/fd/{file}", os.O_RDWR)
    except (PermissionError, FileNotFoundError):
        # or the sender is gone, which asking it for a copy says
        return None
    storage = torch.UntypedStorage._new_shared_fd_cpu(own, size)  # type: ignore[attr-defined]
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)


def _room(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor in new memory. Where that is large it is of large pages: to touch each small one costs more than the copy."""
    size = shape.numel() * dtype.itemsize
    if size < _LARGE:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        # a kernel without them has small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


class _Sender:
    """What this process has for others, and who asks for it."""

    def __init__(self) -> None:
        #: By the number of Ray's object.
        self.tensors: dict[str, list[torch.Tensor]] = {}
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="tensorwire-sender", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                caller = self._listener.accept()[0]
            except OSError:
                # it hung up, or this process has too many files open for now
                time.sleep(_AGAIN)
                continue
            threading.Thread(target=self._serve, args=(caller,), name="tensorwire-sends", daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError), _Talk(caller) as talk:
            try:
                talk.demand_proof(self.secret)
                group = _meet(talk, 0, self.secret)
                while True:
                    wanted = talk.hear()
                    tensors = self.tensors.get(wanted["object"])
                    talk.say(found=tensors is not None)
                    for tensor in [] if tensors is None else [tensors[at] for at in wanted["which"]]:
                        whole = tensor.contiguous().resolve_conj().resolve_neg()
                        if whole.nbytes:
                            group.send(1, 0, (whole.data_ptr(), whole.nbytes), whole, _PATIENCE).wait()
            except (OSError, ValueError, LookupError, TypeError, _native.GroupError):
                # a stranger, or a receiver that is gone; who lives says why
                return


class _Peer:
    """A process that has tensors for this one."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        self.address = address
        self.is_gone = False
        self._lock = threading.Lock()
        with self._told():
            self._talk = _Talk(socket.create_connection(address, _PATIENCE))
            self._talk.prove(secret)
            self._group = _meet(self._talk, 1, secret)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Says what a failure means."""
        try:
            yield
        except (OSError, _native.GroupError) as error:
            self.is_gone = True
            host, port = self.address
            raise ConnectionError(
                f"{NAME}: the sender's process at {host}:{port} sends no tensors: {error}; "
                "does it live, and does this host reach it (firewall)?"
            ) from error

    def receive(self, wanted: str, tensors: dict[int, torch.Tensor]) -> None:
        """Fills tensors with those of an object, by their place in it."""
        with self._lock, self._told():
            self._talk.say(object=wanted, which=list(tensors))
            if not self._talk.hear()["found"]:
                raise ValueError(f"{NAME}: the sender has object {wanted} no more")
            for tensor in tensors.values():
                if tensor.nbytes:
                    # Ray sees to it that they are contiguous
                    self._group.receive(0, 0, (tensor.data_ptr(), tensor.nbytes), tensor, _PATIENCE).wait()


def _meet(talk: _Talk, rank: int, secret: bytes) -> _native.Communicator:
    """Returns a group of the two processes that talk, both of which call this."""
    own: dict[str, Any] = {"asked": os.environ.get("TENSORWIRE_TRANSPORT", "auto"), "host": _host(), "name": socket.gethostname()}
    own["can"] = own["asked"] == "auto" and _native.verbs_offer()[0] is not None
    talk.say(**own)
    other = talk.hear()
    transport = own["asked"]
    if transport != other["asked"]:
        raise ValueError(f"{NAME}: TENSORWIRE_TRANSPORT is {transport} here and {other['asked']} at {other['name']}; give both the same")
    spread = own["host"] != other["host"]
    if transport == "auto":
        transport = "shm" if not spread else "verbs" if own["can"] and other["can"] else "tcp"
    endpoint = _native.Endpoint(rank, transport, f"{talk.own_host()}:0" if spread else None, secret)
    talk.say(address=endpoint.address)
    addresses, names = [endpoint.address, talk.hear()["address"]], [own["name"], other["name"]]
    if rank == 1:
        addresses, names = addresses[::-1], names[::-1]
    return endpoint.connect(addresses, names, _PATIENCE, spread, lambda: None)


class _Talk:
    """What two processes say to each other, a line of JSON each."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._file = connected.makefile("rwb")

    def __enter__(self) -> _Talk:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._socket.close()

    def own_host(self) -> str:
        """Returns the address by which the other one reaches this host."""
        return self._socket.getsockname()[0]

    def say(self, **what: Any) -> None:
        self._file.write(json.dumps(what).encode() + b"\n")
        self._file.flush()

    def hear(self) -> Any:
        line = self._file.readline()
        if not line:
            raise ConnectionError("it hung up")
        return json.loads(line)

    def demand_proof(self, secret: bytes) -> None:
        """Returns if the other one knows the secret."""
        number = secrets.token_hex(32)
        self._socket.settimeout(_PATIENCE)
        self.say(prove=number)
        if not hmac.compare_digest(self.hear()["proof"], _proof(secret, number)):
            raise ValueError("a stranger")
        self._socket.settimeout(None)

    def prove(self, secret: bytes) -> None:
        """Shows that this process knows the secret."""
        self.say(proof=_proof(secret, self.hear()["prove"]))


def _proof(secret: bytes, number: str) -> str:
    return hmac.digest(secret, number.encode(), "sha256").hex()
