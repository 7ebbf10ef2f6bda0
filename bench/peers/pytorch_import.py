"""Imported modules trained by two workers and two parameter servers, against PyTorch's eager training.

For each module: how long the import takes, how much of that torch.export, and the losses of the first steps of both, from the same
weights and the same batches. PyTorch computes each worker's part of a step by itself and takes the mean of the gradients, as
data-parallel training does. Exit status: 0 all agree to --tolerance and are imported in --import-seconds, 1 some do not.
"""

import argparse
import contextlib
import copy
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
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
    """A model of Hugging Face by its tokens and labels."""

    def __init__(self, model: nn.Module, **always: Any) -> None:
        super().__init__()
        self.model = model
        self.always = always

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=labels, **self.always).loss


# what is dropped is drawn by each, so nothing is


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Language(GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)), use_cache=False)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return Language(BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))


def llama() -> nn.Module:
    """A block of Llama 3.2 1B, with fewer words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=2048, num_attention_heads=32, num_key_value_heads=8, intermediate_size=8192, vocab_size=8000)
    return Language(LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes)), use_cache=False)


def vit() -> nn.Module:
    from torchvision.models import vit_b_16

    return vit_b_16()


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


def images(samples: int, side: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(samples, 3, side, side), torch.randint(0, 1000, (samples,))


JOBS = {
    "resnet50": Job(resnet50, lambda: images(4, 224), F.cross_entropy, 0.001),
    "gpt2": Job(gpt2, lambda: (tokens(2, 64, 50257), tokens(2, 64, 50257)), None, 0.01),
    "lstm": Job(Recurrent, lambda: (tokens(8, 32, 5000), torch.randint(0, 10, (8,))), F.cross_entropy, 0.05),
    "bert": Job(bert, lambda: (tokens(2, 64, 30522), tokens(2, 64, 30522)), None, 0.01),
    "vit": Job(vit, lambda: images(2, 224), F.cross_entropy, 0.001),
    "llama": Job(llama, lambda: (tokens(2, 64, 8000), tokens(2, 64, 8000)), None, 0.01),
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


@contextlib.contextmanager
def timed_export() -> Iterator[list[float]]:
    """Gives the seconds that calls of torch.export take."""
    export, seconds = torch.export.export, []

    def timed(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return export(*arguments, **named)
        finally:
            seconds.append(time.perf_counter() - begun)

    torch.export.export = timed
    try:
        yield seconds
    finally:
        torch.export.export = export


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
    seconds, exports = [], []
    for _ in range(given.imports):
        with timed_export() as exported:
            begun = time.perf_counter()
            graph = import_(module, example, loss=job.loss)
            seconds.append(time.perf_counter() - begun)
        exports += exported
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
        "import_seconds": statistics.median(seconds),
        "export_seconds": statistics.median(exports),
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
            f"{name}: {found['nodes']} nodes of {found['operators']} operators, imported in {found['import_seconds']:.2f} s, "
            f"{found['export_seconds']:.2f} s of it torch.export; "
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
