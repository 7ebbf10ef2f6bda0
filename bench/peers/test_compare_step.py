"""compare_step.py on rounds made up by hand, with results in closed form. Run it with
`python3 -m unittest discover bench/peers`; it needs none of the peers.
"""

import io
import json
import tempfile
import unittest
from pathlib import Path

import compare_step
from compare import Row
from compare_step import Comparison, Verdict


def common(model: str, workers: int, servers: int) -> Row:
    return {"bench": "step", "model": model, "batch": 8, "threads": 1, "workers": workers, "servers": servers}


def peer(system: str, model: str, workers: int, ms: float) -> Row:
    servers = 2 if workers > 1 and system != "pytorch-ddp" else 0
    more = {"system": system, "version": "9", "parameters": 70, "step_ms": ms, "later": 1}
    return {**common(model, workers, servers), **more}


def own_local(model: str, ms: float) -> Row:
    return {**common(model, 1, 0), "strategy": "local", "local_ms": {"median": ms}}


def own(strategy: str, transport: str, model: str, ms: float) -> Row:
    """With the time of both replicas in one process, which is not what a job is held against."""
    row = {"strategy": strategy, "transport": transport, "ps_ms": {"median": ms}, "local_ms": {"median": 1e9}}
    return {**common(model, 2, 2 if strategy == "ps" else 0), **row}


def of_round(local: float, ps: float, theirs_local: float, theirs: float, model: str = "mlp") -> list[Row]:
    return [
        own_local(model, local),
        own("ps", "tcp", model, ps),
        peer("tensorflow-grpc", model, 1, theirs_local),
        peer("tensorflow-grpc", model, 2, theirs),
    ]


ROUNDS = [of_round(10, 20, 10, 30), of_round(20, 30, 10, 80), of_round(10, 30, 20, 40)]


def only(comparisons: list[Comparison], system: str) -> Comparison:
    (one,) = (c for c in comparisons if c.system == system)
    return one


class Compare(unittest.TestCase):
    def test_overhead_is_over_the_same_round_of_the_same_system(self) -> None:
        found = compare_step.compare(ROUNDS)
        ours, theirs = only(found, "tensorwire ps tcp"), only(found, "TensorFlow gRPC")
        self.assertEqual((ours.overhead_min, ours.overhead, ours.overhead_max), (1.5, 2, 3))
        self.assertEqual((ours.local_ms, ours.step_ms, ours.added_ms, ours.rounds), (10, 30, 10, 3))
        self.assertEqual((theirs.overhead_min, theirs.overhead, theirs.overhead_max), (2, 3, 8))
        self.assertEqual((theirs.workers, theirs.servers, theirs.batch, theirs.threads), (2, 2, 8, 1))

    def test_each_way_of_ours_is_held_against_one_worker_alone(self) -> None:
        ways = [("ps", "tcp"), ("ps", "shm"), ("allreduce", "tcp"), ("allreduce", "shm")]
        rows = [own_local("gru", 4), *(own(*way, "gru", 4 * at) for at, way in enumerate(ways, 2))]
        found = [(c.system, c.transport, c.servers, c.overhead) for c in compare_step.compare([rows])]
        expected = [
            ("tensorwire ps tcp", "tcp", 2, 2),
            ("tensorwire allreduce tcp", "tcp", 0, 4),
            ("tensorwire ps shm", "shm", 2, 3),
            ("tensorwire allreduce shm", "shm", 0, 5),
        ]
        self.assertEqual(found, expected)

    def test_a_step_has_the_spread_of_the_steps_of_all_rounds(self) -> None:
        rounds = [of_round(10, 20, 10, 30), of_round(10, 24, 10, 40)]
        for rows, ends in zip(rounds, ((18, 26), (16, 25)), strict=True):
            rows[1]["ps_ms"] |= {"p10": ends[0], "p90": ends[1]}
            rows[3] |= {"p10_ms": ends[0] + 10, "p90_ms": ends[1] + 20}
        found = compare_step.compare(rounds)
        ends = [(c.p10_step_ms, c.step_ms, c.p90_step_ms) for c in found]
        self.assertEqual(ends, [(16, 22, 26), (26, 35, 46)])
        # rows of before have none
        (one, _) = compare_step.compare([ROUNDS[0]])
        self.assertEqual((one.p10_step_ms, one.p90_step_ms), (20, 20))

    def test_a_way_that_is_not_in_the_usual_table_comes_last(self) -> None:
        rows = [own_local("gru", 4), own("mpi-sgd", "verbs", "gru", 12), own("ps", "tcp", "gru", 8)]
        systems = [c.system for c in compare_step.compare([rows])]
        self.assertEqual(systems, ["tensorwire ps tcp", "tensorwire mpi-sgd verbs"])

    def test_what_a_round_lacks_or_has_no_local_step_is_left_out(self) -> None:
        without_local = [row for row in ROUNDS[0] if row["workers"] > 1 or "system" not in row]
        systems = [c.system for c in compare_step.compare([*ROUNDS, without_local])]
        self.assertEqual(systems, ["tensorwire ps tcp"])
        self.assertEqual(compare_step.compare([*ROUNDS, []]), [])

    def test_what_does_not_belong_together_is_refused(self) -> None:
        larger = [{**row, "batch": 32} if row["workers"] > 1 else row for row in ROUNDS[0]]
        with self.assertRaisesRegex(ValueError, "tensorwire ps tcp, mlp: different batches"):
            compare_step.compare([larger])
        both = {**own_local("mlp", 4), "workers": 2}
        with self.assertRaisesRegex(ValueError, "2 replicas in one process"):
            compare_step.compare([[both]])

    def test_a_goal_is_held_against_each_model(self) -> None:
        rows = of_round(10, 20, 10, 30) + of_round(10, 40, 10, 30, "gru") + of_round(10, 30, 5, 15, "lstm")
        rows.append(own_local("fcn5", 1))
        verdicts = compare_step.judge(compare_step.GOALS[0], compare_step.compare([rows]))
        expected = [Verdict("mlp", 1.5, True), Verdict("gru", 0.75, False), Verdict("lstm", 1, True)]
        self.assertEqual(verdicts, expected)
        self.assertEqual(compare_step.judge(compare_step.GOALS[1], compare_step.compare([rows])), [])

    def test_between_hosts_the_shortest_step_wins(self) -> None:
        comparisons = compare_step.compare([of_round(10, 20, 15, 30) + of_round(10, 50, 15, 40, "gru")])
        expected = [Verdict("mlp", 1.5, True), Verdict("gru", 0.8, False)]
        self.assertEqual(compare_step.judge_link("tensorwire ps tcp", comparisons), expected)
        out = io.StringIO()
        compare_step.print_goals(comparisons, "1gbit", out)
        self.assertIn("tensorwire ps tcp, step ≤ the fastest other's: mlp met, 1.50×; gru NOT met, 0.800×", out.getvalue())

    def test_jobs_that_send_messages_stand_with_the_peers(self) -> None:
        over_zmq = {**own("dist-sgd", "tcp", "mlp", 16), "exchange": "zmq"}
        comparisons = compare_step.compare([[*of_round(10, 20, 15, 30), over_zmq]])
        found = only(comparisons, "tensorwire dist-sgd over ZeroMQ")
        self.assertEqual((found.strategy, found.step_ms, found.overhead), (None, 16, 1.6))
        self.assertEqual(compare_step.judge_link("tensorwire ps tcp", comparisons), [Verdict("mlp", 0.8, False)])
        out = io.StringIO()
        compare_step.print_goals(comparisons, "1gbit", out)
        self.assertNotIn("over ZeroMQ, step", out.getvalue())

    def test_the_table_and_the_lines_say_the_same(self) -> None:
        comparisons = compare_step.compare(ROUNDS)
        out = io.StringIO()
        compare_step.print_table(comparisons, None, out)
        compare_step.print_goals(comparisons, None, out)
        self.assertIn("mlp, batch 8, 2 workers", out.getvalue())
        self.assertRegex(out.getvalue(), r"TensorFlow gRPC +70 +10\.0 +40\.0 +20\.0 +3\.00× +2\.00× to 8\.00×")
        self.assertIn("tensorwire ps tcp, overhead ≤ TensorFlow gRPC's: mlp met, 1.50×", out.getvalue())
        self.assertIn("overhead ≤ PyTorch DDP's: not measured", out.getvalue())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lines.jsonl"
            compare_step.write_json(file, comparisons, {"machine": "here"})
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual([line["bench"] for line in lines], ["peer-step"] * 2)
        self.assertEqual((lines[0]["overhead"], lines[0]["strategy"]), (2, "ps"))
        self.assertEqual((lines[1]["system"], lines[1]["strategy"]), ("TensorFlow gRPC", None))

    def test_our_parameters_and_version_are_put_in(self) -> None:
        table = " model  samples   variables  parameters  MiB\n mlp  28×28×1 → 10  6  70  0.1\n gru  80 steps × 4 → 9  1  8  0.1\n"
        self.assertEqual(compare_step.parameters_of(table), {"mlp": 70, "gru": 8})
        with tempfile.TemporaryDirectory() as folder:
            rows = [row for row in ROUNDS[0] if "system" not in row]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (Path(folder) / "tensorwire.jsonl").write_text(lines)
            found = compare_step.read_round(Path(folder), {"mlp": 70}, "0.1.0")
        (one,) = compare_step.compare([found])
        self.assertEqual((one.system, one.parameters, one.version), ("tensorwire ps tcp", 70, "0.1.0"))


if __name__ == "__main__":
    unittest.main()
