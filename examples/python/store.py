"""Logistic regression by two workers that share a store: each computes gradients of its own samples, servers update.

    python -m tensorwire.kv --workers 2 examples/python/store.py

torchrun, mpirun, srun and MXNet's launchers start it just as well.
"""

import numpy as np

import tensorwire.kv

FEATURES = 20_000
STEPS = 30


def samples(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """This worker's samples, and which side of a plane each lies on."""
    rows = np.random.default_rng(rank).standard_normal((200, FEATURES), dtype=np.float32)
    plane = np.sin(np.arange(FEATURES, dtype=np.float32))
    return rows, (rows @ plane > 0).astype(np.float32)


def main() -> None:
    kv = tensorwire.kv.create("dist_sync", servers=1)
    # servers take the mean of what the workers push, and keep the velocity
    kv.set_optimizer("sgd", learning_rate=0.02, momentum=0.9)
    weights, gradient = kv.zeros(FEATURES).numpy(), kv.zeros(FEATURES).numpy()
    kv.init("weights", weights)
    rows, labels = samples(kv.rank)
    before = kv.stats()["copied_bytes"]
    for step in range(STEPS):
        scores = np.clip(rows @ weights, -30, 30)
        guesses = 1 / (1 + np.exp(-scores))
        np.matmul(guesses - labels, rows, out=gradient)
        gradient /= len(labels)
        # both lie in memory that servers reach: nothing is copied on the way
        kv.pushpull("weights", gradient, out=weights)
        if kv.rank == 0 and step % 10 == 9:
            loss = -np.mean(np.log(np.where(labels == 1, guesses, 1 - guesses)))
            print(f"step {step + 1}: loss {loss:.4f}")
    copied = kv.stats()["copied_bytes"] - before
    right = np.mean((rows @ weights > 0) == (labels == 1))
    print(f"worker {kv.rank} of {kv.num_workers}: {right:.0%} right, {copied} bytes copied")
    kv.close()


if __name__ == "__main__":
    main()
