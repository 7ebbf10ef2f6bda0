"""Jobs in processes that Ray places: a function in each of them, or a graph that they train together."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tensorwire import _job, _native
from tensorwire._job import JobFailed, Said

#: Seconds that the others may take to say what they saw once one has failed.
_LAST_WORDS = 5.0
#: Bytes of a file that travel to other hosts at a time.
_PIECE = 64 << 20

_log = logging.getLogger("tensorwire.ray")


class WorkerFailed(RuntimeError):
    """A worker of a job failed. Says which, on which host, and why."""

    def __init__(self, message: str, rank: int, host: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host


def train(
    job: Any,
    *arguments: Any,
    workers: int = 2,
    restarts: int = 0,
    resources: Mapping[str, float] | None = None,
    placement_strategy: str = "PACK",
    environment: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    **options: Any,
) -> Any:
    """Runs a job in processes that Ray places, one a worker.

    A function is called with ``arguments`` in each of them; what it returns comes back in a list, by rank. An imported module,
    or the name of a model that is shipped, is trained as by ``tensorwire.train(job, *arguments, workers=workers, **options)``,
    and what that returns comes back; servers are processes like workers. Without ``threads`` each computes with as many as it
    has CPUs.

    Each process has ``resources`` (one CPU), and they lie as a placement group of ``placement_strategy`` does.
    ``environment`` is set in all of them. ``timeout`` is how many seconds Ray may take to find room for them, on which it is a
    TimeoutError.

    The first process to fail, or to be lost with its actor or its node, ends all, but for what an elastic store can do without.
    Up to ``restarts`` times they are then all placed anew, on what nodes there are, and begin again: a function finds
    ``TORCHELASTIC_RESTART_COUNT`` one higher, and goes on from its own checkpoint if it keeps one; a graph from the newest in its
    ``checkpoint``, which all nodes must reach. The last failure is a WorkerFailed, of a graph a JobFailed. It names worker and host.
    """
    bundle = dict(resources or {"CPU": 1})
    placing = _Placing(bundle, placement_strategy, dict(environment or {}), timeout)
    # a module that is not imported can be called, too
    if callable(job) and not hasattr(job, "state_dict"):
        if options:
            raise TypeError(f"{', '.join(options)}: these options are of a graph; give a function its arguments by position")
        return _in_each(placing, job, arguments, workers, restarts)
    from tensorwire import training

    options.setdefault("threads", max(1, int(bundle.get("CPU", 1))))
    return training.train(job, *arguments, workers=workers, engine=_Engine(placing, restarts), **options)


@dataclass(frozen=True)
class _Placing:
    """What Ray is asked for."""

    #: Of each process.
    bundle: dict[str, float]
    strategy: str
    environment: dict[str, str]
    timeout: float


def _in_each(
    placing: _Placing, function: Callable[..., Any], arguments: tuple[Any, ...], workers: int, restarts: int
) -> list[Any]:
    names = [f"worker {rank}" for rank in range(workers)]
    for attempt in range(restarts + 1):
        try:
            with _Placed(names, placing, attempt) as placed:
                return placed.results([actor.call.remote(function, arguments) for actor in placed.actors])
        except WorkerFailed as failure:
            _again(failure, attempt, restarts)
    raise AssertionError("the last failure is raised")


def _again(failure: Exception, attempt: int, restarts: int) -> None:
    """Raises the failure, unless there is another attempt."""
    if attempt == restarts:
        raise failure
    _log.warning("%s; all begin again (restart %d of %d)", failure, attempt + 1, restarts)


class _Engine:
    """Runs the job of a folder for ``tensorwire.train``."""

    def __init__(self, placing: _Placing, restarts: int) -> None:
        self.placing = placing
        self.restarts = restarts

    def __call__(self, folder: Path) -> Said:
        workers, servers = _native.job_members(str(folder))
        names = [f"worker {rank}" for rank in range(workers)] + [f"server {number}" for number in range(servers)]
        for attempt in range(self.restarts + 1):
            try:
                with _Placed(names, self.placing, attempt) as placed, _Copies(placed, folder) as copies:
                    yield from placed.said(folder, attempt > 0)
                    copies.fetch("trained.safetensors")
                return
            except (WorkerFailed, JobFailed) as failure:
                _again(failure if isinstance(failure, JobFailed) else JobFailed(str(failure)), attempt, self.restarts)


class _Placed:
    """Processes that Ray has placed, an actor each, by rank. They end when it is left."""

    def __init__(self, names: list[str], placing: _Placing, attempt: int) -> None:
        self.names = names
        self.placing = placing
        self.attempt = attempt
        self.actors: list[Any] = []
        #: By rank: the node, its address, and what messages call it.
        self.places: list[tuple[str, str, str]] = []
        self._group: Any = None

    def __enter__(self) -> _Placed:
        try:
            self._place()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _place(self) -> None:
        placing, count = self.placing, len(self.names)
        self._group = placement_group([placing.bundle] * count, strategy=placing.strategy)
        if not self._group.wait(placing.timeout):
            raise TimeoutError(
                f"Ray has no room for {count} processes of {placing.bundle} after {placing.timeout:g} s; "
                f"it has {ray.available_resources()}"
            )
        self.actors = [self._actor(rank) for rank in range(count)]
        self.places = list(self.ask(lambda actor: actor.place.remote()).values())
        port = self.ask(lambda actor: actor.free_port.remote(), [0])[0]
        # who takes part in the job knows it; workers tell each other only that they do
        shared = {
            "TENSORWIRE_SECRET": secrets.token_hex(32),
            **placing.environment,
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": self.places[0][1],
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt),
        }
        nodes = [node for node, *_ in self.places]
        own = iter(
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(nodes[:rank].count(node)),
                "LOCAL_WORLD_SIZE": str(nodes.count(node)),
            }
            for rank, node in enumerate(nodes)
        )
        self.ask(lambda actor: actor.take_place.remote({**shared, **next(own)}))

    def _actor(self, rank: int) -> Any:
        rest = dict(self.placing.bundle)
        return _Process.options(  # type: ignore[attr-defined]
            num_cpus=rest.pop("CPU", 0),
            num_gpus=rest.pop("GPU", 0),
            memory=rest.pop("memory", None),
            resources=rest,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank),
        ).remote()

    def _end(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)

    def ask(self, question: Callable[[Any], Any], ranks: Iterable[int] | None = None) -> dict[int, Any]:
        """Returns what processes answer, by rank; all are asked at once."""
        asked = {rank: question(self.actors[rank]) for rank in (range(len(self.actors)) if ranks is None else ranks)}
        answers = {}
        for rank, each in asked.items():
            try:
                answers[rank] = ray.get(each)
            except RayError as error:
                raise self.failure(rank, error) from error
        return answers

    def results(self, running: list[Any]) -> list[Any]:
        """Returns what all return, by rank; the first of them to fail ends it."""
        left = list(running)
        while left:
            (done,), left = ray.wait(left)
            error = _error(done)
            if error is None:
                continue
            rank = running.index(done)
            # one that is lost may be the reason that another fails, which is seen before
            end = time.monotonic() + _LAST_WORDS
            while left and not _is_lost(error) and (seconds := end - time.monotonic()) > 0:
                more, left = ray.wait(left, timeout=seconds)
                for other in more:
                    found = _error(other)
                    if found is not None and _is_lost(found):
                        rank, error = running.index(other), found
            raise self.failure(rank, error) from error
        return ray.get(running)

    def said(self, folder: Path, again: bool) -> Said:
        """Gives what the process says that leads the job of a folder, until all is over."""
        leader = self.actors[0].lead.remote(str(folder), again)
        ranks = {leader: 0}
        ranks |= {actor.follow.remote(str(folder)): rank for rank, actor in enumerate(self.actors) if rank > 0}
        lost: WorkerFailed | None = None
        failure: Exception | None = None
        has_said = False
        while ranks:
            ready, _ = ray.wait(list(ranks), timeout=None if failure is None else _LAST_WORDS)
            if not ready:
                break
            one, rank = ready[0], ranks[ready[0]]
            try:
                batch = ray.get(next(one)) if one is leader else [("ended", ray.get(one))]
            except StopIteration:
                del ranks[one]
                continue
            except RayError as error:
                lost = lost or self.failure(rank, error)
                if one is leader:
                    raise lost from error
                # whether the job goes on without it, the leader says
                del ranks[one]
                continue
            for kind, text in batch:
                has_said |= kind in ("done", "refused", "failed")
                if kind == "failed":
                    failure = JobFailed(json.loads(text))
                elif kind == "ended" and text != "0" and not has_said:
                    failure = self._failed(rank, f"its process ended with status {text}; what it printed says why")
            if one is not leader:
                del ranks[one]
            elif failure is None:
                yield batch
        if failure is not None and lost is not None:
            raise WorkerFailed(f"{lost} ({failure})", lost.rank, lost.host) from failure
        if failure is not None:
            raise failure

    def failure(self, rank: int, error: RayError) -> WorkerFailed:
        """Returns what is to be said of a process whose actor failed."""
        cause = getattr(error, "cause", None)
        if cause is not None:
            return self._failed(rank, f"{type(cause).__name__}: {cause}")
        if "node has died" in str(error):
            return self._failed(rank, "its node is lost")
        return self._failed(rank, "its process is lost: killed, or out of memory")

    def _failed(self, rank: int, why: str) -> WorkerFailed:
        host = self.places[rank][2] if self.places else "a node that it had not named yet"
        return WorkerFailed(f"{self.names[rank]} of {len(self.names)}, on {host}, failed: {why}", rank, host)


class _Copies:
    """A folder of this process at the same place on every node of a job. Copies go when it is left."""

    def __init__(self, placed: _Placed, folder: Path) -> None:
        self.placed = placed
        self.folder = folder
        #: The first process on each node that does not see this one's folder.
        self.ranks: list[int] = []

    def there(self, name: str) -> str:
        """Returns where a file of the folder is on a node."""
        return str(self.folder / name)

    def __enter__(self) -> _Copies:
        nodes = [node for node, *_ in self.placed.places]
        firsts = [nodes.index(node) for node in dict.fromkeys(nodes)]
        # it comes last: where it is, all is
        last = "job.json"
        has = self.placed.ask(lambda actor: actor.has.remote(self.there(last)), firsts)
        self.ranks = [rank for rank, has_it in has.items() if not has_it]
        if self.ranks:
            for name in sorted(os.listdir(self.folder), key=lambda name: name == last):
                self._give(name)
        return self

    def _give(self, name: str) -> None:
        with (self.folder / name).open("rb") as file:
            # one piece at least, that an empty file is there
            self._write(name, 0, file.read(_PIECE))
            while piece := file.read(_PIECE):
                self._write(name, file.tell() - len(piece), piece)

    def _write(self, name: str, start: int, piece: bytes) -> None:
        path, given = self.there(name), ray.put(piece)
        self.placed.ask(lambda actor: actor.write.remote(path, start, given), self.ranks)

    def fetch(self, name: str) -> None:
        """Brings a file of the first process here, if it is elsewhere."""
        if 0 not in self.ranks:
            return
        path = self.there(name)
        with (self.folder / name).open("wb") as file:
            while piece := self.placed.ask(lambda actor: actor.read.remote(path, file.tell(), _PIECE), [0])[0]:
                file.write(piece)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        gone = [self.placed.actors[rank].remove.remote(self.there("")) for rank in self.ranks]
        if gone:
            # a node that is lost keeps what it has
            ray.wait(gone, num_returns=len(gone), timeout=_LAST_WORDS)


@ray.remote
class _Process:
    """A process of a job."""

    def place(self) -> tuple[str, str, str]:
        address = ray.util.get_node_ip_address()
        return ray.get_runtime_context().get_node_id(), address, f"{socket.gethostname()} ({address})"

    def free_port(self) -> int:
        with socket.socket() as listener:
            listener.bind(("", 0))
            return listener.getsockname()[1]

    def take_place(self, place: Mapping[str, str]) -> None:
        os.environ.update(place)

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)

    @ray.method(num_returns="streaming")
    def lead(self, folder: str, again: bool) -> Said:
        yield from _job.run(Path(folder), again)

    def follow(self, folder: str) -> str:
        """Returns the status that it ends with."""
        *_, last = _job.run(Path(folder))
        return last[0][1]

    def has(self, path: str) -> bool:
        return Path(path).exists()

    def write(self, path: str, start: int, piece: bytes) -> None:
        """Writes a piece of a file; the first makes it."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if start else "wb") as file:
            file.seek(start)
            file.write(piece)

    def read(self, path: str, start: int, size: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def remove(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)


def _error(done: Any) -> RayError | None:
    """Returns what a call failed with."""
    try:
        ray.get(done)
    except RayError as error:
        return error
    return None


def _is_lost(error: RayError) -> bool:
    """True if it is not the function that failed but its process."""
    return not isinstance(error, RayTaskError)

