"""Ranks that are killed or stopped, each at every moment: the others raise in time, nobody hangs, and nothing is left.

An ordinary run takes a fixed case of each moment, TENSORWIRE_LONG all of them.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests import ranks
from tests.ranks import Killed

LONG = bool(os.environ.get("TENSORWIRE_LONG"))
#: Print a line a case.
VERBOSE = bool(os.environ.get("TENSORWIRE_VERBOSE"))
WORLD = 3
#: Seconds of a group's timeout where a rank is stopped, and where one is killed, which is seen without it.
TIMEOUT, PATIENCE = 1.0, 30.0
#: Seconds within which everybody has raised behind a death, or behind the timeout. On a busy machine it is many, but fewer than
#: of the timeout where one is killed.
SOON = 20.0


def ring(rank: int, length: int = 500_000) -> None:
    own, other = torch.ones(length), torch.empty(length)
    sends = dist.isend(own, (rank + 1) % WORLD)
    dist.recv(other, (rank - 1) % WORLD)
    sends.wait()


def to_first(rank: int) -> None:
    if rank:
        dist.send(torch.ones(200_000), 0, tag=3)
        dist.recv(torch.empty(1), 0)
        return
    for _ in range(1, WORLD):
        dist.recv(torch.empty(200_000), tag=3)
    for other in range(1, WORLD):
        dist.send(torch.ones(1), other)


def coalesced(_rank: int) -> None:
    with dist._coalescing_manager():
        for _ in range(4):
            dist.all_reduce(torch.ones(100_000))


def in_place(_rank: int) -> None:
    import tensorwire.torch as tensorwire

    dist.all_reduce(tensorwire.empty(500_000).fill_(1.0))


def futures(_rank: int) -> None:
    works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(3)]
    for work in works:
        work.get_future().wait()


def uneven(rank: int) -> None:
    counts = [100_000 * (r + 1) for r in range(WORLD)]
    dist.all_to_all_single(
        torch.empty(WORLD * counts[rank]), torch.ones(sum(counts)), [counts[rank]] * WORLD, counts
    )


def step(adopts: bool) -> None:
    """A step of DDP, whose gradients wait for futures."""
    import tensorwire.torch as tensorwire

    module = torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(6)))
    ddp = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.2)
    if adopts:
        tensorwire.adopt(ddp)
    ddp(torch.ones(1, 200)).sum().backward()


def sharded(_rank: int) -> None:
    from torch.distributed.fsdp import fully_shard

    module = fully_shard(torch.nn.Linear(300, 300), mesh=dist.init_device_mesh("cpu", (WORLD,)))
    module(torch.ones(1, 300)).sum().backward()


def wide(count: int = WORLD) -> list[torch.Tensor]:
    return [torch.ones(300_000) for _ in range(count)]


#: What ranks do over and over when one of them is struck.
OPERATIONS: dict[str, Callable[[int], Any]] = {
    "all_reduce": lambda _: dist.all_reduce(torch.ones(2_000_000)),
    "a short all_reduce": lambda _: dist.all_reduce(torch.ones(4)),
    "an all_reduce in place": in_place,
    "all_reduces with futures": futures,
    "coalesced all_reduces": coalesced,
    "broadcast": lambda _: dist.broadcast(torch.ones(2_000_000), src=1),
    "reduce": lambda _: dist.reduce(torch.ones(2_000_000), dst=1),
    "all_gather": lambda _: dist.all_gather(wide(), torch.ones(300_000)),
    "gather": lambda rank: dist.gather(torch.ones(300_000), wide() if rank == 1 else None, dst=1),
    "scatter": lambda rank: dist.scatter(torch.ones(300_000), wide() if rank == 1 else None, src=1),
    "reduce_scatter": lambda _: dist.reduce_scatter(torch.ones(300_000), wide()),
    "all_to_all": lambda _: dist.all_to_all(wide(), wide()),
    "an uneven all_to_all": uneven,
    "barrier": lambda _: dist.barrier(),
    "send and recv": ring,
    "recv from any": to_first,
    "a step of DDP": lambda _: step(False),
    "a step of DDP with adopt": lambda _: step(True),
    "a step of FSDP2": sharded,
}

IMPORT = "import"
#: What a rank says to the store is a way to name moments of its coming together with others.
BEFORE_OFFER, BEHIND_OFFER = "before its offer", "behind its offer"
BEFORE_ANSWER, BEHIND_ANSWER = "before its answer", "behind its answer"
BEFORE_ADDRESS, BEHIND_ADDRESS = "before its address", "behind its address"
CONNECTING, CONNECTED = "while it connects", "when it has come together"
MOMENTS_OF_INIT = [
    BEFORE_OFFER, BEHIND_OFFER, BEFORE_ANSWER, BEHIND_ANSWER, BEFORE_ADDRESS, BEHIND_ADDRESS, CONNECTING, CONNECTED,
]  # fmt: skip
BEFORE_GOODBYE, GOODBYE = "before destroy", "in destroy"
#: Nobody knows yet that the rank is there: it is missed at the timeout alone.
UNKNOWN = (IMPORT, BEFORE_OFFER)


@dataclass(frozen=True)
class Case:
    """A rank that gets a signal at a moment."""

    moment: str
    signal: signal.Signals
    victim: int
    transport: str
    #: Who keeps the store: a file, or rank 0.
    store: str
    #: Of what is drawn in it.
    seed: int = 0
    _mark: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 8), compare=False, repr=False)

    @property
    def timeout(self) -> float:
        return TIMEOUT if self.signal == signal.SIGSTOP or self.moment in UNKNOWN else PATIENCE

    def strike(self) -> None:
        """Notes the time, and gives this process the signal."""
        self._mark[:] = struct.pack("d", time.monotonic())
        os.kill(os.getpid(), self.signal)

    def struck(self) -> float:
        """Returns when that was; 0 if it has not happened."""
        return struct.unpack("d", self._mark[:])[0]

    def strike_in(self, seconds: float) -> None:
        def later() -> None:
            time.sleep(seconds)
            self.strike()

        threading.Thread(target=later, daemon=True).start()


def all_cases() -> Iterator[Case]:
    signals, victims, transports = (signal.SIGKILL, signal.SIGSTOP), range(WORLD), ("shm", "tcp")
    for seed, (moment, sent, victim, transport) in enumerate(
        itertools.product([*OPERATIONS, BEFORE_GOODBYE, GOODBYE], signals, victims, transports)
    ):
        yield Case(moment, sent, victim, transport, "file", seed)
    for seed, (moment, sent, victim, transport, store) in enumerate(
        itertools.product([IMPORT, *MOMENTS_OF_INIT], signals, victims, transports, ("file", "rank 0"))
    ):
        # a client of a store waits in PyTorch alone until rank 0 keeps it
        if not (store == "rank 0" and moment == IMPORT):
            yield Case(moment, sent, victim, transport, store, seed)


def cases() -> list[Case]:
    """Returns all, or a fixed one of each moment."""
    every = list(all_cases())
    if LONG:
        return every
    drawn, kinds = random.Random(17), sorted({(case.moment, case.signal) for case in every})
    chosen = [drawn.choice([case for case in every if (case.moment, case.signal) == kind]) for kind in kinds]
    # whoever is stopped is waited for: of few operations, which are not killed then, and of every second moment
    operations = sorted(OPERATIONS)[::7]
    stopped = [*operations, *MOMENTS_OF_INIT[::2], BEFORE_GOODBYE, GOODBYE]
    return [
        case
        for case in chosen
        if (case.moment in stopped if case.signal == signal.SIGSTOP else case.moment not in operations)
    ]


class Striker:
    """Has the victim be struck at a moment of its coming together."""

    def __init__(self, case: Case) -> None:
        self.case = case
        if case.moment == IMPORT:
            sys.meta_path.insert(0, self)
            return
        from tensorwire.torch import rendezvous

        says, connects, moment = rendezvous._Gathering.set, rendezvous._native.Endpoint, case.moment

        def said(gathering: Any, key: str, what: str) -> None:
            kinds = {"offer": key.startswith("offer/"), "address": "/address/" in key}
            kinds["answer"] = "/here/" in key or key == "call"
            kind = next((kind for kind, is_it in kinds.items() if is_it), None)
            if moment == f"before its {kind}":
                case.strike()
            says(gathering, key, what)
            if moment == f"behind its {kind}":
                case.strike()

        class Endpoint:
            def __init__(self, *arguments: Any) -> None:
                self.inner = connects(*arguments)
                self.address = self.inner.address

            def connect(self, *arguments: Any) -> Any:
                if moment == CONNECTING:
                    case.strike_in(random.Random(case.seed).uniform(0.0, 0.01))
                connected = self.inner.connect(*arguments)
                if moment in (CONNECTING, CONNECTED):
                    case.strike()
                return connected

        rendezvous._Gathering.set = said
        rendezvous._native.Endpoint = Endpoint

    def find_spec(self, name: str, *_others: Any) -> None:
        if name == "tensorwire.torch.backend":
            self.case.strike()


def held() -> dict[str, str]:
    """Returns what this process has of threads, of memory to share, and of sockets, with a word on each."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/comm") as file:
                found[f"thread {thread}"] = file.read().strip()
        except OSError:
            continue
    for number in os.listdir("/proc/self/fd"):
        try:
            found[f"descriptor {number}"] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
    return found


def left(before: dict[str, str], case: Case) -> list[str]:
    """Returns what a group has left behind, when it had a moment to go."""
    theirs = ("pt_", "/")
    if case.store == "rank 0":
        theirs += ("socket:", "anon_inode:", "pipe:")
        if case.signal == signal.SIGSTOP and case.victim == 0:
            # a thread that has asked the store waits until that goes on
            with open("/proc/self/comm") as file:
                theirs += (file.read().strip(),)
    # whoever is greeted and says nothing has five seconds
    end = time.monotonic() + SOON
    while True:
        gc.collect()
        more = [f"{name}: {what}" for name, what in held().items() if before.get(name) != what and not what.startswith(theirs)]
        if not more or time.monotonic() > end:
            return more
        time.sleep(0.02)


@dataclass
class Survivor:
    """What a rank that was not struck has seen."""

    said: str
    raised: float
    destroyed_in: float
    left: list[str]


def suffer(case: Case, init_method: str, rank: int) -> Survivor:
    before = held()
    is_victim = rank == case.victim
    if is_victim and case.moment in (IMPORT, *MOMENTS_OF_INIT):
        Striker(case)
    said, raised = "", 0.0
    try:
        dist.init_process_group(
            "tensorwire", init_method=init_method, rank=rank, world_size=WORLD, timeout=timedelta(seconds=case.timeout)
        )
        operation = OPERATIONS.get(case.moment)
        if operation is not None:
            operation(rank)
            dist.barrier()
            if is_victim:
                case.strike_in(random.Random(case.seed).uniform(0.0, 0.03))
            while True:
                operation(rank)
        if case.moment in MOMENTS_OF_INIT:
            dist.all_reduce(torch.ones(10))
        dist.barrier()
    except RuntimeError as error:
        # of which the backend's are; DDP raises others in their place
        said, raised = str(error), time.monotonic()
    if is_victim and case.moment == BEFORE_GOODBYE:
        case.strike()
    if is_victim and case.moment == GOODBYE:
        case.strike_in(random.Random(case.seed).uniform(0.0, 0.002))
    begun = time.monotonic()
    if dist.is_initialized():
        dist.destroy_process_group()
    destroyed_in = time.monotonic() - begun
    if is_victim:
        # it was quicker than what was drawn
        case.strike()
    return Survivor(said, raised, destroyed_in, left(before, case))


class Faults(unittest.TestCase):
    def test_whoever_is_struck_is_missed_in_time_and_nothing_is_left(self) -> None:
        every, late = cases(), (0.0, "")
        begun = time.monotonic()
        for case in every:
            with self.subTest(case=case):
                case_begun = time.monotonic()
                late = max(late, (self.check(case), str(case)))
                if VERBOSE:
                    print(f"{time.monotonic() - case_begun:.2f} s {case}", flush=True)
        print(f"{len(every)} cases in {time.monotonic() - begun:.0f} s; the slowest was missed {late[0]:.2f} s behind its time: {late[1]}")

    def check(self, case: Case) -> float:
        """Returns how long behind the signal, or the timeout, the last has raised."""
        with tempfile.TemporaryDirectory() as folder:
            where = f"file://{folder}/store"
            if case.store == "rank 0":
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    where = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
            results = ranks.run(
                WORLD, lambda rank: suffer(case, where, rank), transport=case.transport, comes_together=False
            )
        self.assertGreater(case.struck(), 0.0, "nobody was struck")
        late = 0.0
        for rank, survivor in enumerate(results):
            if rank == case.victim:
                self.assertIsInstance(survivor, Killed)
                continue
            self.assertIsInstance(survivor, Survivor, survivor)
            self.assertEqual(survivor.left, [], survivor)
            self.assertLess(survivor.destroyed_in, SOON)
            if case.moment in (BEFORE_GOODBYE, GOODBYE):
                continue
            took = survivor.raised - case.struck()
            self.assertGreater(survivor.raised, 0.0, survivor)
            self.assertRegex(survivor.said, "rank|any other member")
            if case.moment in UNKNOWN:
                if case.victim == 0 or rank == 0:
                    self.assertIn(f"rank {case.victim} ", survivor.said)
            elif case.signal == signal.SIGKILL and not (case.store == "rank 0" and case.victim == 0):
                self.assertIn(f"rank {case.victim} on {socket.gethostname()}", survivor.said)
            if case.timeout == TIMEOUT:
                took -= TIMEOUT
            self.assertLess(took, SOON, survivor)
            late = max(late, took)
        return late

    def test_those_who_are_left_shrink_the_group_and_go_on(self) -> None:
        def body(rank: int) -> float:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                dist.all_reduce(torch.ones(4))
            except dist.DistBackendError:
                pass
            dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
            own = torch.full((4,), float(rank))
            dist.all_reduce(own)
            return own[0].item()

        self.assertEqual([r for r in ranks.run(3, body) if not isinstance(r, Killed)], [2.0, 2.0])


if __name__ == "__main__":
    unittest.main()
