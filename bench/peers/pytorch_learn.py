"""What gpt-mini learns of a text, by tensorwire and by PyTorch: each from first weights of its own, by AdamW with a
warm-up and a cosine, on the same batches; then the loss on the text's last tenth, of both by `tensorwire train`, which
loads PyTorch's weights and changes nothing. Exit status: 0 they agree to --tolerance, 1 they do not.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

from pytorch_loss import groups, warmed_up
from pytorch_transformers import Transformer

MODEL, RATE, DECAY, LEAST, WARM_UP, CLIP = "gpt-mini", 2e-3, 0.1, 0.1, 20, 1.0
RECIPE = f"--optimizer adamw --lr {RATE} --weight-decay {DECAY} --schedule cosine:{LEAST} --warmup {WARM_UP} --clip-norm {CLIP}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorwire", default="tensorwire", help="the program [%(default)s]")
    parser.add_argument("--data", default="kjv", help="[%(default)s]")
    parser.add_argument("--vocabulary", type=int, default=62, help="characters of the text [%(default)s]")
    parser.add_argument("--batch", type=int, default=16, help="[%(default)s]")
    parser.add_argument("--steps", type=int, default=400, help="[%(default)s]")
    parser.add_argument("--seeds", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--tolerance", type=float, default=0.02, help="relative [%(default)s]")
    return parser.parse_args()


def ours(given, seed, *more):
    command = [given.tensorwire, "train", "--strategy", "local", "--workers", "1", "--model", MODEL, "--data", given.data]
    command += ["--batch", str(given.batch), "--seed", str(seed), "--threads", str(given.threads), "--json", *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def theirs(given, seed, folder):
    """Seconds; the weights are in a file then."""
    batches = load_file(folder / "batches.safetensors")
    model = Transformer(MODEL, seed, given.vocabulary)
    optimizer = torch.optim.AdamW(groups(model.parameters.values(), DECAY), lr=RATE)
    curve = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps - WARM_UP, eta_min=LEAST * RATE)
    schedule = warmed_up(optimizer, WARM_UP, curve)
    start = time.perf_counter()
    for step in range(given.steps):
        optimizer.zero_grad(set_to_none=True)
        model.loss({name: batches[f"{step}/{name}"] for name in ("input", "labels")}).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters.values(), CLIP)
        optimizer.step()
        schedule.step()
    took = time.perf_counter() - start
    weights = {name: made.detach().contiguous() for name, made in model.parameters.items()}
    save_file(weights, folder / "pytorch.safetensors")
    return took


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    agree = True
    print(f"{'seed':>4} {'tensorwire':>22} {'PyTorch':>22} {'difference':>11}")
    for seed in range(1, given.seeds + 1):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            command = [given.tensorwire, "batches", "--model", MODEL, "--data", given.data, "--batch", str(given.batch)]
            command += ["--seed", str(seed), "--steps", str(given.steps), "--save", str(folder / "batches.safetensors")]
            subprocess.run(command, check=True, capture_output=True)
            took = theirs(given, seed, folder)
            unchanged = ["--load", str(folder / "pytorch.safetensors"), "--optimizer", "sgd", "--lr", "1e-30", "--steps", "1"]
            expected = ours(given, seed, *unchanged)["test_loss"]
            found = ours(given, seed, *RECIPE.split(), "--steps", str(given.steps))
        difference = found["test_loss"] / expected - 1
        agree &= abs(difference) <= given.tolerance
        print(
            f"{seed:4} {found['test_loss']:10.4f} in {found['seconds']:5.0f} s {expected:11.4f} in {took:5.0f} s"
            f" {difference:+10.2%}",
            flush=True,
        )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
