"""Puts the rounds that transfer.sh measured side by side: a table for people, JSON lines for
programs, and whether the goals are met. Measures nothing, and needs only the standard library.

Every round is a folder with two files of JSON lines: `tensorflow.jsonl` of tensorflow_transfer.py
and `tensorwire.jsonl` of `tensorwire bench transfer`. Of each row only the fields named here are
read. If tensorwire measured a transport and size in several ways, the one that it lists first
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

Row = dict[str, Any]

TRANSPORTS = ("shm", "tcp")
MIB = 1 << 20


@dataclass(frozen=True)
class Spread:
    """Of the rounds' medians, or of the rounds' ratios."""

    median: float
    min: float
    max: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Comparison:
    """One transport and size. Ratios are TensorFlow's time over tensorwire's, round by round."""

    transport: str
    exchange: str
    bytes: int
    rounds: int
    tensorflow_end_to_end_ns: Spread
    tensorflow_step_ns: Spread
    tensorflow_empty_step_ns: Spread
    tensorwire_end_to_end_ns: Spread
    ratio: Spread
    """The same span on both sides."""
    step_ratio: Spread
    """TensorFlow's whole step over tensorwire's span."""


@dataclass(frozen=True)
class Goal:
    """What a ratio is to be: the best, or the worst, of a transport's sizes in a range."""

    name: str
    transport: str
    at_least: float
    of_the_best: bool = False
    above_bytes: int = 0
    up_to_bytes: float = float("inf")


GOALS = (
    Goal("shm: best ratio", "shm", 61, of_the_best=True),
    Goal("shm: every size", "shm", 10),
    Goal("tcp: up to 1 MiB", "tcp", 5, up_to_bytes=MIB),
    Goal("tcp: above 1 MiB", "tcp", 1.7, above_bytes=MIB),
)


@dataclass(frozen=True)
class Verdict:
    """A goal held against what was measured, by the same span and by TensorFlow's whole step."""

    goal: str
    at_least: float
    ratio: float
    bytes: int
    met: bool
    step_ratio: float
    met_by_step: bool


def compare(rounds: list[tuple[list[Row], list[Row]]]) -> list[Comparison]:
    """Rounds of (TensorFlow's rows, tensorwire's rows) by transport and size, smallest size first.
    What is not in every round on both sides is left out."""
    comparisons = []
    for transport in TRANSPORTS:
        peers = [by_size(rows) for rows, _ in rounds]
        ours = [by_size(r for r in rows if r["transport"] == transport) for _, rows in rounds]
        for size in sorted(set.intersection(*map(set, peers + ours))):
            of_size = [peer[size] for peer in peers], [own[size] for own in ours]
            comparisons.append(compare_rows(transport, size, *of_size))
    return comparisons


def by_size(rows: Iterable[Row]) -> dict[int, Row]:
    """The first row of each size."""
    first: dict[int, Row] = {}
    for row in rows:
        first.setdefault(row["bytes"], row)
    return first


def compare_rows(transport: str, size: int, peers: list[Row], ours: list[Row]) -> Comparison:
    exchanges = {row["exchange"] for row in ours}
    if len(exchanges) > 1:
        raise ValueError(f"the rounds are of different exchanges: {sorted(exchanges)}")
    end_to_end, step, empty_step = (
        medians(peers, field) for field in ("end_to_end_ns", "step_ns", "empty_step_ns")
    )
    own = medians(ours, "end_to_end_ns")
    return Comparison(
        transport=transport,
        exchange=exchanges.pop(),
        bytes=size,
        rounds=len(ours),
        tensorflow_end_to_end_ns=Spread.of(end_to_end),
        tensorflow_step_ns=Spread.of(step),
        tensorflow_empty_step_ns=Spread.of(empty_step),
        tensorwire_end_to_end_ns=Spread.of(own),
        ratio=Spread.of([theirs / our for theirs, our in zip(end_to_end, own, strict=True)]),
        step_ratio=Spread.of([theirs / our for theirs, our in zip(step, own, strict=True)]),
    )


def medians(rows: Iterable[Row], field: str) -> list[float]:
    return [row[field]["median"] for row in rows]


def judge(goal: Goal, comparisons: list[Comparison]) -> Verdict | None:
    """None if no size of the goal was measured."""
    held = [
        c
        for c in comparisons
        if c.transport == goal.transport and goal.above_bytes < c.bytes <= goal.up_to_bytes
    ]
    if not held:
        return None
    pick = max if goal.of_the_best else min
    decides = pick(held, key=lambda c: c.ratio.median)
    step_ratio = pick(c.step_ratio.median for c in held)
    return Verdict(
        goal=goal.name,
        at_least=goal.at_least,
        ratio=decides.ratio.median,
        bytes=decides.bytes,
        met=decides.ratio.median >= goal.at_least,
        step_ratio=step_ratio,
        met_by_step=step_ratio >= goal.at_least,
    )


def print_table(comparisons: list[Comparison], out: TextIO) -> None:
    """A block a transport."""
    for transport in TRANSPORTS:
        block = [c for c in comparisons if c.transport == transport]
        if not block:
            continue
        exchanges = ", ".join(sorted({c.exchange for c in block}))
        print(f"\n{transport} ({exchanges})", file=out)
        row = "{:>9}  {:>13}  {:>13}  {:>8}  {:>15}  | {:>7}  {:>13}  {:>8}"
        head = ("TensorFlow ms", "tensorwire ms", "ratio", "of the rounds")
        print(row.format("size", *head, "step ms", "empty step ms", "ratio"), file=out)
        for c in block:
            cells = (
                size_name(c.bytes),
                milliseconds(c.tensorflow_end_to_end_ns.median),
                milliseconds(c.tensorwire_end_to_end_ns.median),
                times(c.ratio.median),
                f"{times(c.ratio.min)} to {times(c.ratio.max)}",
                milliseconds(c.tensorflow_step_ns.median),
                milliseconds(c.tensorflow_empty_step_ns.median),
                times(c.step_ratio.median),
            )
            print(row.format(*cells), file=out)
    print(
        "\nmedians of the rounds' medians, milliseconds; ratio: the median of the rounds' ratios."
        "\nLeft of the bar the same span on both sides: from the sender's tensor, ready to be sent,"
        "\nto the end of reduce_max on the receiver. Right of it what TensorFlow's caller waits for:"
        "\na session.run that moves the tensor, and one that moves nothing; ratio: step over"
        "\ntensorwire's span.",
        file=out,
    )


def print_goals(comparisons: list[Comparison], out: TextIO) -> None:
    print("", file=out)
    for goal in GOALS:
        verdict = judge(goal, comparisons)
        name = f"{goal.name} ≥ {goal.at_least:g}×"
        if verdict is None:
            print(f"{name:24} not measured", file=out)
            continue
        found = f"{times(verdict.ratio)} at {size_name(verdict.bytes)}"
        by_step = f"by the whole step {times(verdict.step_ratio)}, {met(verdict.met_by_step)}"
        print(f"{name:24} {met(verdict.met):8} {found} ({by_step})", file=out)


def met(is_met: bool) -> str:
    return "met" if is_met else "NOT met"


def milliseconds(nanoseconds: float) -> str:
    return significant(nanoseconds / 1e6)


def times(ratio: float) -> str:
    return significant(ratio) + "×"


def significant(number: float) -> str:
    """Three digits, or as many as are before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


def size_name(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def commit() -> str | None:
    """Of the checkout that this is of, if it is of one."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def commit_of(rows: list[Row]) -> str | None:
    """Of the tensorwire that wrote these lines, if they say so."""
    return next((row["machine"]["commit"] for row in rows if "commit" in (row.get("machine") or {})), None)


def machine(load: float | None, ours: list[Row]) -> Row:
    """What the figures were measured on; `load`: its mean load in the minute before, `ours`: lines that tensorwire wrote."""
    cpu = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            field, _, value = line.partition(":")
            if field.strip() == "model name":
                cpu = value.strip()
                break
    return {
        "commit": commit_of(ours) or commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "host": platform.node(),
        "kernel": platform.release(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load,
    }


def read_rows(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_json(file: Path, comparisons: list[Comparison], common: Row) -> None:
    """Appends a line a transport and size, then a line a goal."""
    with file.open("a", encoding="utf-8") as lines:
        for comparison in comparisons:
            row = {"bench": "peers-transfer", "peer": "tensorflow-grpc"}
            print(json.dumps(row | asdict(comparison) | common), file=lines)
        for goal in GOALS:
            verdict = judge(goal, comparisons)
            if verdict is not None:
                row = {"bench": "peers-transfer-goal", "peer": "tensorflow-grpc"}
                print(json.dumps(row | asdict(verdict) | common), file=lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("rounds", metavar="FOLDER", nargs="+", type=Path, help="one a round")
    parser.add_argument("--json", type=Path, metavar="F", help="append JSON lines to this file")
    parser.add_argument("--load", type=float, help="of the machine before the first round")
    parser.add_argument("--tensorwire-version", default="unknown")
    arguments = parser.parse_args()
    rounds = [
        (read_rows(folder / "tensorflow.jsonl"), read_rows(folder / "tensorwire.jsonl"))
        for folder in arguments.rounds
    ]
    comparisons = compare(rounds)
    here = machine(arguments.load, rounds[0][1])
    versions = {
        "tensorflow": rounds[0][0][0]["version"],
        "tensorwire": arguments.tensorwire_version.removeprefix("tensorwire "),
    }
    print(f"{here['cpu']}, {here['cores']} cores, load {here['load_before']} before the first round")
    print(f"TensorFlow {versions['tensorflow']} gRPC, tensorwire {versions['tensorwire']}")
    print(f"rounds: {len(rounds)}")
    print_table(comparisons, sys.stdout)
    print_goals(comparisons, sys.stdout)
    if arguments.json:
        write_json(arguments.json, comparisons, {"machine": here, "versions": versions})


if __name__ == "__main__":
    main()
