"""Puts the rounds that allreduce.sh measured side by side: a table for people, JSON lines for
programs, and whether the goals are met. Measures nothing, and needs only the standard library.

Every round is a folder with files of JSON lines: `openmpi-shm.jsonl` and `openmpi-tcp.jsonl` of
openmpi_allreduce.c, `gloo.jsonl` of gloo_allreduce.py, as far as they were measured, and
`tensorwire.jsonl` of `tensorwire bench allreduce`. Of each row only the fields named here are read.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional, TextIO

from compare import MIB, Row, Spread, machine, met, read_rows, significant, size_name, times

TRANSPORTS = ("shm", "tcp")
NAMES = {"openmpi": "Open MPI", "gloo": "gloo"}
# a round's rows of each system; gloo is over TCP alone, and measured against both transports
Round = dict[str, list[Row]]
FILES = ("openmpi-shm", "openmpi-tcp", "gloo", "tensorwire")
KIB = 1 << 10


def rows_of_peer(peer: str, transport: str) -> str:
    return peer if peer == "gloo" else f"{peer}-{transport}"


@dataclass(frozen=True)
class Comparison:
    """One peer, transport, number of processes and size. The ratio is the peer's time over
    tensorwire's, round by round. Bus bandwidth is by the median time, as nccl-tests define it:
    2(n-1)/n times the vector's bytes, over the time."""

    transport: str
    peer: str
    ranks: int
    bytes: int
    rounds: int
    algorithms: list[str]
    peer_s: Spread
    tensorwire_s: Spread
    peer_bus_bytes_per_s: float
    tensorwire_bus_bytes_per_s: float
    ratio: Spread


@dataclass(frozen=True)
class Goal:
    """What the ratio is to be, of every size in a range."""

    name: str
    transport: str
    peer: str
    at_least: float
    from_bytes: int = 0
    to_bytes: float = float("inf")


GOALS = (
    Goal("shm, Open MPI, 4 KiB", "shm", "openmpi", 1, 4 * KIB, 4 * KIB),
    Goal("shm, Open MPI, 4 MiB", "shm", "openmpi", 2, 4 * MIB, 4 * MIB),
    Goal("shm, Open MPI, from 16 MiB", "shm", "openmpi", 3, 16 * MIB),
    Goal("shm, gloo", "shm", "gloo", 5),
    Goal("tcp, gloo", "tcp", "gloo", 1.5),
)


@dataclass(frozen=True)
class Verdict:
    """A goal, with so many processes, held against the size that is furthest from it."""

    goal: str
    at_least: float
    ranks: int
    ratio: float
    bytes: int
    met: bool


def compare(rounds: list[Round]) -> list[Comparison]:
    """By transport, peer, processes and size. What is not in every round on both sides is left out."""
    comparisons = []
    for transport in TRANSPORTS:
        for peer in NAMES:
            theirs = [by_case(found.get(rows_of_peer(peer, transport), [])) for found in rounds]
            ours = [
                by_case([row for row in found["tensorwire"] if row["transport"] == transport])
                for found in rounds
            ]
            for case in sorted(set.intersection(*map(set, theirs + ours))):
                of_case = [found[case] for found in theirs], [found[case] for found in ours]
                comparisons.append(compare_rows(transport, peer, *case, *of_case))
    return comparisons


def by_case(rows: list[Row]) -> dict[tuple[int, int], Row]:
    """The first row of each number of processes and size."""
    first: dict[tuple[int, int], Row] = {}
    for row in rows:
        first.setdefault((row["ranks"], row["bytes"]), row)
    return first


def compare_rows(
    transport: str, peer: str, ranks: int, size: int, theirs: list[Row], ours: list[Row]
) -> Comparison:
    unverified = [row for row in theirs + ours if not row["verified"]]
    if unverified:
        raise ValueError(f"not verified: {unverified[0]}")
    others = {row.get("collective", "all-reduce") for row in ours} - {"all-reduce"}
    if others:
        raise ValueError(f"no all-reduce, but {others}")
    times_theirs, times_ours = ([row["median_s"] for row in rows] for rows in (theirs, ours))
    bus_bytes = 2 * (ranks - 1) / ranks * size
    peer_s, tensorwire_s = Spread.of(times_theirs), Spread.of(times_ours)
    return Comparison(
        transport=transport,
        peer=peer,
        ranks=ranks,
        bytes=size,
        rounds=len(ours),
        algorithms=sorted({row["algorithm"] for row in ours}),
        peer_s=peer_s,
        tensorwire_s=tensorwire_s,
        peer_bus_bytes_per_s=bus_bytes / peer_s.median,
        tensorwire_bus_bytes_per_s=bus_bytes / tensorwire_s.median,
        ratio=Spread.of([their / our for their, our in zip(times_theirs, times_ours)]),
    )


def judge(goal: Goal, comparisons: list[Comparison]) -> list[Verdict]:
    """A verdict for each number of processes of which a size of the goal was measured."""
    held = [
        c
        for c in comparisons
        if (c.transport, c.peer) == (goal.transport, goal.peer)
        and goal.from_bytes <= c.bytes <= goal.to_bytes
    ]
    verdicts = []
    for ranks in sorted({c.ranks for c in held}):
        worst = min((c for c in held if c.ranks == ranks), key=lambda c: c.ratio.median)
        ratio = worst.ratio.median
        is_met = ratio >= goal.at_least
        verdicts.append(Verdict(goal.name, goal.at_least, ranks, ratio, worst.bytes, is_met))
    return verdicts


def print_table(comparisons: list[Comparison], out: TextIO) -> None:
    """A block a transport and number of processes, a row a size, the peers beside each other."""
    for transport in TRANSPORTS:
        for ranks in sorted({c.ranks for c in comparisons}):
            block = [c for c in comparisons if (c.transport, c.ranks) == (transport, ranks)]
            if block:
                print(f"\n{transport}, {ranks} processes", file=out)
                print_block(block, out)
    print(
        "\nmedians of the rounds' medians, of the slowest process's time; bus: bus bandwidth, GB/s, which is"
        "\n2(n-1)/n times the bytes over that time; ratio: the peer's time over tensorwire's, the median of"
        "\nthe rounds' ratios, and the least and the greatest of them. gloo has TCP alone.",
        file=out,
    )


def print_block(block: list[Comparison], out: TextIO) -> None:
    peers = [peer for peer in NAMES if any(c.peer == peer for c in block)]
    side = "  | {:>9}  {:>8}  {:>7}  {:>15}"
    head = "{:>8}  {:>10}  {:>8}  {:17}".format("size", "tensorwire", "bus", "by")
    print(head + "".join(side.format(NAMES[peer], "bus", "ratio", "of the rounds") for peer in peers), file=out)
    for size in sorted({c.bytes for c in block}):
        row = {c.peer: c for c in block if c.bytes == size}
        any_of = next(iter(row.values()))
        line = "{:>8}  {:>10}  {:>8}  {:17}".format(
            size_name(size),
            duration(any_of.tensorwire_s.median),
            rate(any_of.tensorwire_bus_bytes_per_s),
            ", ".join(any_of.algorithms),
        )
        for peer in peers:
            if peer not in row:
                line += side.format("", "", "", "")
                continue
            c = row[peer]
            spread = f"{times(c.ratio.min)} to {times(c.ratio.max)}"
            cells = duration(c.peer_s.median), rate(c.peer_bus_bytes_per_s), times(c.ratio.median), spread
            line += side.format(*cells)
        print(line.rstrip(), file=out)


def print_goals(comparisons: list[Comparison], out: TextIO) -> None:
    """A line a goal, with a verdict for each number of processes."""
    print("", file=out)
    for goal in GOALS:
        name = f"{goal.name} ≥ {goal.at_least:g}×"
        verdicts = judge(goal, comparisons)
        found = "; ".join(
            f"{v.ranks} processes: {met(v.met)}, {times(v.ratio)} at {size_name(v.bytes)}" for v in verdicts
        )
        print(f"{name:32} {found or 'not measured'}", file=out)


def duration(seconds: float) -> str:
    for unit, name in ((1, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{significant(seconds / unit)} {name}"
    return f"{significant(seconds * 1e6)} µs"


def rate(bytes_per_s: float) -> str:
    return significant(bytes_per_s / 1e9)


def write_json(file: Path, comparisons: list[Comparison], common: Row) -> None:
    """Appends a line a comparison, then a line a verdict."""
    with file.open("a", encoding="utf-8") as lines:
        for comparison in comparisons:
            row = {"bench": "peers-allreduce", **asdict(comparison), **common}
            print(json.dumps(row), file=lines)
        for goal in GOALS:
            for verdict in judge(goal, comparisons):
                row = {"bench": "peers-allreduce-goal", "peer": goal.peer, **asdict(verdict), **common}
                print(json.dumps(row), file=lines)


def read_round(folder: Path) -> Round:
    files = {name: folder / f"{name}.jsonl" for name in FILES}
    return {name: read_rows(file) for name, file in files.items() if file.exists()}


def version_of(rows: Optional[list[Row]]) -> Optional[str]:
    return rows[0]["version"] if rows else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("rounds", metavar="FOLDER", nargs="+", type=Path, help="one a round")
    parser.add_argument("--json", type=Path, metavar="F", help="append JSON lines to this file")
    parser.add_argument("--load", type=float, help="of the machine before the first round")
    parser.add_argument("--tensorwire-version", default="unknown")
    arguments = parser.parse_args()
    rounds = [read_round(folder) for folder in arguments.rounds]
    comparisons = compare(rounds)
    here = machine(arguments.load, rounds[0].get("tensorwire", []))
    openmpi = rounds[0].get("openmpi-shm") or rounds[0].get("openmpi-tcp")
    versions = {
        "openmpi": version_of(openmpi),
        "gloo": version_of(rounds[0].get("gloo")),
        "tensorwire": arguments.tensorwire_version.replace("tensorwire ", "", 1),
    }
    print(f"{here['cpu']}, {here['cores']} cores, load {here['load_before']} before the first round")
    if versions["openmpi"]:
        print(f"Open MPI {versions['openmpi']}")
    if versions["gloo"]:
        print(f"gloo of PyTorch {versions['gloo']}")
    print(f"tensorwire {versions['tensorwire']}")
    print(f"rounds: {len(rounds)}")
    print_table(comparisons, sys.stdout)
    print_goals(comparisons, sys.stdout)
    if arguments.json:
        write_json(arguments.json, comparisons, {"machine": here, "versions": versions})


if __name__ == "__main__":
    main()
