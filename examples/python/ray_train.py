"""A classifier trained by PyTorch's DistributedDataParallel in workers that Ray places: when one is lost, all begin again.

    python examples/python/ray_train.py
    python examples/python/ray_train.py --lose-a-worker      # worker 1 ends itself in the middle, once

Rank 0 keeps a checkpoint in a folder, from which all go on; on several hosts, give one that all reach (--folder).
"""

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tensorwire.ray

FEATURES, CLASSES, BATCH, STEPS, KEPT_EVERY = 64, 10, 64, 60, 10


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A worker's samples of a step: points around the centres of their classes, which all workers share."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    own = torch.Generator().manual_seed(1 + step * dist.get_world_size() + rank)
    labels = torch.randint(CLASSES, (BATCH,), generator=own)
    return centres[labels] + torch.randn(BATCH, FEATURES, generator=own), labels


def train(config: dict[str, Any]) -> tuple[int, float]:
    """What each worker does; returns the step that this attempt began with, and the last loss."""
    dist.init_process_group("tensorwire")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    checkpoint, begun = Path(config["folder"]) / "checkpoint.pt", 0
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        begun = kept["steps"]
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    for step in range(begun, STEPS):
        if config["lose"] and attempt == 0 and rank == 1 and step == STEPS // 2 + 5:
            os.kill(os.getpid(), signal.SIGKILL)
        samples, labels = batch(rank, step)
        loss = nn.functional.cross_entropy(model(samples), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % KEPT_EVERY == 0:
            kept = {"steps": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(kept, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
    dist.destroy_process_group()
    return begun, loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="where the checkpoint goes (default: a temporary folder)")
    parser.add_argument("--lose-a-worker", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        config = {"folder": given.folder or temporary, "lose": given.lose_a_worker}
        results = tensorwire.ray.train(train, config, workers=given.workers, restarts=2)
    for rank, (begun, loss) in enumerate(results):
        print(f"worker {rank}: from step {begun + 1} to {STEPS}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
