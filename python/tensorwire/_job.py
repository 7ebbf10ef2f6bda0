"""A process of a job, as ``python -m tensorwire._job FOLDER``: the one that leads it, or a member that it started.

The one that leads says on standard output what happens, a line each: ``step``, ``done``, ``refused`` or ``failed``, and what
there is to say of it as JSON.
"""

import json
import sys

from tensorwire import _native


def say(kind: str, said: str) -> None:
    print(kind, said, flush=True)


def main(folder: str) -> int:
    """Runs the job of a folder; returns the exit status."""
    arguments = ["-m", "tensorwire._job", folder]
    try:
        summary = _native.run_job(folder, sys.executable, arguments, lambda step: say("step", step))
    except ValueError as error:
        say("refused", json.dumps(str(error)))
        return 2
    except (_native.JobFailed, OSError) as error:
        say("failed", json.dumps(str(error)))
        return 1
    say("done", summary)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
