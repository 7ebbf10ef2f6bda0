"""Puts the rounds that kvstore.sh measured side by side: a table for people, JSON lines for
programs, and whether the goals are met. Measures nothing, and needs only the standard library.

Every round is a folder with two files of JSON lines: `mxnet.jsonl` of mxnet_kvstore.py and
`tensorwire.jsonl` of `tensorwire bench kvstore`. Of each row only the fields named here are read.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional, TextIO

from compare import MIB, Row, Spread, by_size, machine, met, milliseconds, read_rows, size_name, times

# transports, and where a worker has the sum in the end: in the server's memory, or in its own tensor
WAYS = (("shm", "shown"), ("shm", "filled"), ("tcp", "filled"))


@dataclass(frozen=True)
class Comparison:
    """One way and size. The ratio is MXNet's time over tensorwire's, round by round."""

    transport: str
    pull: str
    workers: int
    servers: int
    bytes: int
    rounds: int
    mxnet_s: Spread
    tensorwire_s: Spread
    ratio: Spread


@dataclass(frozen=True)
class Goal:
    """What the ratio of every size from `from_bytes` on is to be, of one number of workers and servers."""

    name: str
    transport: str
    pull: str
    at_least: float
    from_bytes: int
    workers: int = 2
    servers: int = 1


GOALS = (
    Goal("shm, shown: from 4 MiB", "shm", "shown", 16, 4 * MIB),
    Goal("shm, filled: from 4 MiB", "shm", "filled", 16, 4 * MIB),
    Goal("tcp: from 4 MiB", "tcp", "filled", 4, 4 * MIB),
)


@dataclass(frozen=True)
class Verdict:
    """A goal held against the size that is furthest from it."""

    goal: str
    at_least: float
    ratio: float
    bytes: int
    met: bool


def compare(rounds: list[tuple[list[Row], list[Row]]]) -> list[Comparison]:
    """Rounds of (MXNet's rows, tensorwire's rows) by way and size, smallest size first. What
    is not in every round on both sides is left out."""
    comparisons = []
    for way in WAYS:
        peers = [by_size(rows) for rows, _ in rounds]
        ours = [by_size(r for r in rows if (r["transport"], r["pull"]) == way) for _, rows in rounds]
        for size in sorted(set.intersection(*map(set, peers + ours))):
            of_size = [peer[size] for peer in peers], [own[size] for own in ours]
            comparisons.append(compare_rows(*way, size, *of_size))
    return comparisons


def compare_rows(
    transport: str, pull: str, size: int, peers: list[Row], ours: list[Row]
) -> Comparison:
    jobs = {(row["workers"], row["servers"]) for row in peers + ours}
    if len(jobs) > 1:
        raise ValueError(f"the rounds are of different numbers of workers and servers: {sorted(jobs)}")
    unverified = [row for row in peers + ours if not row["verified"]]
    if unverified:
        raise ValueError(f"not verified: {unverified[0]}")
    workers, servers = jobs.pop()
    theirs, own = ([row["median_s"] for row in rows] for rows in (peers, ours))
    return Comparison(
        transport=transport,
        pull=pull,
        workers=workers,
        servers=servers,
        bytes=size,
        rounds=len(own),
        mxnet_s=Spread.of(theirs),
        tensorwire_s=Spread.of(own),
        ratio=Spread.of([their / our for their, our in zip(theirs, own)]),
    )


def judge(goal: Goal, comparisons: list[Comparison]) -> Optional[Verdict]:
    """None if no size of the goal was measured."""
    held = [
        c
        for c in comparisons
        if (c.transport, c.pull) == (goal.transport, goal.pull)
        and (c.workers, c.servers) == (goal.workers, goal.servers)
        and c.bytes >= goal.from_bytes
    ]
    if not held:
        return None
    worst = min(held, key=lambda c: c.ratio.median)
    ratio = worst.ratio.median
    return Verdict(goal.name, goal.at_least, ratio, worst.bytes, ratio >= goal.at_least)


def print_table(comparisons: list[Comparison], out: TextIO) -> None:
    """A block a way."""
    row = "{:>9}  {:>9}  {:>13}  {:>8}  {:>15}"
    for transport, pull in WAYS:
        block = [c for c in comparisons if (c.transport, c.pull) == (transport, pull)]
        if not block:
            continue
        print(f"\n{transport}, {pull}, {block[0].workers} workers, {block[0].servers} servers", file=out)
        print(row.format("size", "MXNet ms", "tensorwire ms", "ratio", "of the rounds"), file=out)
        for c in block:
            cells = (
                size_name(c.bytes),
                milliseconds(c.mxnet_s.median * 1e9),
                milliseconds(c.tensorwire_s.median * 1e9),
                times(c.ratio.median),
                f"{times(c.ratio.min)} to {times(c.ratio.max)}",
            )
            print(row.format(*cells), file=out)
    print(
        "\nmedians of the rounds' medians, milliseconds, of what a worker waits for between a push of"
        "\none key and the end of the pull; shown: it reads the sum where the server has it, filled: in a"
        "\ntensor of its own, as MXNet's; ratio: the median of the rounds' ratios.",
        file=out,
    )


def print_goals(comparisons: list[Comparison], out: TextIO) -> None:
    print("", file=out)
    for goal in GOALS:
        verdict = judge(goal, comparisons)
        name = f"{goal.name} ≥ {goal.at_least:g}×"
        found = "not measured"
        if verdict:
            found = f"{met(verdict.met):8} {times(verdict.ratio)} at {size_name(verdict.bytes)}"
        print(f"{name:31} {found}", file=out)


def write_json(file: Path, comparisons: list[Comparison], common: Row) -> None:
    """Appends a line a way and size, then a line a goal."""
    with file.open("a", encoding="utf-8") as lines:
        for comparison in comparisons:
            row = {"bench": "peers-kvstore", "peer": "mxnet-dist-sync"}
            print(json.dumps({**row, **asdict(comparison), **common}), file=lines)
        for goal in GOALS:
            verdict = judge(goal, comparisons)
            if verdict:
                row = {"bench": "peers-kvstore-goal", "peer": "mxnet-dist-sync"}
                print(json.dumps({**row, **asdict(verdict), **common}), file=lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("rounds", metavar="FOLDER", nargs="+", type=Path, help="one a round")
    parser.add_argument("--json", type=Path, metavar="F", help="append JSON lines to this file")
    parser.add_argument("--load", type=float, help="of the machine before the first round")
    parser.add_argument("--tensorwire-version", default="unknown")
    arguments = parser.parse_args()
    rounds = [
        (read_rows(folder / "mxnet.jsonl"), read_rows(folder / "tensorwire.jsonl"))
        for folder in arguments.rounds
    ]
    comparisons = compare(rounds)
    here = machine(arguments.load, rounds[0][1])
    versions = {
        "mxnet": rounds[0][0][0]["version"],
        "tensorwire": arguments.tensorwire_version.replace("tensorwire ", "", 1),
    }
    print(f"{here['cpu']}, {here['cores']} cores, load {here['load_before']} before the first round")
    print(f"MXNet {versions['mxnet']} dist_sync, tensorwire {versions['tensorwire']}")
    print(f"rounds: {len(rounds)}")
    print_table(comparisons, sys.stdout)
    print_goals(comparisons, sys.stdout)
    if arguments.json:
        write_json(arguments.json, comparisons, {"machine": here, "versions": versions})


if __name__ == "__main__":
    main()
