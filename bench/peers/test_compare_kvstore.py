"""compare_kvstore.py on rounds made up by hand, with results in closed form. Run it with
`python3 -m unittest discover bench/peers`; it needs no MXNet.
"""

import io
import json
import tempfile
import unittest
from pathlib import Path

import compare_kvstore
from compare import MIB, Row


def row(size: int, median_s: float, workers: int = 2, verified: bool = True) -> Row:
    common = {"bytes": size, "workers": workers, "servers": 1, "verified": verified}
    return {**common, "median_s": median_s, "version": "1.9.1"}


def own(transport: str, size: int, median_s: float, pull: str = "filled") -> Row:
    """With a field that nobody knows yet."""
    return {**row(size, median_s), "transport": transport, "pull": pull, "later": 1}


ROUNDS = [
    ([row(4096, 8.0), row(4 * MIB, 40.0)], [own("shm", 4096, 4.0), own("shm", 4 * MIB, 2.0)]),
    ([row(4 * MIB, 64.0), row(4096, 8.0)], [own("shm", 4 * MIB, 2.0), own("shm", 4096, 1.0)]),
    ([row(4096, 8.0), row(4 * MIB, 30.0)], [own("shm", 4096, 2.0), own("shm", 4 * MIB, 3.0)]),
]


class Compare(unittest.TestCase):
    def test_ratios_are_of_the_same_round(self) -> None:
        small, large = compare_kvstore.compare(ROUNDS)
        self.assertEqual((small.bytes, small.transport, small.rounds), (4096, "shm", 3))
        self.assertEqual((small.ratio.min, small.ratio.median, small.ratio.max), (2, 4, 8))
        self.assertEqual((large.ratio.min, large.ratio.median, large.ratio.max), (10, 20, 32))
        self.assertEqual((large.mxnet_s.median, large.tensorwire_s.median), (40, 2))

    def test_ways_are_apart(self) -> None:
        ours = [own("shm", MIB, 2.0, "shown"), own("shm", MIB, 4.0), own("tcp", MIB, 8.0)]
        found = compare_kvstore.compare([([row(MIB, 16.0)], ours)])
        ways = [(c.transport, c.pull, c.ratio.median) for c in found]
        self.assertEqual(ways, [("shm", "shown", 8), ("shm", "filled", 4), ("tcp", "filled", 2)])

    def test_a_size_that_a_round_lacks_is_left_out(self) -> None:
        rounds = [*ROUNDS, ([row(4096, 8.0)], [own("shm", 4096, 2.0)])]
        self.assertEqual([c.bytes for c in compare_kvstore.compare(rounds)], [4096])

    def test_what_does_not_belong_together_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "different numbers"):
            compare_kvstore.compare([([row(4096, 1.0, workers=4)], [own("tcp", 4096, 1.0)])])
        with self.assertRaisesRegex(ValueError, "not verified"):
            compare_kvstore.compare([([row(4096, 1.0, verified=False)], [own("tcp", 4096, 1.0)])])

    def test_a_goal_is_held_against_the_worst_of_its_sizes(self) -> None:
        rows = [row(MIB, 1.0), row(4 * MIB, 20.0), row(16 * MIB, 90.0)]
        ours = [own("tcp", MIB, 1.0), own("tcp", 4 * MIB, 4.0), own("tcp", 16 * MIB, 25.0)]
        comparisons = compare_kvstore.compare([(rows, ours)])
        shown, filled, tcp = (compare_kvstore.judge(goal, comparisons) for goal in compare_kvstore.GOALS)
        self.assertIsNone(shown or filled)
        assert tcp
        self.assertEqual((tcp.ratio, tcp.bytes, tcp.met), (3.6, 16 * MIB, False))

    def test_the_table_and_the_lines_say_the_same(self) -> None:
        comparisons = compare_kvstore.compare(ROUNDS)
        out = io.StringIO()
        compare_kvstore.print_table(comparisons, out)
        compare_kvstore.print_goals(comparisons, out)
        self.assertIn("shm, filled, 2 workers, 1 servers", out.getvalue())
        self.assertRegex(out.getvalue(), r"4 MiB +40000 +2000 +20\.0× +10\.0× to 32\.0×")
        self.assertRegex(out.getvalue(), r"shm, filled: from 4 MiB ≥ 16× +met +20\.0× at 4 MiB")
        self.assertRegex(out.getvalue(), r"tcp: from 4 MiB ≥ 4× +not measured")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lines.jsonl"
            compare_kvstore.write_json(file, comparisons, {"machine": "here"})
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual([line["bench"] for line in lines], ["peers-kvstore"] * 2 + ["peers-kvstore-goal"])
        self.assertEqual((lines[1]["ratio"]["median"], lines[2]["met"]), (20, True))


if __name__ == "__main__":
    unittest.main()
