"""Times steps of DistributedDataParallel and of fully_shard (FSDP2) over tensorwire and over gloo, in turns, on this machine.

    python bench/peers/pytorch_backend_step.py [--models mlp,fcn5,gpt-mini,resnet50] [--rounds 3] [--transport shm|tcp]

Prints a line a model: medians over all rounds of a step of the slower of two ranks, one thread each, over gloo, over tensorwire
as it comes, and where it copies nothing (`tensorwire.torch.adopt`; with FSDP2 its buffers from the group); what the same
processes take that exchange nothing; and the first three beside gloo. Losses of all are compared. Needs PyTorch and the package
`tensorwire`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from pytorch_ddp import build
from pytorch_transformers import CHARACTERS, Transformer
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

WORLD = 2
#: Samples of a rank: such that communication is a part of the step that can be seen.
BATCHES = {"mlp": 32, "fcn5": 32, "gpt-mini": 4, "resnet50": 2}
#: The model of FSDP2: width, layers, length and batch.
WIDTH, LAYERS, LENGTH, BATCH, WORDS = 256, 4, 32, 4, 512
WAYS = ("alone", "gloo", "tensorwire", "without copies")
STEPS, WARM_UP = 12, 3


class Sharded(nn.Module):
    """A language model for FSDP2."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.guess = nn.Linear(WIDTH, WORDS)
        self.batch = torch.randint(WORDS, (BATCH, LENGTH + 1))

    def forward(self) -> torch.Tensor:
        hidden = self.words(self.batch[:, :-1])
        for layer in self.layers:
            hidden = layer(hidden)
        return nn.functional.cross_entropy(self.guess(hidden).flatten(0, 1), self.batch[:, 1:].flatten())


class Transforming(nn.Module):
    """A transformer of the zoo, from nothing to the loss of its batch."""

    def __init__(self, model: str) -> None:
        super().__init__()
        transformer = Transformer(model, seed=1)
        tokens = torch.randint(CHARACTERS, (BATCHES[model], transformer.window + 1))
        self.module = transformer.module
        self.loss = transformer.loss
        self.feed = {"input": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}

    def forward(self) -> torch.Tensor:
        return self.loss(self.feed)


def made(model: str, way: str) -> nn.Module:
    """Returns the model of a way."""
    torch.manual_seed(dist.get_rank())
    if model == "fsdp2":
        module: nn.Module = Sharded()
        if way == "alone":
            return module
        mesh = dist.init_device_mesh("cpu", (WORLD,))
        for layer in module.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        for part in module.modules():
            if way == "without copies" and isinstance(part, FSDPModule):
                part.set_allocate_memory_from_process_group_for_comm(True)
        return module
    if model == "gpt-mini":
        module = Transforming(model)
    else:
        module, _ = build(torch, argparse.Namespace(model=model, batch=BATCHES[model]))
    if way == "alone":
        return module
    parallel = nn.parallel.DistributedDataParallel(module)
    if way == "without copies":
        import tensorwire.torch

        tensorwire.torch.adopt(parallel)
    return parallel


def rank(me: int, way: str, transport: str, models: list[str], store: str, said: Any) -> None:
    torch.set_num_threads(1)
    os.environ["TENSORWIRE_TRANSPORT"] = transport
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "gloo" if way in ("alone", "gloo") else "tensorwire"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=me, world_size=WORLD)
    found = []
    for model in models:
        module = made(model, way)
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        times = []
        for _ in range(WARM_UP + STEPS):
            dist.barrier()
            begun = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            loss = module()
            loss.backward()
            optimizer.step()
            last = loss.item()
            times.append(time.perf_counter() - begun)
        found.append((statistics.median(times[WARM_UP:]), last))
    slowest = torch.tensor([took for took, _ in found], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if me == 0:
        said.send(list(zip(slowest.tolist(), [last for _, last in found], strict=True)))
    dist.barrier()
    dist.destroy_process_group()


def measure(way: str, transport: str, models: list[str]) -> list[tuple[float, float]]:
    """Returns seconds and the last loss by model."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (way, transport, models, f"{folder}/store", there)
        ranks = [context.Process(target=rank, args=(me, *arguments)) for me in range(WORLD)]
        for each in ranks:
            each.start()
        there.close()
        found = here.recv()
        for each in ranks:
            each.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    models = [*BATCHES, "fsdp2"]
    parser.add_argument(
        "--models",
        type=lambda text: [name for name in text.split(",") if name in models or parser.error(f"no model '{name}'; there are {', '.join(models)}")],
        default=models,
        help=f"default {','.join(models)}",
    )
    parser.add_argument("--transport", default="shm", choices=["shm", "tcp", "verbs", "auto"])
    parser.add_argument("--rounds", type=int, default=3, help="in turns (default 3)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON a model")
    given = parser.parse_args()
    rounds = [{way: measure(way, given.transport, given.models) for way in WAYS} for _ in range(given.rounds)]
    for at, model in enumerate(given.models):
        of = {way: statistics.median(found[way][at][0] for found in rounds) for way in WAYS}
        losses = {way: rounds[0][way][at][1] for way in WAYS if way != "alone"}
        assert max(losses.values()) - min(losses.values()) <= 1e-4 * max(losses.values()), f"{model}: losses {losses}"
        if given.json:
            line = {"model": model, "world": WORLD, "transport": given.transport}
            print(json.dumps(line | {f"{way.replace(' ', '_')}_s": of[way] for way in WAYS}))
            continue
        share = 1 - of["alone"] / of["gloo"]
        print(
            f"{model:9} " + "  ".join(f"{way} {of[way] * 1e3:8.2f} ms" for way in WAYS)
            + f"  communication over gloo {share:4.0%}; beside gloo {of['tensorwire'] / of['gloo']:.2f},"
            f" without copies {of['without copies'] / of['gloo']:.2f}"
        )


if __name__ == "__main__":
    main()
