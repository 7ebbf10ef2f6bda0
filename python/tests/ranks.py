"""Ranks for tests: forks of the test's process, which has loaded PyTorch already."""

from __future__ import annotations

import functools
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
    comes_together: bool = True,
) -> list[Any]:
    """Returns what ``body`` returns in each rank of a group; Killed for one that was, and the text of what it raised.

    Ranks that are stopped are killed when all others have ended. ``comes_together``: else the body makes the group.
    """
    with tempfile.TemporaryDirectory() as folder:
        join = functools.partial(_join, world, backend, timeout, options, folder) if comes_together else None
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                os.environ["TENSORWIRE_TRANSPORT"] = transport
                _rank(rank, body, join, Path(folder))
            children.append(child)
        codes = _await(children)
        return [_result(Path(folder), rank, code) for rank, code in enumerate(codes)]


def _join(world: int, backend: str, timeout: float, options: Any, folder: str, rank: int) -> None:
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout),
        pg_options=options,
    )


def _rank(rank: int, body: Callable[[int], Any], join: Callable[[int], None] | None, folder: Path) -> None:
    code = 1
    try:
        if join is not None:
            join(rank)
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
    stopped: set[int] = set()
    end = time.monotonic() + LIMIT
    while len(codes) < len(children):
        late = time.monotonic() > end
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
                if done and os.WIFSTOPPED(status):
                    stopped.add(child)
                elif done:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif late or len(codes) + len(stopped) == len(children):
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    if time.monotonic() > end:
        raise TimeoutError(f"ranks took more than {LIMIT} s")
    return [codes[child] for child in children]


def _result(folder: Path, rank: int, code: int) -> Any:
    if code < 0:
        return Killed()
    return pickle.loads((folder / f"result{rank}").read_bytes())
