"""Ray as an engine: it places the processes of a job, and hands tensors from actor to actor.

`train` runs a function in workers that Ray placed, each with what torchrun would have told it, so that
``torch.distributed.init_process_group("tensorwire")`` and ``tensorwire.kv.create()`` find the others::

    import tensorwire.ray

    def step(config):
        kv = tensorwire.kv.create("dist_sync")
        ...

    results = tensorwire.ray.train(step, {"rate": 0.1}, workers=4)

`register` announces a transport for tensors of the host, which methods of actors name::

    tensorwire.ray.register()

    @ray.remote
    class Source:
        @ray.method(tensor_transport="TENSORWIRE")
        def batch(self): ...

The receiver shares the memory of the sender, as with Ray's CUDA IPC; both are to run on one host.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

__all__ = ["register", "train"]

NAME = "TENSORWIRE"
# How long the others may take to say what they saw once one has failed.
_LAST_WORDS_S = 5.0


def train(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int = 2,
    resources: Mapping[str, float] | None = None,
    strategy: str = "PACK",
    environment: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> list[Any]:
    """Runs a function in workers that Ray places; returns what each returned, by rank.

    Each worker has ``resources`` (one CPU), and they lie as a placement group of ``strategy`` does. ``timeout`` is how many
    seconds Ray may take to find room for all of them. The first worker to fail ends the others: a ``RuntimeError`` names it.
    """
    bundles = [dict(resources or {"CPU": 1}) for _ in range(workers)]
    group = placement_group(bundles, strategy=strategy)
    actors: list[Any] = []
    try:
        if not group.wait(timeout):
            raise TimeoutError(
                f"Ray has no room for {workers} workers of {bundles[0]} after {timeout:g} s; it has {ray.available_resources()}"
            )
        actors = [_actor(group, at, bundle) for at, bundle in enumerate(bundles)]
        hosts = ray.get([actor.host.remote() for actor in actors])
        port = ray.get(actors[0].free_port.remote())
        for rank, actor in enumerate(actors):
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
                "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
                "MASTER_ADDR": hosts[0],
                "MASTER_PORT": str(port),
            }
            ray.get(actor.take_place.remote({**(environment or {}), **place}))
        return _results([actor.run.remote(function, arguments) for actor in actors], hosts)
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def _results(running: list[Any], hosts: list[str]) -> list[Any]:
    """What all return; the error of the first that fails, if one does."""
    left = list(running)
    while left:
        (done,), left = ray.wait(left)
        try:
            ray.get(done)
        except ray.exceptions.RayError as error:
            rank = running.index(done)
            if left:
                # what they see of it, they may still print
                ray.wait(left, num_returns=len(left), timeout=_LAST_WORDS_S)
            raise RuntimeError(
                f"worker {rank} of {len(running)}, on {hosts[rank]}, failed: {_cause(error)}"
            ) from error
    return ray.get(running)


def _cause(error: ray.exceptions.RayError) -> str:
    cause = getattr(error, "cause", None)
    return f"{type(cause).__name__}: {cause}" if cause else str(error).strip().splitlines()[0]


def _actor(group: Any, at: int, bundle: Mapping[str, float]) -> Any:
    own = dict(bundle)
    placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at)
    return _Worker.options(
        num_cpus=own.pop("CPU", 0),
        num_gpus=own.pop("GPU", 0),
        resources=own,
        scheduling_strategy=placed,
    ).remote()


@ray.remote
class _Worker:
    def host(self) -> str:
        return ray.util.get_node_ip_address()

    def free_port(self) -> int:
        with socket.socket() as listener:
            listener.bind(("", 0))
            return listener.getsockname()[1]

    def take_place(self, place: Mapping[str, str]) -> None:
        os.environ.update(place)

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)


def register() -> None:
    """Announces the transport ``TENSORWIRE``. To be called where actors are created, before they are."""
    register_tensor_transport(NAME, ["cpu"], _Transport, torch.Tensor)


@dataclass
class _Shared(TensorTransportMetadata):
    """Where tensors lie: whose memory, and of each its file, bytes, offset and strides."""

    node: str = ""
    process: int = 0
    places: list[tuple[int, int, int, tuple[int, ...]]] = field(default_factory=list)


class _Transport(TensorTransportManager):
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

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> _Shared:
        meta, places = [], []
        for tensor in rdt_object:
            # moves what lies in private memory; what is shared already stays. The file is the storage's, which Ray keeps
            file, size = tensor.untyped_storage()._share_fd_cpu_()
            meta.append((tensor.shape, tensor.dtype))
            places.append((file, size, tensor.storage_offset(), tensor.stride()))
        node = ray.get_runtime_context().get_node_id()
        return _Shared(meta, "cpu", node, os.getpid(), places)

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: _Shared,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        shared = tensor_transport_metadata
        here = ray.get_runtime_context().get_node_id()
        if here != shared.node:
            raise ValueError(
                f"{NAME} hands tensors over on one host, and the sender's node is {shared.node}, this one {here}; leave tensor_transport out"
            )
        tensors = []
        for (shape, dtype), (file, size, offset, strides) in zip(shared.tensor_meta, shared.places):
            own = os.open(f"/proc/{shared.process}/fd/{file}", os.O_RDWR)
            storage = torch.UntypedStorage._new_shared_fd_cpu(own, size)
            tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)
            tensors.append(tensor)
        if not target_buffers:
            return tensors
        for target, tensor in zip(target_buffers, tensors):
            target.copy_(tensor)
        return target_buffers

    def send_multiple_tensors(self, *arguments: Any) -> None:
        raise NotImplementedError("receivers take what they want")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        # the memory goes with the last tensor of it
        pass

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        # nothing is under way between two processes
        pass
