"""A process of a job, as ``python -m tensorwire._job FOLDER``: the one that leads it, or a member. And how one is run.

The one that leads says on standard output what happens, a line each: ``step``, ``done``, ``refused`` or ``failed``, and what
there is to say of it as JSON. With ``--again`` it leads a job that was begun before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from tensorwire import _native

#: Most that is read of what a process has said.
_READ_BYTES = 1 << 16

#: What the process that leads a job says, as it comes: what kind of thing, and what there is to say of it.
Said = Generator[list[tuple[str, str]], None, None]


class JobFailed(RuntimeError):
    """A job was not done. Says the first cause, which names the process and the step."""


def run(folder: Path, again: bool = False) -> Said:
    """Runs the job of a folder in a process of its own, and gives what it says, as it comes; at last ``ended``, with its status."""
    command = [sys.executable, "-m", "tensorwire._job", str(folder), *(["--again"] if again else [])]
    # the processes of the job find what this one found
    found = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": found}
    # a terminal's Ctrl-C is for this process alone, which tells the other one: both would be the second one there
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        rest = b""
        try:
            while said := os.read(process.stdout.fileno(), _READ_BYTES):
                *lines, rest = (rest + said).split(b"\n")
                yield [_parted(line.decode()) for line in lines]
        except BaseException:
            # nobody listens any more
            process.stdout.close()
            process.terminate()
            try:
                # a job with checkpoints ends behind a step, and keeps it
                process.wait()
            except KeyboardInterrupt:
                # at once
                process.terminate()
                process.wait()
                raise
            raise
    yield [("ended", str(process.returncode))]


def _parted(line: str) -> tuple[str, str]:
    kind, _, said = line.partition(" ")
    return kind, said


def _say(kind: str, said: str) -> None:
    if "TENSORWIRE_MEMBER" in os.environ:
        # nobody reads what a member says there
        print(f"{kind}: {json.loads(said)}", file=sys.stderr, flush=True)
        return
    try:
        print(kind, said, flush=True)
    except BrokenPipeError:
        # who listened wants to hear no more, and ends this process; what is left is not to be said when it ends, either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(folder: str, *options: str) -> int:
    """Runs the job of a folder; returns the exit status."""
    if "TENSORWIRE_RUN_WITH_PARENT" in os.environ:
        # what starts a member on another host, which ends with the one that leads
        _native.run_with_parent(list(options))
    if not os.path.isdir(folder):
        print(f"error: the job's folder {folder} is not on this host; set TMPDIR to a folder that all hosts share", file=sys.stderr)
        return 2
    arguments = ["-m", "tensorwire._job", folder]
    again = "--again" in options
    try:
        summary = _native.run_job(folder, sys.executable, arguments, lambda step: _say("step", step), again)
    except ValueError as error:
        _say("refused", json.dumps(str(error)))
        return 2
    except (_native.JobFailed, OSError) as error:
        _say("failed", json.dumps(str(error)))
        return 1
    _say("done", summary)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
