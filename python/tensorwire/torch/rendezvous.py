"""How the members of a group find each other: through the store that PyTorch gives them."""

from __future__ import annotations

import json
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistBackendError, DistStoreError, PrefixStore

from tensorwire import _native

#: Bytes of what all members know and no stranger: a key of 32, and a number of 8.
SECRET_BYTES = 40
#: Bytes of a number that nobody draws twice.
NONCE_BYTES = 16
TRANSPORTS = ("auto", "shm", "tcp", "verbs")
#: Seconds between two looks at the store, at first and later.
LOOK_UP, LOOK_UP_AT_LEAST = 0.001, 0.05
#: Seconds between two looks at who is alive.
LOOK_OUT = 0.5
#: Seconds after which a process that was dead when its offer was found is not followed by another one.
RENEWED = 2.0
#: Seconds that a store has to answer when the time is over.
ANSWER = 1.0


@dataclass(frozen=True)
class Settings:
    """What a user may set; the same at all members but for the address to listen at."""

    transport: str = "auto"
    listen: str | None = None

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ValueError(f"there is no transport '{self.transport}'; there are {', '.join(TRANSPORTS)}")

    @staticmethod
    def from_environment() -> Settings:
        """Returns what TENSORWIRE_TRANSPORT and TENSORWIRE_LISTEN say."""
        return Settings(
            transport=os.environ.get("TENSORWIRE_TRANSPORT", "auto"),
            listen=os.environ.get("TENSORWIRE_LISTEN"),
        )


@dataclass(frozen=True)
class Meeting:
    """A group that has come together."""

    communicator: _native.Communicator
    why: str
    #: Where its members alone write, and nothing is left of an earlier attempt.
    store: Any


def _host() -> str:
    """Returns a name that two processes share only where they share memory and sockets."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


def _namespace() -> str:
    """Returns a name that two processes share only where they number processes alike."""
    return os.readlink("/proc/self/ns/pid")


def _process() -> list[Any]:
    """Returns what tells this process from all others of its host."""
    return [_namespace(), os.getpid(), _begun(os.getpid())]


def _begun(process: int) -> str | None:
    """Returns when a process was started, in the kernel's ticks; None if it has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            # behind the name in brackets, which may hold anything
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def ask(seconds: float, call: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a call of a store returns. Such a call has no end of its own where whoever keeps the store is stopped."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put((call(*arguments), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=answer, name="store", daemon=True).start()
    try:
        value, error = answers.get(timeout=max(seconds, 0.0) + ANSWER)
    except queue.Empty:
        raise DistStoreError(
            "the store by which the group comes together does not answer; is rank 0 or the launcher, who keeps it, stopped?"
        ) from None
    if error is not None:
        raise error
    return value


class _Gathering:
    """Members that come together through a store, by a deadline, unless one of them is seen to have died."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.timeout = timeout.total_seconds()
        self.end = time.monotonic() + self.timeout
        #: What members have offered, by rank; by its nonce, when that was seen first, and whether it stood for a process then.
        self.offers: dict[int, dict[str, Any]] = {}
        self._seen: dict[str, tuple[float, bool]] = {}
        self._host, self._namespace = _host(), _namespace()
        #: Whether a launcher may start members anew with the same store.
        self._restarts = "TORCHELASTIC_RUN_ID" in os.environ
        self._looked, self._pause, self._is_store_gone = 0.0, LOOK_UP, False

    def gather(self, offer: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """Returns a number of this attempt, and what each member offers in it.

        A launcher that restarts its processes keeps its store, and with it what those before have said. So each offer has a
        number of its own; rank 0 calls together whom it has found, and begins when each has answered that it was meant.
        """
        offer["nonce"] = _native.random(NONCE_BYTES).hex()
        self.set(f"offer/{self.rank}", json.dumps(offer))
        gathered = self._call() if self.rank == 0 else self._answer(offer)
        self._pause = LOOK_UP
        return gathered

    def _call(self) -> tuple[str, list[dict[str, Any]]]:
        attempt, offers, away = "", [], set(range(self.size))
        keys = {rank: f"offer/{rank}" for rank in range(self.size)}
        while True:
            found = [json.loads(said) for said in self.wait(keys, "come", are_offers=True)]
            if found != offers:
                attempt, offers, away = _native.random(NONCE_BYTES).hex(), found, set(range(1, self.size))
                self._meet(dict(enumerate(offers)))
                self.set("call", json.dumps([attempt, offers]))
            away = {rank for rank in away if not self._has([f"{attempt}/here/{rank}"])}
            if not away:
                self.set(f"{attempt}/begin", "")
                return attempt, offers
            self._look(sorted(away), "answered")
            self._rest()

    def _answer(self, offer: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        attempt = ""
        while True:
            self._meet({0: json.loads(self.wait({0: "offer/0"}, "come")[0])})
            if self._has(["call"]):
                called, offers = json.loads(self._get("call"))
                is_meant = len(offers) == self.size and offers[self.rank]["nonce"] == offer["nonce"]
                if is_meant and called != attempt:
                    attempt = called
                    self._meet(dict(enumerate(offers)))
                    self.set(f"{attempt}/here/{self.rank}", "")
                if is_meant and self._has([f"{attempt}/begin"]):
                    return attempt, offers
            if attempt and time.monotonic() >= self.end:
                away = [rank for rank in range(1, self.size) if not self._has([f"{attempt}/here/{rank}"])]
                self._look(away or [0], "answered")
            self._look([0], "called this process")
            self._rest()

    def wait(self, keys: dict[int, str], what: str, are_offers: bool = False) -> list[bytes]:
        """Returns what members say under their keys, by rank; ``what`` is what those have not done who say nothing."""
        is_late = False
        while not self._has(list(keys.values())):
            is_late, now = True, time.monotonic()
            if are_offers and now >= self._looked + LOOK_OUT:
                # those who are there may die while others do not come
                there = {rank: key for rank, key in keys.items() if rank not in self.offers and self._has([key])}
                self._meet({rank: json.loads(self._get(key)) for rank, key in there.items()})
            if now >= self.end:
                keys = {rank: key for rank, key in keys.items() if not self._has([key])}
            self._look(list(keys), what)
            self._rest()
        if is_late:
            self._pause = LOOK_UP
        return [self._get(key) for key in keys.values()]

    def set(self, key: str, said: str) -> None:
        """Says something to all."""
        self._ask("set", key, said)

    def _meet(self, offers: dict[int, dict[str, Any]]) -> None:
        for rank, offer in offers.items():
            nonce = offer["nonce"]
            if nonce not in self._seen:
                # the store may be gone: then the offer is not there either
                stands = not self._is_dead(offer) and not (rank == 0 and self._has([f"dead/{nonce}"]))
                self._seen[nonce] = time.monotonic(), stands
            self.offers[rank] = offer

    def _look(self, awaited: Sequence[int], what: str) -> None:
        """Raises if a member has died, and if the time is over."""
        now = time.monotonic()
        if now >= self._looked + LOOK_OUT or now >= self.end:
            self._looked = now
            self.look_for_the_dead()
        if now >= self.end:
            who = " and ".join(self._name(rank) for rank in awaited)
            verb = "have" if len(awaited) > 1 else "has"
            raise DistStoreError(
                f"the group did not come together within {self.timeout:g} s: {who} {verb} not {what}; "
                "look at the log and exit status there"
            )

    def look_for_the_dead(self) -> None:
        """Raises if a member has died, on this host or seen by another."""
        lost = next((rank for rank, offer in self.offers.items() if self._is_lost(offer)), None)
        is_told = 0 in self.offers and not self._is_old(self.offers[0]) and not self._is_store_gone
        notice = f"dead/{self.offers[0]['nonce']}" if is_told else None
        if lost is None and (notice is None or not self._ask("check", [notice])):
            return
        said = "" if lost is None else (
            f"{self._name(lost)} is lost: process {self.offers[lost]['process'][1]} died before the group had come together; "
            "look at its log and exit status"
        )  # fmt: skip
        try:
            if notice is not None and self._ask("check", [notice]):
                said = self._ask("get", notice).decode()
            elif notice is not None:
                self._ask("set", notice, said)
        except RuntimeError:
            # the store was kept by who has died
            pass
        if self.rank == 0 and self.size > 1:
            # the store may end with this process, and others look there first
            time.sleep(2 * LOOK_OUT)
        raise DistBackendError(said)

    def blamed(self, error: Exception, names: Sequence[str]) -> Exception:
        """Returns what is raised for an error: that a member was lost, if that shows itself in a moment."""
        end = min(time.monotonic() + 2 * LOOK_OUT, self.end)
        while True:
            try:
                self.look_for_the_dead()
            except DistBackendError as lost:
                return lost
            except RuntimeError:
                # the store has gone meanwhile
                pass
            if time.monotonic() >= end:
                break
            time.sleep(LOOK_UP_AT_LEAST)
        if isinstance(error, _native.GroupError):
            said = re.sub(r"\brank (\d+)", lambda found: names[int(found[1])], str(error))
            return DistBackendError(f"the group did not come together: {said}")
        if isinstance(error, DistStoreError):
            return error
        return DistStoreError(
            f"the store by which the group comes together is gone, and with it rank 0 or the launcher: {error}"
        )

    def _is_lost(self, offer: dict[str, Any]) -> bool:
        """True if who offered this has died, and nobody takes its place."""
        return not self._is_old(offer) and self._is_dead(offer)

    def _is_old(self, offer: dict[str, Any]) -> bool:
        """True for what an earlier attempt has left, perhaps: another one is to follow."""
        since, stood = self._seen[offer["nonce"]]
        return not stood and (self._restarts or time.monotonic() < since + RENEWED)

    def _is_dead(self, offer: dict[str, Any]) -> bool:
        """True if a process of this host has ended."""
        namespace, process, begun = offer["process"]
        is_seen = (offer["host"], namespace) == (self._host, self._namespace)
        return is_seen and _begun(process) != begun

    def _name(self, rank: int) -> str:
        offer = self.offers.get(rank)
        return f"rank {offer['rank']} on {offer['name']}" if offer else f"rank {rank}"

    def _has(self, keys: list[str]) -> bool:
        return self._ask("check", keys)

    def _get(self, key: str) -> bytes:
        return self._ask("get", key)

    def _ask(self, call: str, *arguments: Any) -> Any:
        try:
            return ask(self.end - time.monotonic(), getattr(self.store, call), *arguments)
        except RuntimeError:
            self._is_store_gone = True
            raise

    def _rest(self) -> None:
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LOOK_UP_AT_LEAST)


def choose(settings: Settings, offers: list[dict[str, Any]]) -> tuple[str, str]:
    """Returns the transport that all members take, and why."""
    transports = {offer["transport"] for offer in offers}
    if len(transports) > 1:
        raise ValueError(
            f"members ask for different transports ({', '.join(sorted(transports))}); "
            "give all the same TENSORWIRE_TRANSPORT or pg_options"
        )
    spread = len({offer["host"] for offer in offers}) > 1
    if settings.transport != "auto":
        if settings.transport == "shm" and spread:
            raise ValueError("shared memory is for members of one host; take tcp, verbs or auto")
        return settings.transport, "it was asked for"
    if not spread:
        return "shm", "all members are on one host"
    cannot = [f"{offer['name']}: {offer['obstacle']}" for offer in offers if not offer["verbs"]]
    if cannot:
        return "tcp", f"RDMA cannot be used on {cannot[0]}"
    return "verbs", "every host has RDMA"


def _listen(settings: Settings, master: str | None, spread: bool) -> str | None:
    """Returns the address at which others reach this process: the one by which it reaches the first of them."""
    if settings.listen is not None:
        return settings.listen
    if not spread:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # nothing is sent: the system says from where it would be
        probe.connect((socket.gethostbyname(master or socket.gethostname()), 9))
        address = probe.getsockname()[0]
    if address.startswith("127."):
        address = socket.gethostbyname(socket.gethostname())
    return f"{address}:0"


def meet(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    settings: Settings,
    global_ranks: list[int],
) -> Meeting:
    """Brings the members of a group together, all of whom call this."""
    host, name = _host(), socket.gethostname()
    offer: dict[str, Any] = {"transport": settings.transport, "host": host, "name": name, "process": _process()}
    offer["rank"] = global_ranks[rank] if rank < len(global_ranks) else rank
    offer["verbs"], offer["obstacle"] = None, ""
    if settings.transport == "auto":
        offer["verbs"], offer["obstacle"] = _native.verbs_offer()
    gathering, names = _Gathering(store, rank, size, timeout), [f"rank {each}" for each in range(size)]
    try:
        attempt, offers = gathering.gather(offer)
        names = [f"rank {each['rank']} on {each['name']}" for each in offers]
        transport, why = choose(settings, offers)
        spread = len({each["host"] for each in offers}) > 1
        if rank == 0:
            gathering.set(f"{attempt}/secret", _native.random(SECRET_BYTES).hex())
        secret = bytes.fromhex(gathering.wait({0: f"{attempt}/secret"}, "drawn a secret")[0].decode())
        listen = _listen(settings, os.environ.get("MASTER_ADDR") or getattr(store, "host", None), spread)
        endpoint = _native.Endpoint(rank, transport, listen, secret)
        gathering.set(f"{attempt}/address/{rank}", json.dumps(endpoint.address))
        keys = {other: f"{attempt}/address/{other}" for other in range(size)}
        addresses = [json.loads(said) for said in gathering.wait(keys, "said its address")]
        left = max(gathering.end - time.monotonic(), 0.0)
        communicator = endpoint.connect(addresses, names, left, spread, gathering.look_for_the_dead)
    except DistBackendError:
        raise
    except RuntimeError as error:
        raise gathering.blamed(error, names) from None
    return Meeting(communicator, why, PrefixStore(attempt, store))
