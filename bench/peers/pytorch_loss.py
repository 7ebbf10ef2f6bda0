"""The losses of tensorwire's and PyTorch's first steps, from the same weights file and the same batches.

For each model: PyTorch draws first weights and writes them to a safetensors file, `tensorwire batches`
writes the batches, `tensorwire train --load` trains on them and says its losses, PyTorch does the same
steps. Exit status: 0 all agree to --tolerance, 1 some do not.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

from pytorch_models import MODELS, Variables, loss_of

# model: (data, batch, learning rate, type). Where rounding grows from step to step until even PyTorch disagrees
# with itself on another number of threads, both compute in f64.
JOBS = {
    "mlp": ("digits", 32, 0.05, "f32"),
    "fcn5": ("digits", 32, 0.002, "f32"),
    "cifar": ("digits", 32, 0.01, "f32"),
    "lstm": ("synthetic:64", 4, 0.05, "f32"),
    "gru": ("synthetic:64", 4, 0.01, "f32"),
    "alexnet": ("synthetic:64", 4, 0.00001, "f32"),
    "vgg16": ("synthetic:64", 2, 0.00005, "f64"),
    "resnet50": ("synthetic:64", 4, 0.000001, "f32"),
    "inception-v3": ("synthetic:64", 4, 0.0001, "f64"),
}
MOMENTUM = 0.9
SEED = 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorwire", default="tensorwire", help="the program [%(default)s]")
    # inception-v3 agrees for some steps; then rounding has grown, in f64 too
    models = ",".join(model for model in JOBS if model != "inception-v3")
    parser.add_argument("--models", default=models, help="[%(default)s]")
    parser.add_argument("--steps", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--dtype", choices=["f32", "f64"], help="of all [by model]")
    parser.add_argument("--kernels", default="auto", help="tensorwire's --kernels [%(default)s]")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative [%(default)s]")
    parser.add_argument("--json", type=pathlib.Path, help="append one line of JSON a model")
    return parser.parse_args()


def ours(given, folder, model, job):
    data, batch, rate, dtype = job
    metrics = folder / "metrics.jsonl"
    command = [given.tensorwire, "train", "--strategy", "local", "--workers", "1", "--model", model]
    command += ["--data", data, "--batch", str(batch), "--seed", str(SEED), "--lr", str(rate)]
    command += ["--momentum", str(MOMENTUM), "--steps", str(given.steps), "--kernels", given.kernels]
    command += ["--dtype", dtype]
    command += ["--threads", str(given.threads), "--load", str(folder / "first.safetensors")]
    subprocess.run([*command, "--metrics", str(metrics)], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def theirs(given, folder, model, job):
    rate = job[2]
    batches = load_file(folder / "batches.safetensors")
    steps = [
        {
            "input": batches[f"{step}/input"].to(torch.get_default_dtype()),
            "labels": batches[f"{step}/labels"],
        }
        for step in range(given.steps)
    ]
    v = Variables(SEED)
    with torch.no_grad():
        loss_of(model, v, steps[0], SEED)
    first = {name: made.detach().contiguous() for name, made in v.all.items()}
    save_file({**first, **v.averages}, folder / "first.safetensors")
    optimizer = torch.optim.SGD(v.all.values(), lr=rate, momentum=MOMENTUM)
    losses = []
    for step, batch in enumerate(steps, 1):
        v.step = step
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, v, batch, SEED)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(given, model):
    job = (*JOBS[model][:3], given.dtype or JOBS[model][3])
    torch.set_default_dtype(torch.float64 if job[3] == "f64" else torch.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [given.tensorwire, "batches", "--model", model, "--data", job[0], "--batch", str(job[1])]
        command += ["--seed", str(SEED), "--steps", str(given.steps)]
        command += ["--save", str(folder / "batches.safetensors")]
        subprocess.run(command, check=True, capture_output=True, text=True)
        expected = theirs(given, folder, model, job)
        found = ours(given, folder, model, job)
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected)]
    assert len(found) == len(expected) == given.steps, (len(found), len(expected))
    return {"model": model, "dtype": job[3], "steps": given.steps, "worst": max(differences), "losses": found, "pytorch": expected}


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    agree = True
    print(f"{'model':14} {'type':>4} {'first loss':>11} {'last loss':>11} {'PyTorch':>11} {'worst difference':>17}")
    for model in given.models.split(","):
        if model not in MODELS:
            sys.exit(f"there is no model '{model}'; known: {', '.join(JOBS)}")
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
                lines.write(json.dumps({"bench": "loss", "kernels": given.kernels, **result}) + "\n")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
