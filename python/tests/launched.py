"""What the tests of launchers start: trains by DDP, goes on where a checkpoint ends, and dies where it is told.

    python -m tests.launched FOLDER [--dies RANK:ATTEMPT:WHERE]

WHERE is ``import``, ``init``, or the number of a step. Rank 0 prints a hash of the weights, and who is left what it raises.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

STEPS = 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dies", default="::")
    given = parser.parse_args()
    rank, attempt, where = given.dies.split(":")
    attempt_now = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    is_victim = (rank, attempt) == (os.environ["RANK"], attempt_now)

    def strike_at(here: str) -> None:
        if is_victim and where == here:
            os.kill(os.getpid(), signal.SIGKILL)

    strike_at("import")
    import torch
    import torch.distributed as dist

    from tests.test_backend import model, train, weights

    torch.set_num_threads(1)
    try:
        if is_victim and where == "init":
            from tensorwire.torch import rendezvous

            rendezvous.choose = lambda *_: strike_at("init")
        dist.init_process_group("tensorwire")
        me = dist.get_rank()
        module, at = model(), 0
        checkpoint = given.folder / "checkpoint"
        if checkpoint.exists():
            at, state = torch.load(checkpoint)
            module.load_state_dict(state)
        dist.barrier()
        ddp = torch.nn.parallel.DistributedDataParallel(module)
        for step in range(at, STEPS):
            strike_at(str(step))
            train(ddp, me + 10 * step, 1)
            if me == 0:
                torch.save((step + 1, module.state_dict()), given.folder / "next")
                os.replace(given.folder / "next", checkpoint)
            dist.barrier()
    except RuntimeError as error:
        # what a gradient waits for is no error of the backend's type
        print(f"raised: {error}".replace("\n", " "), flush=True)
        sys.exit(1)
    if me == 0:
        print(f"weights {weights(module)} of {dist.get_world_size()} ranks from step {at} in attempt {attempt_now}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
