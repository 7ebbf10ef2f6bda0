"""What the peers' learning has in common: the tasks, which samples a worker takes in a step, when the test is
evaluated, and the lines of a run. Knows no framework.

A run is a new job of two workers with one thread each. All peers take the same samples in the order that numpy
draws of a seed; first weights are each framework's own, in the ranges of tensorwire's initialisers.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

WORKERS = 2
DATA = pathlib.Path(__file__).parents[2] / "crates/zoo/data"
# characters of a window, of at most 128 that gpt-mini takes, and how many there are
WINDOW, VOCABULARY = 32, 62
# of so many characters the last are the test
TEST_EVERY = 10
# samples that are evaluated at once
EVALUATED = {"digits": 359, "text": 64}


class Task(NamedTuple):
    """What is learned and how, by all alike."""

    model: str  # tensorwire's names
    data: str
    optimizer: str
    rate: float
    warm_up: int  # steps in which the rate grows to that
    batch: int  # of a worker
    steps: int
    evaluate_every: int
    metric: str  # by which systems are compared

    def rate_of(self, step: int) -> float:
        """Of a step, from 1, as tensorwire's --warmup."""
        return self.rate * min(1.0, step / max(1, self.warm_up))


TASKS = {
    # epochs of 11 steps
    "digits": Task("mlp", "digits", "momentum", 0.05, 0, 64, 220, 11, "test_accuracy"),
    # Adam's first steps are as long as its rate, whatever the gradient is: without a warm-up some seeds overshoot
    "text": Task("gpt-mini", "kjv", "adam", 5e-4, 20, 8, 100, 50, "test_loss"),
}
MOMENTUM = 0.9
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Samples(NamedTuple):
    input: Any
    labels: Any


def digits(kind: str) -> Samples:
    """Images, from 0 to 1, and which digits they are."""
    import numpy as np  # not where runs are only compared

    images = np.frombuffer((DATA / f"digits/{kind}-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
    labels = np.frombuffer((DATA / f"digits/{kind}-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    return Samples(images.reshape(len(labels), -1).astype(np.float32) / 255, labels.astype(np.int32))


def text() -> tuple[Any, Any]:
    """The characters to learn from and those of the test, as numbers."""
    import numpy as np

    read = (DATA / "kjv/genesis-exodus.txt").read_text(encoding="utf-8")
    known = {character: number for number, character in enumerate(sorted(set(read)))}
    assert len(known) == VOCABULARY, len(known)
    characters = np.array([known[character] for character in read], np.int32)
    first = len(characters) - len(characters) // TEST_EVERY
    return characters[:first], characters[first:]


def windows(characters: Any, starts: Any) -> Samples:
    """And the character behind each of a window's."""
    import numpy as np

    of = characters[np.asarray(starts)[:, None] + np.arange(WINDOW + 1)]
    return Samples(of[:, :-1], of[:, 1:])


def batches(given: Any, rank: int) -> Iterator[Samples]:
    """What worker `rank` takes in each step."""
    import numpy as np

    task, random = TASKS[given.task], np.random.default_rng(given.seed)
    together = WORKERS * task.batch
    left = given.steps
    if given.task == "text":
        characters, _ = text()
        for _ in range(left):
            starts = random.integers(0, len(characters) - WINDOW, together)
            yield windows(characters, starts[rank::WORKERS])
        return
    samples = digits("train")
    while left:
        order = random.permutation(len(samples.labels))
        # what is no whole batch any more is left out
        of_epoch = min(left, len(order) // together)
        for at in range(of_epoch):
            chosen = order[at * together : (at + 1) * together][rank::WORKERS]
            yield Samples(samples.input[chosen], samples.labels[chosen])
        left -= of_epoch


def test(task: str) -> Samples:
    if task == "digits":
        return digits("t10k")
    _, characters = text()
    return windows(characters, range(0, len(characters) - WINDOW, WINDOW))


class Log:
    """A worker's steps as they end, and what was evaluated behind them."""

    def __init__(self, given: Any) -> None:
        self.given, self.task = given, TASKS[given.task]
        self.lines: list[dict[str, float]] = []
        self.start = time.perf_counter()

    def step(self, loss: float) -> None:
        step = len(self.lines) + 1
        rate = step * WORKERS * self.task.batch / (time.perf_counter() - self.start)
        # `tensorwire report` draws the mean of runs that differ only in their seed
        line = {"step": step, "loss": float(loss), "samples_per_second": rate, "seed": self.given.seed}
        self.lines.append(line)

    def is_evaluated(self) -> bool:
        step = len(self.lines)
        return step % self.task.evaluate_every == 0 or step == self.given.steps

    def evaluate(self, logits_of: Callable[[Any], Any]) -> None:
        """Mean loss and accuracy over the test, given the logits of a batch of inputs: [labels, classes]."""
        import numpy as np

        samples, size = test(self.given.task), EVALUATED[self.given.task]
        loss, right = 0.0, 0
        for at in range(0, len(samples.input), size):
            logits = np.asarray(logits_of(samples.input[at : at + size]), np.float64)
            labels = samples.labels[at : at + size].reshape(-1)
            logits -= logits.max(1, keepdims=True)
            chosen = logits[np.arange(len(labels)), labels]
            loss += float((np.log(np.exp(logits).sum(1)) - chosen).sum())
            right += int((logits.argmax(1) == labels).sum())
        count = samples.labels.size
        self.lines[-1] |= {"test_loss": loss / count, "test_accuracy": right / count}


def save(log: Log, folder: str, rank: int) -> None:
    """For `write` of another process."""
    pathlib.Path(folder, f"worker{rank}.json").write_text(json.dumps(log.lines))


def write(given: Any, folder: str) -> None:
    """The run's file: worker 0's lines, with the mean loss of all workers."""
    workers = [json.loads(pathlib.Path(folder, f"worker{rank}.json").read_text()) for rank in range(WORKERS)]
    for together in zip(*workers, strict=True):
        together[0]["loss"] = sum(line["loss"] for line in together) / WORKERS
    given.metrics.write_text("".join(json.dumps(line) + "\n" for line in workers[0]))


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.partition(":")[0])
    add = parser.add_argument
    add("task", choices=TASKS)
    add("--metrics", type=pathlib.Path, required=True, help="the file of the run, a line of JSON a step")
    add("--seed", type=int, default=1, help="[%(default)s]")
    add("--steps", type=int, required=True)
    add("--deadline", type=float, default=580, help="seconds until it gives up [%(default)s]")
    return parser
