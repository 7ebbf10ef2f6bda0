"""What the mlp learns of the digits with two workers, by tensorwire and by PyTorch's DistributedDataParallel over gloo: the same
recipe and as many steps, each from first weights and in an order of samples of its own, once for each seed. Writes a file of
metrics for each run, which `tensorwire report` draws beside each other. Exit status: 0 the mean accuracies are as near as the
seeds' spread allows, 1 they are not.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pytorch_models import glorot, he

WORKERS, BATCH, RATE, MOMENTUM, UNITS = 2, 64, 0.05, 0.9, 2048
DIGITS = pathlib.Path(__file__).parents[2] / "crates/zoo/data/digits"
# where all seeds come to the same accuracy, one sample in so many is no difference
RESOLUTION = 1 / 100


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorwire", default="tensorwire", help="the program [%(default)s]")
    parser.add_argument("--strategies", default="ps,allreduce,dist-sgd", help="[%(default)s]")
    parser.add_argument("--wire", default="f32,bf16", help="what crosses, of tensorwire [%(default)s]")
    parser.add_argument("--epochs", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--seeds", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--out", type=pathlib.Path, default="converge", help="a folder for files of metrics [%(default)s]")
    return parser.parse_args()


def samples(kind):
    """Images, from 0 to 1, and labels."""
    images = (DIGITS / f"{kind}-images-idx3-ubyte").read_bytes()
    labels = (DIGITS / f"{kind}-labels-idx1-ubyte").read_bytes()
    x = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8).float() / 255
    y = torch.frombuffer(bytearray(labels[8:]), dtype=torch.uint8).long()
    return TensorDataset(x.reshape(len(y), -1), y)


def mlp(inputs, classes):
    first, second, last = torch.nn.Linear(inputs, UNITS), torch.nn.Linear(UNITS, UNITS), torch.nn.Linear(UNITS, classes)
    limits = [(first, he(inputs)), (second, he(UNITS)), (last, glorot(UNITS, classes))]
    for layer, limit in limits:
        torch.nn.init.uniform_(layer.weight, -limit, limit)
        torch.nn.init.zeros_(layer.bias)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)


def take_part(rank, given, seed, store, path):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    train, test = samples("train"), samples("t10k")
    module = DistributedDataParallel(mlp(train.tensors[0].shape[1], 10))
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    sampler = DistributedSampler(train, WORKERS, rank, seed=seed, drop_last=True)
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    lines, step, start = [], 0, time.perf_counter()
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            step += 1
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(module(x), y)
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            distributed.all_reduce(mean)
            rate = step * WORKERS * BATCH / (time.perf_counter() - start)
            lines.append({"step": step, "epoch": epoch + 1, "loss": mean.item() / WORKERS, "samples_per_second": rate})
        with torch.no_grad():
            x, y = test.tensors
            logits = module.module(x)
            right = (logits.argmax(1) == y).float().mean().item()
            lines[-1] |= {"test_accuracy": right, "test_loss": F.cross_entropy(logits, y).item()}
    if rank == 0:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    distributed.destroy_process_group()


def theirs(given, seed):
    """The accuracy in the end; a line a step is in a file then."""
    path = given.out / f"pytorch-ddp-{seed}.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(take_part, (given, seed, f"{folder}/store", path), nprocs=WORKERS)
    return json.loads(path.read_text().splitlines()[-1])["test_accuracy"]


def ours(given, strategy, wire, seed):
    """The same, by tensorwire."""
    name = strategy if wire == "f32" else f"{strategy}-{wire}"
    command = [given.tensorwire, "train", "--strategy", strategy, "--wire", wire, "--model", "mlp", "--data", "digits"]
    command += ["--workers", str(WORKERS), "--batch", str(BATCH), "--optimizer", "momentum", "--lr", str(RATE)]
    command += ["--epochs", str(given.epochs), "--seed", str(seed), "--threads", "1", "--json"]
    # as often as PyTorch evaluates
    steps = len(samples("train")) // (WORKERS * BATCH)
    command += ["--val-every", str(steps), "--metrics", str(given.out / f"tensorwire-{name}-{seed}.jsonl")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["test_accuracy"]


def main():
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    seeds = range(1, given.seeds + 1)
    found = {"PyTorch DDP, gloo": [theirs(given, seed) for seed in seeds]}
    for strategy in given.strategies.split(","):
        for wire in given.wire.split(","):
            found[f"tensorwire {strategy}, {wire}"] = [ours(given, strategy, wire, seed) for seed in seeds]
    print(f"{'test accuracy after ' + str(given.epochs) + ' epochs':32} {'mean':>8} {'sd':>8}  by seed")
    peer, agree = None, True
    for name, accuracies in found.items():
        mean, spread = statistics.mean(accuracies), statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        peer = peer or (mean, spread)
        # of the difference of two means, twice
        allowed = 2 * ((spread**2 + peer[1] ** 2) / len(accuracies)) ** 0.5 + RESOLUTION
        agree &= abs(mean - peer[0]) <= allowed
        print(f"{name:32} {mean:8.4f} {spread:8.4f}  {' '.join(f'{one:.4f}' for one in accuracies)}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
