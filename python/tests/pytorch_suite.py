"""PyTorch's own tests of a backend of torch.distributed, run against this one.

    python python/tests/pytorch_suite.py [--backend tensorwire] [--world 3] [-k PATTERN] [--verbose]

They are ``torch.testing._internal.distributed.distributed_test`` of the PyTorch that is installed. Where a test is held back by the
name of a backend, it is let through for tensorwire wherever it is for gloo. Each test's ranks are forks of this process, which
has loaded all there is. Prints a line a test, and the counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "torch.testing._internal.distributed.distributed_test"
#: Seconds that a test may take.
LIMIT = 120.0
#: What tensorwire does not pass, and why.
KNOWN = {
    "test_ddp_logging_data_cpu": "PyTorch's logger calls every backend from outside of PyTorch 'custom'",
}
#: In the names of tests of GPUs and of other backends, which skip themselves here.
ELSEWHERE = ("cuda", "nccl", "multigpu")


def load(backend: str) -> ModuleType:
    """Returns PyTorch's module of tests, told that what gloo can the backend can."""
    if backend == "tensorwire":
        from tensorwire.torch.backend import register

        register()
    from torch.testing._internal import common_distributed

    for feature in ("ddp", "gpu", "plugin", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add(backend)
    found = importlib.util.find_spec(MODULE)
    assert found is not None and found.origin is not None
    source = Path(found.origin).read_text()
    source = source.replace('BACKEND != "gloo"', f'BACKEND not in ("gloo", "{backend}")')
    source = source.replace('BACKEND == "gloo"', f'BACKEND in ("gloo", "{backend}")')
    if backend == "tensorwire":
        # all-to-all of tensors of the CPU, which gloo has not
        source = source.replace('BACKEND != "mpi"', 'BACKEND not in ("mpi", "tensorwire")')
    source = source.replace('is_available({"gloo"})', f'is_available({{"gloo", "{backend}"}})')
    module = ModuleType(MODULE)
    module.__file__ = found.origin
    sys.modules[MODULE] = module
    exec(compile(source, found.origin, "exec", dont_inherit=True), module.__dict__)
    return module


@dataclass
class Verdict:
    """How a test ended, and what its ranks said."""

    how: str
    said: str


def run(tests: Any, name: str, world: int, skips: dict[int, str]) -> Verdict:
    """Runs a test in as many ranks."""
    method = getattr(tests, name)
    if getattr(method, "__unittest_skip__", False):
        return Verdict(f"skipped ({method.__unittest_skip_why__})", "")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        for inner in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(folder, inner))
        log = os.path.join(folder, "log")
        children = [fork(tests, name, rank, os.path.join(folder, "store"), log) for rank in range(world)]
        codes = await_all(children)
        said = Path(log).read_text(errors="replace")
    for code in codes:
        if code in skips:
            return Verdict(f"skipped ({skips[code]})", said)
    return Verdict("passed" if all(code == 0 for code in codes) else f"FAILED {codes}", said)


def fork(tests: Any, name: str, rank: int, store: str, log: str) -> int:
    """Starts a rank; returns its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        here, _there = multiprocessing.Pipe()
        tests._run(rank, name, store, here)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def await_all(children: list[int]) -> list[int]:
    """Returns the exit status of each; what has no end is killed."""
    codes: dict[int, int] = {}
    end = time.monotonic() + LIMIT
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[child] for child in children]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backend", default="tensorwire")
    parser.add_argument("--world", type=int, default=3, help="ranks (default 3)")
    parser.add_argument("-k", dest="patterns", action="append", help="tests whose names have this")
    parser.add_argument("--verbose", action="store_true", help="print what failed tests say")
    given = parser.parse_args()
    os.environ.update(BACKEND=given.backend, WORLD_SIZE=str(given.world), MASTER_ADDR="127.0.0.1")
    os.environ["TEMP_DIR"] = tempfile.gettempdir()
    module = load(given.backend)
    from torch.testing._internal.common_distributed import TEST_SKIPS

    skips = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}

    class Tests(module.TestDistBackend, module.DistributedTest._DistTestBase):
        pass

    names = [name for name in dir(Tests) if name.startswith("test_")]
    all_names = len(names)
    names = [name for name in names if not any(word in name for word in ELSEWHERE)]
    if given.patterns:
        names = [name for name in names if any(pattern in name for pattern in given.patterns)]
    counts = {"passed": 0, "FAILED": 0, "known": 0, "skipped": 0}
    for name in names:
        begun = time.monotonic()
        verdict = run(Tests, name, given.world, skips)
        if verdict.how.startswith("FAILED") and given.backend == "tensorwire" and name in KNOWN:
            verdict.how = f"known ({KNOWN[name]})"
        counts[verdict.how.split(" ", 1)[0]] += 1
        print(f"{time.monotonic() - begun:6.1f} s  {name}: {verdict.how}", flush=True)
        if given.verbose and verdict.how.startswith("FAILED"):
            print(verdict.said, flush=True)
    print(
        f"{counts['passed']} passed, {counts['FAILED']} failed, {counts['known']} fail for a known reason, "
        f"{counts['skipped']} skipped; of {all_names} tests"
    )
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
