"""How the members of a group find each other: through the store that PyTorch gives them."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore

from tensorwire import _native

#: Bytes of what all members know and no stranger: a key of 32, and a number of 8.
SECRET_BYTES = 40
#: Bytes of a number that nobody draws twice.
NONCE_BYTES = 16
#: Seconds between two looks at the store.
LOOK_UP = 0.002


@dataclass(frozen=True)
class Settings:
    """What a user may set; the same at all members but for the address to listen at."""

    transport: str = "auto"
    listen: str | None = None

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


def _said(store: Any, key: str, size: int, timeout: timedelta) -> list[Any]:
    """Returns what each member has said under a key."""
    keys = [f"{key}/{rank}" for rank in range(size)]
    store.wait(keys, timeout)
    return [json.loads(store.get(name)) for name in keys]


def _gather(store: Any, rank: int, size: int, offer: dict[str, Any], timeout: timedelta) -> tuple[str, list[dict[str, Any]]]:
    """Returns a number of this attempt, and what each member offers in it.

    A launcher that restarts its processes keeps its store, and with it what those before have said. So each offer has a number
    of its own; rank 0 calls together whom it has found, and begins when each has answered that it was meant.
    """
    offer["nonce"] = _native.random(NONCE_BYTES).hex()
    store.set(f"offer/{rank}", json.dumps(offer))
    end = time.monotonic() + timeout.total_seconds()
    attempt, offers = "", []
    while time.monotonic() < end:
        if rank == 0:
            found = _said(store, "offer", size, timeout)
            if found != offers:
                attempt, offers = _native.random(NONCE_BYTES).hex(), found
                store.set("call", json.dumps([attempt, offers]))
            if size == 1 or store.check([f"{attempt}/here/{other}" for other in range(1, size)]):
                store.set(f"{attempt}/begin", "")
                return attempt, offers
        else:
            store.wait(["call"], timeout)
            called, offers = json.loads(store.get("call"))
            is_meant = len(offers) == size and offers[rank]["nonce"] == offer["nonce"]
            if is_meant and called != attempt:
                attempt = called
                store.set(f"{attempt}/here/{rank}", "")
            if is_meant and store.check([f"{attempt}/begin"]):
                return attempt, offers
        time.sleep(LOOK_UP)
    said = "not all others have answered" if rank == 0 else "rank 0 has not called this process"
    raise DistStoreError(f"the group did not come together within {timeout.total_seconds():g} s: {said}")


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


def _listen(settings: Settings, master: str, spread: bool) -> str | None:
    """Returns the address at which others reach this process: the one by which it reaches the first of them."""
    if settings.listen is not None:
        return settings.listen
    if not spread:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # nothing is sent: the system says from where it would be
        probe.connect((socket.gethostbyname(master), 9))
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
    offer: dict[str, Any] = {"transport": settings.transport, "host": host, "name": name}
    offer["rank"] = global_ranks[rank] if rank < len(global_ranks) else rank
    offer["verbs"], offer["obstacle"] = None, ""
    if settings.transport == "auto":
        offer["verbs"], offer["obstacle"] = _native.verbs_offer()
    attempt, offers = _gather(store, rank, size, offer, timeout)
    master = os.environ.get("MASTER_ADDR") or getattr(store, "host", None) or socket.gethostname()
    store = PrefixStore(attempt, store)
    transport, why = choose(settings, offers)
    spread = len({each["host"] for each in offers}) > 1
    if rank == 0:
        store.set("secret", _native.random(SECRET_BYTES).hex())
    store.wait(["secret"], timeout)
    secret = bytes.fromhex(store.get("secret").decode())
    endpoint = _native.Endpoint(rank, transport, _listen(settings, master, spread), secret)
    store.set(f"address/{rank}", json.dumps(endpoint.address))
    addresses = _said(store, "address", size, timeout)
    names = [f"rank {each['rank']} on {each['name']}" for each in offers]
    communicator = endpoint.connect(addresses, names, timeout.total_seconds(), spread)
    return Meeting(communicator, why, store)
