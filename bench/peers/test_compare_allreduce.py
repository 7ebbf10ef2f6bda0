"""compare_allreduce.py on rounds made up by hand, with results in closed form. Run it with
`python3 -m unittest discover bench/peers`; it needs neither Open MPI nor PyTorch.
"""

import io
import json
import tempfile
import unittest
from pathlib import Path

import compare_allreduce
from compare import MIB, Row
from compare_allreduce import Comparison, Round, Verdict


def row(ranks: int, size: int, median_s: float, verified: bool = True) -> Row:
    common = {"ranks": ranks, "bytes": size, "verified": verified}
    return {**common, "median_s": median_s, "version": "4.1.4"}


def own(transport: str, ranks: int, size: int, median_s: float, **more: object) -> Row:
    """With a field that nobody knows yet."""
    common = {"transport": transport, "algorithm": "ring", "collective": "all-reduce", "later": 1}
    return {**row(ranks, size, median_s), **common, **more}


def found(mpi: list[Row], gloo: list[Row], ours: list[Row]) -> Round:
    return {"openmpi-shm": mpi, "openmpi-tcp": [], "gloo": gloo, "tensorwire": ours}


ROUNDS = [
    found([row(2, 4096, 8.0)], [row(2, 4096, 16.0)], [own("shm", 2, 4096, 4.0)]),
    found([row(2, 4096, 8.0)], [row(2, 4096, 32.0)], [own("shm", 2, 4096, 1.0, algorithm="direct")]),
    found([row(2, 4096, 6.0)], [row(2, 4096, 16.0)], [own("shm", 2, 4096, 2.0)]),
]


def only(comparisons: list[Comparison], transport: str, peer: str) -> Comparison:
    (one,) = (c for c in comparisons if (c.transport, c.peer) == (transport, peer))
    return one


class Compare(unittest.TestCase):
    def test_ratios_are_of_the_same_round(self) -> None:
        comparisons = compare_allreduce.compare(ROUNDS)
        mpi = only(comparisons, "shm", "openmpi")
        self.assertEqual((mpi.ranks, mpi.bytes, mpi.rounds), (2, 4096, 3))
        self.assertEqual((mpi.ratio.min, mpi.ratio.median, mpi.ratio.max), (2, 3, 8))
        self.assertEqual((mpi.peer_s.median, mpi.tensorwire_s.median), (8, 2))
        self.assertEqual(mpi.algorithms, ["direct", "ring"])
        gloo = only(comparisons, "shm", "gloo")
        self.assertEqual((gloo.ratio.min, gloo.ratio.median, gloo.ratio.max), (4, 8, 32))

    def test_bus_bandwidth_counts_what_each_process_has_to_move(self) -> None:
        rounds = [found([row(4, MIB, 2.0)], [], [own("shm", 4, MIB, 0.5)])]
        mpi = only(compare_allreduce.compare(rounds), "shm", "openmpi")
        self.assertEqual(mpi.peer_bus_bytes_per_s, 1.5 * MIB / 2)
        self.assertEqual(mpi.tensorwire_bus_bytes_per_s, 1.5 * MIB / 0.5)

    def test_gloo_is_held_against_both_transports_and_open_mpi_against_its_own(self) -> None:
        ours = [own("shm", 2, MIB, 2.0), own("tcp", 2, MIB, 4.0)]
        one = found([row(2, MIB, 16.0)], [row(2, MIB, 8.0)], ours)
        one["openmpi-tcp"] = [row(2, MIB, 32.0)]
        ways = [(c.transport, c.peer, c.ratio.median) for c in compare_allreduce.compare([one])]
        expected = [("shm", "openmpi", 8), ("shm", "gloo", 4), ("tcp", "openmpi", 8), ("tcp", "gloo", 2)]
        self.assertEqual(ways, expected)

    def test_what_a_round_lacks_is_left_out(self) -> None:
        rounds = [*ROUNDS, {"tensorwire": [own("shm", 2, 4096, 2.0)], "gloo": [row(2, 4096, 1.0)]}]
        self.assertEqual([c.peer for c in compare_allreduce.compare(rounds)], ["gloo"])
        self.assertEqual(compare_allreduce.compare([*rounds, found([], [], [])]), [])

    def test_what_does_not_belong_together_is_refused(self) -> None:
        unverified = found([row(2, MIB, 1.0, verified=False)], [], [own("shm", 2, MIB, 1.0)])
        with self.assertRaisesRegex(ValueError, "not verified"):
            compare_allreduce.compare([unverified])
        other = found([row(2, MIB, 1.0)], [], [own("shm", 2, MIB, 1.0, collective="broadcast")])
        with self.assertRaisesRegex(ValueError, "no all-reduce"):
            compare_allreduce.compare([other])

    def test_a_goal_is_held_against_the_worst_size_of_each_number_of_processes(self) -> None:
        mpi = [row(ranks, size, 30.0) for ranks in (2, 4) for size in (4 * MIB, 16 * MIB, 64 * MIB)]
        ours = [own("shm", ranks, 4 * MIB, 1.0) for ranks in (2, 4)]
        ours += [own("shm", 2, 16 * MIB, 10.0), own("shm", 2, 64 * MIB, 6.0)]
        ours += [own("shm", 4, 16 * MIB, 5.0), own("shm", 4, 64 * MIB, 20.0)]
        comparisons = compare_allreduce.compare([found(mpi, [], ours)])
        large = compare_allreduce.judge(compare_allreduce.GOALS[2], comparisons)
        name = "shm, Open MPI, from 16 MiB"
        self.assertEqual(large[0], Verdict(name, 3, 2, 3.0, 16 * MIB, True))
        self.assertEqual(large[1], Verdict(name, 3, 4, 1.5, 64 * MIB, False))
        self.assertEqual(compare_allreduce.judge(compare_allreduce.GOALS[0], comparisons), [])

    def test_no_slower_than_open_mpi_is_met_by_the_same_time(self) -> None:
        for ours_s, is_met in ((4.0, True), (4.1, False)):
            rounds = [found([row(2, 4096, 4.0)], [], [own("shm", 2, 4096, ours_s)])]
            (verdict,) = compare_allreduce.judge(compare_allreduce.GOALS[0], compare_allreduce.compare(rounds))
            self.assertEqual(verdict.met, is_met)

    def test_the_table_and_the_lines_say_the_same(self) -> None:
        comparisons = compare_allreduce.compare(ROUNDS)
        out = io.StringIO()
        compare_allreduce.print_table(comparisons, out)
        compare_allreduce.print_goals(comparisons, out)
        self.assertIn("shm, 2 processes", out.getvalue())
        row_of_4_kib = r"4 KiB +2\.00 s .*direct, ring +\| +8\.00 s .*3\.00× +2\.00× to 8\.00×  \| +16\.0 s"
        self.assertRegex(out.getvalue(), row_of_4_kib)
        self.assertRegex(out.getvalue(), r"4 KiB ≥ 1× +2 processes: met, 3\.00× at 4 KiB")
        self.assertRegex(out.getvalue(), r"tcp, gloo ≥ 1\.5× +not measured")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lines.jsonl"
            compare_allreduce.write_json(file, comparisons, {"machine": "here"})
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        names = ["peers-allreduce"] * 2 + ["peers-allreduce-goal"] * 2
        self.assertEqual([line["bench"] for line in lines], names)
        self.assertEqual((lines[0]["ratio"]["median"], lines[2]["met"], lines[3]["peer"]), (3, True, "gloo"))

    def test_durations_take_the_unit_that_people_read(self) -> None:
        seconds = (2.5, 0.0123, 4.5e-6)
        self.assertEqual([compare_allreduce.duration(s) for s in seconds], ["2.50 s", "12.3 ms", "4.50 µs"])


if __name__ == "__main__":
    unittest.main()
