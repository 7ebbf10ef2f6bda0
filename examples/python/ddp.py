"""A classifier trained by PyTorch's DistributedDataParallel: gradients cross without a copy.

    torchrun --nproc-per-node 2 examples/python/ddp.py
    torchrun --nproc-per-node 2 examples/python/ddp.py --backend gloo      # for comparison

All that is tensorwire's are two lines: the name of the backend, and ``adopt``, which nothing fails without.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES, HIDDEN, CLASSES = 64, 512, 10
BATCH, STEPS = 64, 60


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A worker's samples of a step: points around the centres of their classes, which all workers share."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    own = torch.Generator().manual_seed(1 + step * dist.get_world_size() + rank)
    labels = torch.randint(CLASSES, (BATCH,), generator=own)
    return centres[labels] + torch.randn(BATCH, FEATURES, generator=own), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backend", choices=["tensorwire", "gloo"], default="tensorwire")
    backend = parser.parse_args().backend

    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    )
    # gradients are views of the buckets that cross: PyTorch does not copy them there and back
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if backend == "tensorwire":
        import tensorwire.torch

        tensorwire.torch.adopt(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    copied = 0
    begun = time.monotonic()
    for step in range(STEPS):
        samples, labels = batch(rank, step)
        loss = nn.functional.cross_entropy(model(samples), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 and backend == "tensorwire":
            # PyTorch makes its buckets in the first step and anew in the second
            copied = tensorwire.torch.stats()["copied_bytes"]
        if rank == 0 and (step == 0 or step % 20 == 19):
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{STEPS} steps over {backend} in {time.monotonic() - begun:.2f} s")
        if backend == "tensorwire":
            stats = tensorwire.torch.stats()
            print(f"{stats['operations']} operations, {stats['in_place']} of them in place")
            print(f"{stats['copied_bytes'] - copied} bytes copied from the third step on")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
