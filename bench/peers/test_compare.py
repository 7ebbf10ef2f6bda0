"""compare.py on rounds made up by hand, with results in closed form. Run it with
`python3 -m unittest discover bench/peers`; it needs no TensorFlow.
"""

import io
import tempfile
import unittest
from pathlib import Path

import compare
from compare import GOALS, MIB, Comparison, Goal, Row, Spread

KIB = 1 << 10


def peer(size: int, end_to_end: float, step: float) -> Row:
    return {
        "bytes": size,
        "end_to_end_ns": {"median": end_to_end, "p90": 0},
        "step_ns": {"median": step},
        "empty_step_ns": {"median": 1.0},
    }


def own(transport: str, size: int, end_to_end: float, exchange: str = "zero-copy") -> Row:
    """With a field that nobody knows yet."""
    times = {"median": end_to_end, "p90": 0}
    row = {"transport": transport, "exchange": exchange, "bytes": size, "end_to_end_ns": times}
    return row | {"edges": "static"}


def at_ratio(transport: str, size: int, ratio: float, step_ratio: float = 0) -> Comparison:
    [comparison] = compare.compare(
        [([peer(size, ratio, step_ratio)], [own(transport, size, 1.0)])]
    )
    return comparison


class Comparing(unittest.TestCase):
    def test_ratios_are_taken_round_by_round(self) -> None:
        # the machine is half as fast in the second round; in the third it hits one side only
        rounds = [
            ([peer(4, 80.0, 160.0)], [own("shm", 4, 2.0)]),
            ([peer(4, 160.0, 320.0)], [own("shm", 4, 4.0)]),
            ([peer(4, 30.0, 60.0)], [own("shm", 4, 1.0)]),
        ]
        [found] = compare.compare(rounds)
        self.assertEqual(found.ratio, Spread(median=40.0, min=30.0, max=40.0))
        self.assertEqual(found.step_ratio, Spread(median=80.0, min=60.0, max=80.0))
        self.assertEqual(found.tensorwire_end_to_end_ns, Spread(median=2.0, min=1.0, max=4.0))
        self.assertEqual(found.rounds, 3)

    def test_the_first_exchange_of_a_transport_and_size_counts(self) -> None:
        ours = [
            own("shm", 4, 2.0),
            own("shm", 4, 9.0, "copy"),
            own("tcp", 4, 5.0, "copy"),
            own("tcp", 4, 9.0),
        ]
        found = compare.compare([([peer(4, 10.0, 20.0)], ours)])
        expected = [("shm", "zero-copy", 5.0), ("tcp", "copy", 2.0)]
        self.assertEqual([(c.transport, c.exchange, c.ratio.median) for c in found], expected)

    def test_what_a_round_lacks_is_left_out(self) -> None:
        both, less = [peer(4, 1.0, 1.0), peer(8, 1.0, 1.0)], [peer(8, 1.0, 1.0)]
        ours = [own("shm", 4, 1.0), own("shm", 8, 1.0)]
        found = compare.compare([(both, ours), (less, ours)])
        self.assertEqual([(c.transport, c.bytes) for c in found], [("shm", 8)])

    def test_rounds_of_different_exchanges_are_refused(self) -> None:
        theirs = [peer(4, 1.0, 1.0)]
        rounds = [(theirs, [own("shm", 4, 1.0)]), (theirs, [own("shm", 4, 1.0, "copy")])]
        with self.assertRaises(ValueError):
            compare.compare(rounds)


class Goals(unittest.TestCase):
    def verdicts(self, *comparisons: Comparison) -> dict[str, tuple[float, bool, bool] | None]:
        found = {}
        for goal in GOALS:
            verdict = compare.judge(goal, list(comparisons))
            found[goal.name] = verdict and (verdict.ratio, verdict.met, verdict.met_by_step)
        return found

    def test_the_best_and_the_worst_of_a_range_decide(self) -> None:
        found = self.verdicts(
            at_ratio("shm", 4 * KIB, 61.0),
            at_ratio("shm", MIB, 9.99, step_ratio=12.0),
            at_ratio("shm", 4 * MIB, 11.0, step_ratio=10.0),
            at_ratio("tcp", MIB, 5.0, step_ratio=4.0),
            at_ratio("tcp", 4 * MIB, 1.7, step_ratio=1.7),
        )
        expected = {
            "shm: best ratio": (61.0, True, False),
            "shm: every size": (9.99, False, False),
            "tcp: up to 1 MiB": (5.0, True, False),
            "tcp: above 1 MiB": (1.7, True, True),
        }
        self.assertEqual(found, expected)

    def test_a_goal_without_sizes_has_no_verdict(self) -> None:
        self.assertIsNone(compare.judge(Goal("none", "tcp", 1.0), [at_ratio("shm", 4, 1.0)]))


class Printing(unittest.TestCase):
    def test_the_table_and_the_goals_say_what_was_found(self) -> None:
        out = io.StringIO()
        comparisons = [at_ratio("shm", 64 * KIB, 61.04, step_ratio=123.4)]
        compare.print_table(comparisons, out)
        compare.print_goals(comparisons, out)
        self.assertIn("   64 KiB ", out.getvalue())
        self.assertIn(" met      61.0× at 64 KiB (by the whole step 123×, met)", out.getvalue())
        self.assertIn("tcp: up to 1 MiB ≥ 5×    not measured", out.getvalue())

    def test_numbers_have_three_digits(self) -> None:
        found = [compare.significant(number) for number in (0.0045678, 1.5, 59.96, 305.4, 1234.5)]
        self.assertEqual(found, ["0.00457", "1.50", "60.0", "305", "1234"])

    def test_json_lines_are_appended(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.jsonl"
            for _ in range(2):
                compare.write_json(file, [at_ratio("shm", 4, 70.0)], {"machine": {"cores": 2}})
            rows = compare.read_rows(file)
        benches = ["peers-transfer", "peers-transfer-goal", "peers-transfer-goal"]
        self.assertEqual([row["bench"] for row in rows], benches * 2)
        self.assertEqual(rows[0]["ratio"], {"median": 70.0, "min": 70.0, "max": 70.0})
        self.assertEqual(rows[1]["machine"], {"cores": 2})
        self.assertTrue(rows[1]["met"])


if __name__ == "__main__":
    unittest.main()
