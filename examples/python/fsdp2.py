"""A language model of random sentences trained by PyTorch's fully_shard (FSDP2): each worker keeps its part of the weights.

    torchrun --nproc-per-node 2 examples/python/fsdp2.py
    torchrun --nproc-per-node 2 examples/python/fsdp2.py --backend gloo      # for comparison

Weights are gathered before they are needed, and gradients reduced to who keeps them. PyTorch allocates what crosses in the
group's memory if it is told so, and then tensorwire copies nothing.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

WORDS, LENGTH, WIDTH, LAYERS = 64, 16, 64, 2
BATCH, STEPS = 16, 40


class Model(nn.Module):
    """Guesses each next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.guess = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words) + self.places(torch.arange(words.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.guess(hidden)


def batch(rank: int, step: int) -> torch.Tensor:
    """A worker's sentences of a step: each word follows from the one before, but for one in ten."""
    own = torch.Generator().manual_seed(1 + step * dist.get_world_size() + rank)
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=own)
    by_chance = torch.rand(BATCH, LENGTH + 1, generator=own) < 0.1
    for at in range(1, LENGTH + 1):
        follows = (5 * words[:, at - 1] + 1) % WORDS
        words[:, at] = torch.where(by_chance[:, at], words[:, at], follows)
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backend", choices=["tensorwire", "gloo"], default="tensorwire")
    backend = parser.parse_args().backend

    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if backend == "tensorwire":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    begun = time.monotonic()
    for step in range(STEPS):
        words = batch(rank, step)
        guesses = model(words[:, :-1])
        loss = nn.functional.cross_entropy(guesses.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step == 0 or step % 20 == 19):
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{STEPS} steps over {backend} in {time.monotonic() - begun:.2f} s")
        if backend == "tensorwire":
            import tensorwire.torch

            stats = tensorwire.torch.stats()
            print(f"{stats['operations']} operations, {stats['in_place']} of them in place")
            print(f"{stats['copied_bytes']} bytes copied")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
