"""The losses of tensorwire's and PyTorch's first steps, from the same weights file and the same batches.

For each model: PyTorch draws first weights and writes them to a safetensors file, `tensorwire batches`
writes the batches, `tensorwire train --load` trains on them and says its losses, PyTorch does the same
steps. --recipe trains in another way than by SGD with momentum: PyTorch does it by its own optimizers, schedules
and clipping. --device is tensorwire's alone: PyTorch computes on the processor. Exit status: 0 all agree to
--tolerance, 1 some do not.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, SequentialLR, StepLR

from compare import machine
from pytorch_models import CHARACTERS, MODELS, Variables, loss_of


class Job(NamedTuple):
    data: str
    batch: int
    rate: float
    dtype: str = "f32"
    sequence: int | None = None
    # of its data, which the batches do not say
    words: int = CHARACTERS
    recipe: str = "momentum"


# Where rounding grows from step to step until even PyTorch disagrees with itself on another number of threads, both
# compute in f64.
JOBS = {
    "mlp": Job("digits", 32, 0.05),
    "fcn5": Job("digits", 32, 0.002),
    "cifar": Job("digits", 32, 0.01),
    "lstm": Job("synthetic:64", 4, 0.05),
    "gru": Job("synthetic:64", 4, 0.01),
    # a row of an embedding that no word is of keeps its velocity, which PyTorch's moves on: without momentum
    "seq2seq": Job("reverse:64", 4, 0.5, words=22, recipe="sgd"),
    "sentence-embedding": Job("synthetic:256", 4, 3.0, words=402, recipe="sgd"),
    "alexnet": Job("synthetic:64", 4, 0.00001),
    "vgg16": Job("synthetic:64", 2, 0.00005, "f64"),
    "resnet50": Job("synthetic:64", 4, 0.000001),
    "inception-v3": Job("synthetic:64", 4, 0.0001, "f64"),
    "gpt-mini": Job("synthetic:64", 8, 0.01),
    "gpt2-small": Job("synthetic:64", 2, 0.01, sequence=128),
    "bert-mini": Job("synthetic:64", 4, 0.02),
    "vit-small": Job("synthetic:64", 4, 0.001),
}
MOMENTUM = 0.9
SEED = 1


class Recipe(NamedTuple):
    """How it is trained: tensorwire's options, and PyTorch's optimizer, given the variables and the rate."""

    options: str
    optimizer: Callable
    # given the optimizer, the number of steps and the rate
    schedule: Callable | None = None
    clip_norm: float | None = None
    accumulate: int = 1


def groups(variables, decay):
    """Decay of what multiplies: no biases and norms."""
    multiplies, adds = [[v for v in variables if (v.dim() > 1) == large] for large in (True, False)]
    return [{"params": multiplies, "weight_decay": decay}, {"params": adds, "weight_decay": 0.0}]


def warmed_up(optimizer, steps, curve):
    """`curve` behind so many steps in which the rate grows."""
    grow = LinearLR(optimizer, start_factor=1 / steps, total_iters=steps - 1)
    return SequentialLR(optimizer, [grow, curve], [steps])


RECIPES = {
    "sgd": Recipe("--optimizer sgd", lambda variables, rate: torch.optim.SGD(variables, lr=rate)),
    "momentum": Recipe(
        f"--optimizer momentum --momentum {MOMENTUM}",
        lambda variables, rate: torch.optim.SGD(variables, lr=rate, momentum=MOMENTUM),
    ),
    "adamw": Recipe(
        "--optimizer adamw --weight-decay 0.1 --schedule cosine:0.1 --warmup 10 --clip-norm 1 --accumulate 2",
        lambda variables, rate: torch.optim.AdamW(groups(variables, 0.1), lr=rate),
        lambda optimizer, steps, rate: warmed_up(
            optimizer, 10, CosineAnnealingLR(optimizer, steps - 10, eta_min=0.1 * rate)
        ),
        clip_norm=1.0,
        accumulate=2,
    ),
    "nesterov": Recipe(
        "--optimizer nesterov --weight-decay 1e-4 --schedule step:20,0.1 --warmup 5",
        lambda variables, rate: torch.optim.SGD(groups(variables, 1e-4), lr=rate, momentum=MOMENTUM, nesterov=True),
        lambda optimizer, steps, rate: warmed_up(optimizer, 5, StepLR(optimizer, 20, 0.1)),
    ),
    "rmsprop": Recipe(
        "--optimizer rmsprop --schedule exponential:0.98",
        lambda variables, rate: torch.optim.RMSprop(variables, lr=rate),
        lambda optimizer, steps, rate: ExponentialLR(optimizer, 0.98),
    ),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorwire", default="tensorwire", help="the program [%(default)s]")
    # inception-v3 agrees for some steps; then rounding has grown, in f64 too
    models = ",".join(model for model in JOBS if model != "inception-v3")
    parser.add_argument("--models", default=models, help="[%(default)s]")
    parser.add_argument("--recipe", choices=RECIPES, help="[by model: momentum, or sgd]")
    parser.add_argument("--lr", type=float, help="the rate [by model]")
    parser.add_argument("--steps", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--dtype", choices=["f32", "f64"], help="of all [by model]")
    parser.add_argument("--kernels", default="auto", help="tensorwire's --kernels [%(default)s]")
    parser.add_argument("--batch", type=int, help="samples a batch [by model]")
    parser.add_argument("--device", default="cpu", help="tensorwire's --device [%(default)s]")
    parser.add_argument("--cuda-driver", type=pathlib.Path, help="tensorwire's --cuda-driver")
    parser.add_argument("--cuda-libs", help="tensorwire's --cuda-libs")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative [%(default)s]")
    parser.add_argument("--json", type=pathlib.Path, help="append one line of JSON a model")
    return parser.parse_args()


def ours(given, folder, model, job):
    metrics = folder / "metrics.jsonl"
    command = [given.tensorwire, "train", "--strategy", "local", "--workers", "1", "--model", model]
    command += ["--data", job.data, "--batch", str(job.batch), "--seed", str(SEED), "--lr", str(job.rate)]
    command += ["--steps", str(given.steps), "--kernels", given.kernels, "--dtype", job.dtype]
    command += [*RECIPES[job.recipe].options.split(), *sequence(job)]
    command += ["--threads", str(given.threads), "--load", str(folder / "first.safetensors")]
    command += ["--device", given.device, *(["--cuda-driver", str(given.cuda_driver)] if given.cuda_driver else [])]
    command += ["--cuda-libs", given.cuda_libs] if given.cuda_libs else []
    subprocess.run([*command, "--metrics", str(metrics)], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def sequence(job):
    return ["--sequence", str(job.sequence)] if job.sequence else []


def theirs(given, folder, model, job):
    recipe = RECIPES[job.recipe]
    batches = load_file(folder / "batches.safetensors")

    def batch(at):
        found = {name.removeprefix(f"{at}/"): x for name, x in batches.items() if name.startswith(f"{at}/")}
        dtype = torch.get_default_dtype()
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in found.items()}

    v = Variables(SEED, job.words)
    with torch.no_grad():
        loss_of(model, v, batch(0), SEED)
    first = {name: made.detach().contiguous() for name, made in v.all.items()}
    save_file({**first, **v.averages}, folder / "first.safetensors")
    optimizer = recipe.optimizer(v.all.values(), job.rate)
    schedule = recipe.schedule and recipe.schedule(optimizer, given.steps, job.rate)
    losses = []
    for step in range(given.steps):
        v.step = step + 1
        optimizer.zero_grad(set_to_none=True)
        mean = 0.0
        for at in range(recipe.accumulate):
            loss = loss_of(model, v, batch(step * recipe.accumulate + at), SEED) / recipe.accumulate
            loss.backward()
            mean += loss.item()
        if recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(v.all.values(), recipe.clip_norm)
        optimizer.step()
        if schedule:
            schedule.step()
        losses.append(mean)
    return losses


def compare(given, model):
    wanted = {"dtype": given.dtype, "rate": given.lr, "batch": given.batch, "recipe": given.recipe}
    job = JOBS[model]._replace(**{name: to for name, to in wanted.items() if to})
    torch.set_default_dtype(torch.float64 if job.dtype == "f64" else torch.float32)
    batches = given.steps * RECIPES[job.recipe].accumulate
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [given.tensorwire, "batches", "--model", model, "--data", job.data, "--batch", str(job.batch)]
        command += ["--seed", str(SEED), "--steps", str(batches), *sequence(job)]
        command += ["--save", str(folder / "batches.safetensors")]
        subprocess.run(command, check=True, capture_output=True, text=True)
        expected = theirs(given, folder, model, job)
        found = ours(given, folder, model, job)
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected)]
    assert len(found) == len(expected) == given.steps, (len(found), len(expected))
    of = {"model": model, "recipe": job.recipe, "dtype": job.dtype, "batch": job.batch, "steps": given.steps, "device": given.device}
    # no number is the worst of all
    worst = max(differences, key=lambda difference: math.inf if math.isnan(difference) else difference)
    return {**of, "worst": worst, "losses": found, "pytorch": expected}


def whence(load):
    return {"version": torch.__version__, "machine": machine(load, [])}


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    agree = True
    print(f"{'model':14} {'type':>4} {'first loss':>11} {'last loss':>11} {'PyTorch':>11} {'worst difference':>17}")
    for model in given.models.split(","):
        if model not in MODELS:
            sys.exit(f"there is no model '{model}'; known: {', '.join(JOBS)}")
        load = os.getloadavg()[0]
        try:
            result = compare(given, model)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{' '.join(map(str, error.cmd))}: {error.stderr}")
        ok = result["worst"] <= given.tolerance
        agree &= ok
        losses, expected = result["losses"], result["pytorch"]
        print(
            f"{model:14} {result['dtype']:>4} {losses[0]:11.6f} {losses[-1]:11.6f} {expected[-1]:11.6f} {result['worst']:17.2e}"
            f"{'' if ok else '  more than ' + str(given.tolerance)}",
            flush=True,
        )
        if given.json:
            with given.json.open("a") as lines:
                lines.write(json.dumps({"bench": "pytorch-loss", "kernels": given.kernels, **result, **whence(load)}) + "\n")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
