"""Imported modules trained by two workers and two parameter servers, against PyTorch's eager training.

For each module: how long the import takes, and the losses of the first steps of both, from the same weights and the same
batches. PyTorch computes each worker's part of a step by itself and takes the mean of the gradients, as data-parallel
training does. Exit status: 0 all agree to --tolerance and are imported in --import-seconds, 1 some do not.
"""

import argparse
import copy
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import tensorwire
from tensorwire.torch import import_


class Job(NamedTuple):
    """A module, one batch of a worker, its loss if the module returns none, and the rate."""

    module: Callable[[], nn.Module]
    example: Callable[[], tuple[torch.Tensor, ...]]
    loss: Callable[..., torch.Tensor] | None
    rate: float


class Language(nn.Module):
    """GPT-2 as Hugging Face has it, by its tokens and labels."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        # what is dropped is drawn by each
        self.model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=labels, use_cache=False).loss


class Recurrent(nn.Module):
    """Two layers of 256 over words, and a classifier of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True)
        self.output = nn.Linear(256, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(self.lstm(self.words(ids))[0][:, -1])


def resnet50() -> nn.Module:
    from torchvision.models import resnet50

    # as it is trained (Goyal et al. 2017, §5.1). Otherwise rounding grows by several times in each step, until PyTorch disagrees with
    # itself on another number of threads.
    return resnet50(zero_init_residual=True)


def tokens(samples: int, length: int, words: int) -> torch.Tensor:
    return torch.randint(0, words, (samples, length))


JOBS = {
    "resnet50": Job(
        resnet50, lambda: (torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))), F.cross_entropy, 0.001
    ),
    "gpt2": Job(Language, lambda: (tokens(2, 64, 50257), tokens(2, 64, 50257)), None, 0.01),
    "lstm": Job(Recurrent, lambda: (tokens(8, 32, 5000), torch.randint(0, 10, (8,))), F.cross_entropy, 0.05),
}
MOMENTUM = 0.9
WORKERS = 2
SERVERS = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modules", default=",".join(JOBS), help="[%(default)s]")
    parser.add_argument("--strategy", default="ps", help="[%(default)s]")
    parser.add_argument("--steps", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--lr", type=float, help="the rate [by module]")
    parser.add_argument("--dtype", choices=["f32", "f64"], default="f32", help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="of each process [%(default)s]")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative [%(default)s]")
    parser.add_argument("--import-seconds", type=float, default=2.0, help="[%(default)s]")
    parser.add_argument("--imports", type=int, default=3, help="how often each is imported [%(default)s]")
    parser.add_argument("--json", type=pathlib.Path, help="append one line of JSON a module")
    return parser.parse_args()


def eager(given: argparse.Namespace, job: Job, module: nn.Module, data: tuple[torch.Tensor, ...]) -> list[float]:
    """Returns PyTorch's losses."""
    module = copy.deepcopy(module)
    by = torch.optim.SGD(module.parameters(), lr=given.lr or job.rate, momentum=MOMENTUM)
    parts = [tensor.chunk(given.steps * WORKERS) for tensor in data]
    losses = []
    for step in range(given.steps):
        by.zero_grad()
        total = 0.0
        for worker in range(WORKERS):
            *inputs, last = [part[step * WORKERS + worker] for part in parts]
            found = module(*inputs, last) if job.loss is None else job.loss(module(*inputs), last)
            (found / WORKERS).backward()
            total += found.item() / WORKERS
        by.step()
        losses.append(total)
    return losses


def compare(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Returns what one module came to."""
    job = JOBS[name]
    torch.manual_seed(1)
    torch.set_num_threads(given.threads)
    as_type = {"f32": torch.float32, "f64": torch.float64}[given.dtype]
    module = job.module().to(as_type)
    batches = [job.example() for _ in range(given.steps * WORKERS)]
    data = tuple(torch.cat(tensors) for tensors in zip(*batches, strict=True))
    data = tuple(tensor.to(as_type) if tensor.is_floating_point() else tensor for tensor in data)
    example = tuple(tensor[: len(batches[0][0])] for tensor in data)
    seconds = []
    for _ in range(given.imports):
        begun = time.perf_counter()
        graph = import_(module, example, loss=job.loss)
        seconds.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    done = tensorwire.train(
        graph,
        data,
        strategy=given.strategy,
        workers=WORKERS,
        servers=SERVERS,
        steps=given.steps,
        learning_rate=given.lr or job.rate,
        momentum=MOMENTUM,
        threads=given.threads,
    )
    trained = time.perf_counter() - begun
    begun = time.perf_counter()
    wanted = eager(given, job, module, data)
    error = max(abs(found - loss) / abs(loss) for found, loss in zip(done.losses, wanted, strict=True))
    module.load_state_dict(done.state_dict, strict=True)
    return {
        "module": name,
        "strategy": given.strategy,
        "dtype": given.dtype,
        "steps": given.steps,
        "nodes": len(graph.description["nodes"]),
        "operators": len(graph.operators),
        "import_seconds": sorted(seconds)[len(seconds) // 2],
        "import_seconds_all": seconds,
        "error": error,
        "losses": [done.losses[0], done.losses[-1]],
        "train_seconds": trained,
        "pytorch_seconds": time.perf_counter() - begun,
    }


def main() -> int:
    given = arguments()
    # what PyTorch loads with its first export, once a process
    import_(nn.Linear(2, 2), (torch.zeros(1, 2), torch.zeros(1, 2)), loss="mse")
    failed = 0
    for name in given.modules.split(","):
        found = compare(given, name)
        fits = found["error"] <= given.tolerance and found["import_seconds"] <= given.import_seconds
        failed += not fits
        first, last = found["losses"]
        print(
            f"{name}: {found['nodes']} nodes of {found['operators']} operators, imported in {found['import_seconds']:.2f} s; "
            f"{given.steps} losses, {first:.4f} to {last:.4f}, differ by at most {found['error']:.1e}; "
            f"{found['train_seconds']:.1f} s, PyTorch alone {found['pytorch_seconds']:.1f} s{'' if fits else ' - MISSED'}",
            flush=True,
        )
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(found) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
