"""On which host a process of a peer's job runs, and how it is started there. Hosts are those of `bench/link.sh --plain`
(LINK_HOSTS, LINK_RSH), the first being where this runs; without it this machine is the only one. Knows no framework.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess

PR_SET_PDEATHSIG = 1
HOSTS = [address for address in os.environ.get("LINK_HOSTS", "").split(",") if address]
# what carries bytes from host to host
DEVICE = "eth0" if HOSTS else "lo"


def host_of(number: int, count: int) -> str:
    """The address of one of so many processes of a kind: as many in a row go to each host."""
    return HOSTS[number * len(HOSTS) // count] if HOSTS else "127.0.0.1"


def start(address: str, command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen:
    """A process on that host, which ends with this one. All hosts are of this machine, and have its environment."""
    if HOSTS and address != HOSTS[0]:
        command = [*shlex.split(os.environ["LINK_RSH"]), address, f"exec {shlex.join(command)}"]
    return subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
