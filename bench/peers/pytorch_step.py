"""A training step of tensorwire and of PyTorch, one process each, in turns on the same machine.

Each measurement is a new process: a model, a batch of made-up samples, SGD with momentum; the first step is
left out, the mean of the others counts, and of the rounds the median. Memory is the most that the process
had at once. Exit status: 0 all was measured, whether or not it is fast.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

from compare import machine

MODELS = "mlp,fcn5,lstm,gru,cifar,alexnet,vgg16,resnet50,inception-v3,gpt-mini,gpt2-small,vit-small"
# time and memory of ours over PyTorch's that are asked for
GOALS = {"mlp": 1.1, "fcn5": 1.1, "lstm": 1.1, "gru": 1.1}
GOALS |= {"gpt-mini": 1.0, "gpt2-small": 1.0, "bert-mini": 1.0, "vit-small": 1.0}
GOAL_OF_CONVOLUTIONS = {"cpu": 2.0, "auto": 1.2, "onednn": 1.2}
GOAL_OF_MEMORY = 1.2
GOAL_OF_TRANSFORMERS_MEMORY = 1.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorwire", default="tensorwire", help="the program [%(default)s]")
    parser.add_argument("--models", default=MODELS, help="[%(default)s]")
    parser.add_argument("--batches", default="1,8,32", help="[%(default)s]")
    parser.add_argument("--kernels", default="auto", help="tensorwire's --kernels [%(default)s]")
    parser.add_argument("--steps", type=int, default=6, help="of each measurement [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--json", type=pathlib.Path, help="append one line of JSON a result")
    parser.add_argument("--sequence", type=int, help="tokens of a window of text [as many as the model takes]")
    # one measurement of PyTorch, in a process of its own
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "BATCH"), help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(given, model, batch):
    import torch

    from pytorch_models import Variables, loss_of
    from pytorch_transformers import CHARACTERS, MODULES

    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    v = Variables(1)
    v.exact_dropout = False
    window = MODULES.get(model, (None,))[0]
    if window:
        window = given.sequence or window
        tokens = torch.randint(CHARACTERS, (batch, window + 1))
        feed = {"input": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}
    else:
        size = {"mlp": 28, "fcn5": 28, "cifar": 32, "inception-v3": 299}.get(model, 224)
        channels = 1 if size == 28 else 3
        shape = (80 * batch, 1024) if model in ("lstm", "gru") else (batch, size, size, channels)
        classes = 1000 if model in ("lstm", "gru", "resnet50", "vit-small") else 10
        feed = {"input": torch.rand(shape), "labels": torch.randint(classes, (batch,))}
    with torch.no_grad():
        loss_of(model, v, feed, 1)
    optimizer = torch.optim.SGD(v.all.values(), lr=1e-4, momentum=0.9)
    took = []
    for _ in range(given.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, v, feed, 1)
        loss.backward()
        optimizer.step()
        loss.item()
        took.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"ms": statistics.mean(took[1:]) * 1e3, "peak_bytes": peak}))


def sequence(given):
    return ["--sequence", str(given.sequence)] if given.sequence else []


def theirs(given, model, batch):
    command = [sys.executable, __file__, "--measure", model, str(batch)]
    command += ["--threads", str(given.threads), "--steps", str(given.steps), *sequence(given)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return found["ms"], found["peak_bytes"]


def ours(given, model, batch):
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "step.jsonl"
        command = [given.tensorwire, "bench", "step", "--strategy", "local", "--workers", "1"]
        command += ["--model", model, "--data", f"synthetic:{batch}", "--batch", str(batch)]
        command += ["--steps", str(given.steps), "--iterations", "1", "--lr", "1e-4"]
        command += ["--threads", str(given.threads), "--kernels", given.kernels, "--json", str(lines), *sequence(given)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(lines.read_text())
    return found["local_ms"]["median"], found["local_peak_bytes"], found


def held_against(given, model, batch):
    load = os.getloadavg()[0]
    rounds = [(ours(given, model, batch), theirs(given, model, batch)) for _ in range(given.rounds)]
    median = lambda pick: statistics.median(pick(one) for one in rounds)
    ratios = [one[0][0] / one[1][0] for one in rounds]
    ends = {
        f"{whose}_{end}_ms": choose(one[at][0] for one in rounds)
        for at, whose in enumerate(("tensorwire", "pytorch"))
        for end, choose in (("min", min), ("max", max))
    }
    return {
        "bench": "pytorch-step",
        "model": model,
        "batch": batch,
        "sequence": given.sequence,
        "threads": given.threads,
        "kernels": given.kernels,
        "tensorwire_ms": median(lambda one: one[0][0]),
        "pytorch_ms": median(lambda one: one[1][0]),
        **ends,
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": len(rounds),
        "memory_ratio": median(lambda one: one[0][1] / one[1][1]),
        "tensorwire_peak_bytes": median(lambda one: one[0][1]),
        "pytorch_peak_bytes": median(lambda one: one[1][1]),
        "version": version("torch"),
        "machine": machine(load, [rounds[0][0][2]]),
    }


def main():
    given = arguments()
    if given.measure:
        return measure(given, given.measure[0], int(given.measure[1]))
    print(f"{'model':14} {'batch':>5} {'tensorwire':>12} {'PyTorch':>12} {'ratio':>6} {'goal':>5} {'memory':>7}")
    for model in given.models.split(","):
        for batch in map(int, given.batches.split(",")):
            try:
                result = held_against(given, model, batch)
            except subprocess.CalledProcessError as error:
                sys.exit(f"{' '.join(map(str, error.cmd))}: {error.stderr}")
            goal = GOALS.get(model, GOAL_OF_CONVOLUTIONS.get(given.kernels, 2.0))
            memory = GOAL_OF_TRANSFORMERS_MEMORY if goal == 1.0 else GOAL_OF_MEMORY
            missed = " missed" if result["ratio"] > goal or result["memory_ratio"] > memory else ""
            print(
                f"{model:14} {batch:5} {result['tensorwire_ms']:9.1f} ms {result['pytorch_ms']:9.1f} ms"
                f" {result['ratio']:6.2f} {goal:5.1f} {result['memory_ratio']:7.2f}{missed}",
                flush=True,
            )
            if given.json:
                with given.json.open("a") as lines:
                    lines.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
