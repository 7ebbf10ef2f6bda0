"""Puts the rounds that step.sh measured side by side: a table for people, JSON lines for programs, and whether the
goals are met. Measures nothing, and needs only the standard library.

Every round is a folder with files of JSON lines: `pytorch.jsonl`, `mxnet.jsonl` and `tensorflow.jsonl` of
peer_step.py, as far as they were measured, and `tensorwire.jsonl` of `tensorwire bench step`. Of each row only the
fields named here are read. Local is one process with one replica, on both sides: tensorwire's jobs are held against
`--strategy local --workers 1`, not against the replicas of all workers in one process, which their rows have, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

from compare import Row, Spread, machine, met, read_rows, significant, times

FILES = ("tensorwire", "tensorflow", "mxnet", "pytorch")
NAMES = {
    "tensorflow-grpc": "TensorFlow gRPC",
    "mxnet-dist-sync": "MXNet dist_sync",
    "pytorch-ddp": "PyTorch DDP",
}
# what our own jobs send instead of writes, to compare with
MESSAGES = {"grpc-tcp": "ps over gRPC", "zmq": "dist-sgd over ZeroMQ"}
OTHERS = [*(f"tensorwire {name}" for name in MESSAGES.values()), *NAMES.values()]
# in the order of the table, before what else was measured
SYSTEMS = [
    *(
        f"tensorwire {strategy} {transport}"
        for transport in ("tcp", "shm")
        for strategy in ("ps", "allreduce", "dist-sgd")
    ),
    *OTHERS,
]


class Step(NamedTuple):
    """One round's of one system and model."""

    model: str
    system: str
    strategy: str | None  # a peer has but one, and so has a job that is there to compare with
    transport: str
    batch: int
    threads: int
    workers: int
    servers: int
    ms: float
    ends_ms: tuple[float, float]
    """The 10th and the 90th percentile of its steps; where a row has none, its time twice."""
    parameters: int | None
    version: str | None


@dataclass(frozen=True)
class Comparison:
    """One model and system. Overhead is a step of the job over a step of one process in the same round."""

    model: str
    system: str
    strategy: str | None
    transport: str
    workers: int
    servers: int
    batch: int
    threads: int
    parameters: int | None
    version: str | None
    rounds: int
    local_ms: float
    step_ms: float
    p10_step_ms: float
    """The least of the rounds' 10th percentiles of their steps, and the greatest of their 90th."""
    p90_step_ms: float
    overhead: float
    overhead_min: float
    overhead_max: float
    added_ms: float
    """What the job's step takes longer."""


@dataclass(frozen=True)
class Goal:
    """Whose overhead is to be no more than whose, in every model."""

    ours: str
    peer: str


GOALS = (
    Goal("tensorwire ps tcp", "TensorFlow gRPC"),
    Goal("tensorwire ps tcp", "MXNet dist_sync"),
    Goal("tensorwire allreduce tcp", "PyTorch DDP"),
    Goal("tensorwire dist-sgd tcp", "MXNet dist_sync"),
)


@dataclass(frozen=True)
class Verdict:
    """A goal held against one model; the ratio is the peer's overhead over ours."""

    model: str
    ratio: float
    met: bool


def compare(rounds: list[list[Row]]) -> list[Comparison]:
    """By model, in the order measured, and system. What is not in every round is left out."""
    found = [by_case(rows) for rows in rounds]
    comparisons = []
    for model in dict.fromkeys(model for model, _ in found[0]):
        others = (system for one in found for _, system in one)
        for system in dict.fromkeys([*SYSTEMS, *others]):
            pairs = [one.get((model, system)) for one in found]
            whole = [pair for pair in pairs if pair]
            if whole and len(whole) == len(pairs):
                comparisons.append(compare_pairs(whole))
    return comparisons


def by_case(rows: Iterable[Row]) -> dict[tuple[str, str], tuple[Step, Step]]:
    """Of each model and system that has both: one process's step, and the job's."""
    steps = [step_of(row) for row in rows]
    alone = {(step.model, step.system): step for step in steps if step.workers == 1}
    cases = {}
    for step in steps:
        maker = "tensorwire" if step.system.startswith("tensorwire ") else step.system
        local = alone.get((step.model, maker))
        if local and step.workers > 1:
            cases.setdefault((step.model, step.system), (local, step))
    return cases


def step_of(row: Row) -> Step:
    """Of either kind of row."""
    strategy = row.get("strategy")
    if strategy:
        alone = strategy == "local"
        if alone and row["workers"] != 1:
            raise ValueError(f"{row['workers']} replicas in one process are no single worker's step")
        messages = MESSAGES.get(row.get("exchange"))
        transport = "none" if alone else row["transport"]
        system = "tensorwire" if alone else f"tensorwire {messages or f'{strategy} {transport}'}"
        times_ms = row["local_ms" if alone else "ps_ms"]
        ms = times_ms["median"]
        # held beside ours as the peers are
        strategy = None if messages else strategy
    else:
        system, transport, ms, times_ms = NAMES[row["system"]], "tcp", row["step_ms"], row
    ends = tuple(next((times_ms[key] for key in (end, f"{end}_ms") if key in times_ms), ms) for end in ("p10", "p90"))
    common = (row[field] for field in ("batch", "threads", "workers", "servers"))
    said = row.get("parameters"), row.get("version")
    return Step(row["model"], system, strategy, transport, *common, ms, ends, *said)


def compare_pairs(pairs: list[tuple[Step, Step]]) -> Comparison:
    """A pair a round."""
    works = {(step.batch, step.threads) for pair in pairs for step in pair}
    jobs = {(job.workers, job.servers) for _, job in pairs}
    if len(works) > 1 or len(jobs) > 1:
        what = f"{pairs[0][1].system}, {pairs[0][1].model}"
        raise ValueError(f"{what}: different batches, threads or members: {sorted(works)}, {sorted(jobs)}")
    job = pairs[0][1]
    overhead = Spread.of([job.ms / local.ms for local, job in pairs])
    return Comparison(
        model=job.model,
        system=job.system,
        strategy=job.strategy,
        transport=job.transport,
        workers=job.workers,
        servers=job.servers,
        batch=job.batch,
        threads=job.threads,
        parameters=job.parameters,
        version=job.version,
        rounds=len(pairs),
        local_ms=Spread.of([local.ms for local, _ in pairs]).median,
        step_ms=Spread.of([job.ms for _, job in pairs]).median,
        p10_step_ms=min(job.ends_ms[0] for _, job in pairs),
        p90_step_ms=max(job.ends_ms[1] for _, job in pairs),
        overhead=overhead.median,
        overhead_min=overhead.min,
        overhead_max=overhead.max,
        added_ms=Spread.of([job.ms - local.ms for local, job in pairs]).median,
    )


def judge(goal: Goal, comparisons: list[Comparison]) -> list[Verdict]:
    """A verdict for each model that both were measured with."""
    ours, theirs = (
        {c.model: c.overhead for c in comparisons if c.system == system}
        for system in (goal.ours, goal.peer)
    )
    ratios = {model: theirs[model] / ours[model] for model in ours if model in theirs}
    return [Verdict(model, ratio, ratio >= 1) for model, ratio in ratios.items()]


def print_table(comparisons: list[Comparison], link: str | None, out: TextIO) -> None:
    """A block a model, a row a system."""
    peers = f"All go over TCP between two hosts with links of {link}." if link else "The peers go over loopback TCP."
    row = "{:34}  {:>11}  {:>9}  {:>9}  {:>9}  {:>8}  {:>15}"
    for model in dict.fromkeys(c.model for c in comparisons):
        block = [c for c in comparisons if c.model == model]
        print(f"\n{model}, batch {block[0].batch}, {block[0].workers} workers", file=out)
        head = ("parameters", "local ms", "step ms", "added ms", "overhead", "of the rounds")
        print(row.format("", *head), file=out)
        for c in block:
            cells = (
                c.parameters if c.parameters is not None else "",
                *map(significant, (c.local_ms, c.step_ms, c.added_ms)),
                times(c.overhead),
                f"{times(c.overhead_min)} to {times(c.overhead_max)}",
            )
            print(row.format(c.system, *cells), file=out)
    print(
        "\nmedians of the rounds, every process one thread; local: the step of one worker alone in one"
        "\nprocess, which exchanges nothing; overhead: the job's step over that of the same round. Each"
        "\nsystem is held against its own local step: one that computes slowly has it easier to hide what"
        f"\nit exchanges, or to look as if; added: the difference. {peers}",
        file=out,
    )


def judge_link(system: str, comparisons: list[Comparison]) -> list[Verdict]:
    """Between hosts a step is to be the shortest of all: a verdict for each model, the ratio the fastest other's step over ours."""
    verdicts = []
    for ours in (c for c in comparisons if c.system == system):
        theirs = [c.step_ms for c in comparisons if c.model == ours.model and c.system in OTHERS]
        if theirs:
            ratio = min(theirs) / ours.step_ms
            verdicts.append(Verdict(ours.model, ratio, ratio >= 1))
    return verdicts


def print_goals(comparisons: list[Comparison], link: str | None, out: TextIO) -> None:
    """A line a goal, with a verdict for each model."""
    print("", file=out)
    if link:
        for system in dict.fromkeys(c.system for c in comparisons if c.system not in OTHERS):
            found = "; ".join(f"{v.model} {met(v.met)}, {times(v.ratio)}" for v in judge_link(system, comparisons))
            print(f"{system}, step ≤ the fastest other's: {found or 'not measured'}", file=out)
        return
    for goal in GOALS:
        verdicts = judge(goal, comparisons)
        found = "; ".join(f"{v.model} {met(v.met)}, {times(v.ratio)}" for v in verdicts)
        print(f"{goal.ours}, overhead ≤ {goal.peer}'s: {found or 'not measured'}", file=out)


def write_json(file: Path, comparisons: list[Comparison], common: Row) -> None:
    """Appends a line a comparison."""
    with file.open("a", encoding="utf-8") as lines:
        for comparison in comparisons:
            print(json.dumps({"bench": "peer-step", **asdict(comparison), **common}), file=lines)


def parameters_of(table: str) -> dict[str, int]:
    """By model, from what `tensorwire models` prints: the last column but one."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {row[0]: int(row[-2]) for row in rows if row}


def read_round(folder: Path, parameters: dict[str, int], version: str) -> list[Row]:
    rows = []
    for name in FILES:
        file = folder / f"{name}.jsonl"
        found = read_rows(file) if file.exists() else []
        if name == "tensorwire":
            own = {"version": version}
            found = [{**row, "parameters": parameters.get(row["model"]), **own} for row in found]
        rows += found
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("rounds", metavar="FOLDER", nargs="+", type=Path, help="one a round")
    parser.add_argument("--json", type=Path, metavar="F", help="append JSON lines to this file")
    parser.add_argument("--load", type=float, help="of the machine before the first round")
    parser.add_argument("--link", help="rate of the links between hosts, if there were such")
    parser.add_argument("--tensorwire-version", default="unknown")
    parser.add_argument("--models-table", default="", help="what `tensorwire models` prints")
    arguments = parser.parse_args()
    version = arguments.tensorwire_version.replace("tensorwire ", "", 1)
    parameters = parameters_of(arguments.models_table)
    rounds = [read_round(folder, parameters, version) for folder in arguments.rounds]
    comparisons = compare(rounds)
    here = machine(arguments.load, rounds[0])
    print(f"{here['cpu']}, {here['cores']} cores, load {here['load_before']} before the first round")
    for system, number in dict.fromkeys((c.system.split(" ")[0], c.version) for c in comparisons):
        print(f"{system} {number}")
    print(f"rounds: {len(arguments.rounds)}")
    print_table(comparisons, arguments.link, sys.stdout)
    print_goals(comparisons, arguments.link, sys.stdout)
    if arguments.json:
        write_json(arguments.json, comparisons, {"machine": here, "link": arguments.link})


if __name__ == "__main__":
    main()
