"""Runs a script in several processes of this host that share a store: ``python -m tensorwire.kv --workers 2 SCRIPT``.

The script finds the others by itself, in ``tensorwire.kv.create``. It runs under torchrun, mpirun and srun just as well.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time

# How long the others may take to end after one has failed: they are told by the store, and say who it was.
_LAST_WORDS_S = 10.0


def main() -> int:
    """Returns the status of the first process that failed, or 0."""
    parser = argparse.ArgumentParser(prog="python -m tensorwire.kv", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", "-n", type=int, default=2, help="processes that run the script [default: 2]")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    args = parser.parse_args()
    if args.workers < 1:
        parser.error("--workers is 1 or more")
    port = _free_port()
    workers = [_start(args, rank, port) for rank in range(args.workers)]
    try:
        return _wait(workers)
    except KeyboardInterrupt:
        # they have heard it, too
        return _end(workers) or 130
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _start(args: argparse.Namespace, rank: int, port: int) -> subprocess.Popen[bytes]:
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(args.workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    command = [sys.executable, args.script, *args.arguments]
    return subprocess.Popen(command, env={**os.environ, **place})


def _wait(workers: list[subprocess.Popen[bytes]]) -> int:
    """Waits until all have ended, or one has failed and the others have had their time; returns its status."""
    while any(worker.poll() is None for worker in workers):
        if any(worker.returncode for worker in workers):
            return _end(workers)
        time.sleep(0.05)
    return _failed(workers)


def _end(workers: list[subprocess.Popen[bytes]]) -> int:
    first = _failed(workers)
    deadline = time.monotonic() + _LAST_WORDS_S
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    return first


def _failed(workers: list[subprocess.Popen[bytes]]) -> int:
    """A status as a shell has it: 128 and the signal where one ended the process."""
    status = next((worker.returncode for worker in workers if worker.returncode), 0)
    return 128 - status if status < 0 else status


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
