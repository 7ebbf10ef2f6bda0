"""What two workers learn, by tensorwire and by PyTorch, TensorFlow and MXNet: the same recipe and as many steps, each
from first weights of its own, once for each seed. peer_converge.py says what the tasks are. Writes a file of metrics
for each run, which `tensorwire report` draws beside each other. A peer that is not there is left out, with a line that
says what makes it. Exit status: 0 each mean is as near to that of tensorwire's first strategy as twice the standard
error of the difference and what is no difference (RESOLUTION), 1 one is not, or a run failed.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
from typing import NamedTuple

from peer_converge import MOMENTUM, TASKS, WINDOW, WORKERS

HERE = pathlib.Path(__file__).parent
# what scripts/setup.sh makes
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tensorwire"
# where all seeds come to the same accuracy, one sample in so many is no difference; and of a loss, in nats
RESOLUTION = 1 / 100
RUN_S = 600


class Peer(NamedTuple):
    title: str
    file: str
    module: str
    folder: pathlib.Path
    requirements: str


PEERS = {
    "pytorch": Peer("PyTorch DDP, gloo", "pytorch-ddp", "torch", CACHE / "pytorch", "requirements-pytorch.txt"),
    "tensorflow": Peer("TensorFlow servers, gRPC", "tensorflow-grpc", "tensorflow", HERE / ".venv", "requirements.txt"),
    "mxnet": Peer("MXNet dist_sync", "mxnet-dist-sync", "mxnet", HERE / ".venv-mxnet", "requirements-mxnet.txt"),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorwire", default="tensorwire", help="the program [%(default)s]")
    parser.add_argument("--tasks", default=",".join(TASKS), help="[%(default)s]")
    parser.add_argument("--peers", default=",".join(PEERS), help="[%(default)s]")
    parser.add_argument("--strategies", default="ps,allreduce,dist-sgd", help="tensorwire's [%(default)s]")
    parser.add_argument("--wire", default="f32,bf16", help="what crosses, of tensorwire [%(default)s]")
    parser.add_argument("--steps", type=int, help=f"[{steps_by_task()}]")
    parser.add_argument("--seeds", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--out", type=pathlib.Path, default="converge", help="a folder for files of metrics [%(default)s]")
    for name, peer in PEERS.items():
        of = peer.folder / "bin/python"
        parser.add_argument(f"--{name}", metavar="PYTHON", default=str(of), help=f"a python that has it [{of}]")
    return parser.parse_args()


def steps_by_task():
    return ", ".join(f"{name} {task.steps}" for name, task in TASKS.items())


def is_there(given, name):
    """True if its python has it; else says what makes it."""
    peer, python = PEERS[name], getattr(given, name)
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{peer.module}') is None)"
    try:
        if subprocess.run([python, "-c", look], capture_output=True).returncode == 0:
            return True
    except OSError:
        pass
    make = f"python3.11 -m venv {peer.folder} && {peer.folder}/bin/pip install -r {HERE / peer.requirements}"
    print(f"no {name} by {python}, which is left out; to have it: {make}", file=sys.stderr)
    return False


def run(command, metrics, metric):
    """What is evaluated in the end; a line a step is in a file then."""
    subprocess.run([*command, "--metrics", str(metrics)], check=True, capture_output=True, text=True, timeout=RUN_S)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    # of ours it is in the summary, which comes last
    return lines[-1].get("summary", lines[-1])[metric]


def theirs(given, name, task, steps):
    script = str(HERE / f"{name}_converge.py")
    return lambda seed: [getattr(given, name), script, task, "--steps", str(steps), "--seed", str(seed)]


def ours(given, strategy, wire, name, steps):
    task = TASKS[name]
    command = [given.tensorwire, "train", "--strategy", strategy, "--wire", wire, "--model", task.model]
    command += ["--data", task.data, "--workers", str(WORKERS), "--batch", str(task.batch)]
    command += ["--optimizer", task.optimizer, "--lr", str(task.rate), "--steps", str(steps)]
    command += ["--warmup", str(task.warm_up)] if task.warm_up else []
    command += ["--momentum", str(MOMENTUM)] if task.optimizer == "momentum" else []
    command += ["--sequence", str(WINDOW)] if name == "text" else []
    command += ["--val-every", str(task.evaluate_every), "--threads", "1"]
    return lambda seed: [*command, "--seed", str(seed)]


def systems(given, peers, task, steps):
    """Title, the name of its files and its command, given a seed. Ours come first, with which the others are compared."""
    for strategy in given.strategies.split(","):
        for wire in given.wire.split(","):
            file = "-".join(["tensorwire", strategy, *([] if wire == "f32" else [wire])])
            yield f"tensorwire {strategy}, {wire}", file, ours(given, strategy, wire, task, steps)
    for name in peers:
        yield PEERS[name].title, PEERS[name].file, theirs(given, name, task, steps)


def compare(given, peers, name):
    """True if all agree."""
    task, seeds = TASKS[name], range(1, given.seeds + 1)
    steps, first, agree = given.steps or task.steps, None, True
    folder = given.out / name
    folder.mkdir(parents=True, exist_ok=True)
    what = f"{name}: {task.metric.replace('_', ' ')} after {steps} steps"
    print(f"{what:40} {'mean':>8} {'sd':>8}  by seed", flush=True)
    for title, file, command in systems(given, peers, name, steps):
        try:
            found = [run(command(seed), folder / f"{file}-{seed}.jsonl", task.metric) for seed in seeds]
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{shlex.join(error.cmd)}: {error.stderr}", file=sys.stderr)
            agree = False
            continue
        mean, spread = statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0
        first = first or (mean, spread)
        # of the difference of two means, twice
        allowed = 2 * ((spread**2 + first[1] ** 2) / len(found)) ** 0.5 + RESOLUTION
        near = abs(mean - first[0]) <= allowed
        agree &= near
        far = "" if near else f"  more than {allowed:.4f} from the first"
        print(f"{title:40} {mean:8.4f} {spread:8.4f}  {' '.join(f'{one:.4f}' for one in found)}{far}", flush=True)
    return agree


def main():
    given = arguments()
    peers = [name for name in given.peers.split(",") if is_there(given, name)]
    # all are measured, whatever the first is
    return 0 if all([compare(given, peers, name) for name in given.tasks.split(",")]) else 1


if __name__ == "__main__":
    sys.exit(main())
