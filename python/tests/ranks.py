"""Ranks for tests: forks of the test's process, which has loaded PyTorch already."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which DDP and optimizers load, and each fork would anew
import torch.distributed as dist

#: Seconds that all ranks of a test may take.
LIMIT = 60.0

torch.set_num_threads(1)


class Killed(Exception):
    """A rank that has ended by a signal."""


def run(
    world: int,
    body: Callable[[int], Any],
    backend: str = "tensorwire",
    transport: str = "auto",
    timeout: float = 30.0,
    options: Any = None,
) -> list[Any]:
    """Returns what ``body`` returns in each rank of a group; Killed for one that was, and the text of what it raised."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                _rank(rank, world, body, backend, transport, timeout, options, Path(folder))
            children.append(child)
        codes = _await(children)
        return [_result(Path(folder), rank, code) for rank, code in enumerate(codes)]


def _rank(
    rank: int,
    world: int,
    body: Callable[[int], Any],
    backend: str,
    transport: str,
    timeout: float,
    options: Any,
    folder: Path,
) -> None:
    code = 1
    try:
        os.environ["TENSORWIRE_TRANSPORT"] = transport
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout),
            pg_options=options,
        )
        result: Any = body(rank)
        code = 0
    except BaseException as error:
        result = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    try:
        (folder / f"result{rank}").write_bytes(pickle.dumps(result))
        if dist.is_initialized():
            dist.destroy_process_group()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _await(children: list[int]) -> list[int]:
    codes: dict[int, int] = {}
    end = time.monotonic() + LIMIT
    while len(codes) < len(children):
        late = time.monotonic() > end
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif late:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    if time.monotonic() > end:
        raise TimeoutError(f"ranks took more than {LIMIT} s")
    return [codes[child] for child in children]


def _result(folder: Path, rank: int, code: int) -> Any:
    if code < 0:
        return Killed()
    return pickle.loads((folder / f"result{rank}").read_bytes())
