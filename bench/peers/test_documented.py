"""What the comparisons write as JSON has its schema in docs/command-line.md: each field of what is compared is in the row of its
lines, and what that row names is such a field. Run it with `python3 -m unittest discover bench/peers`.
"""

import re
import unittest
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import compare
import compare_allreduce
import compare_kvstore
import compare_step
import pytorch_step

DOCS = Path(__file__).parents[2] / "docs" / "command-line.md"


def documented(bench: str) -> set[str]:
    """What the row of such lines has in backquotes, but for the names of benches."""
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if f"`{bench}`" in line]
    assert len(rows) == 1, f"{DOCS} has {len(rows)} rows of {bench}"
    return set(re.findall(r"`([a-z0-9_]+)`", rows[0].split("|", 2)[2]))


def keys(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


class Documented(unittest.TestCase):
    def test_every_key_is_documented_and_no_other(self) -> None:
        for bench, kind, more in (
            ("peers-transfer", compare.Comparison, {"peer"}),
            # the peer is a field of it
            ("peers-allreduce", compare_allreduce.Comparison, set()),
            ("peers-kvstore", compare_kvstore.Comparison, {"peer"}),
            ("peer-step", compare_step.Comparison, {"link"}),
        ):
            with self.subTest(bench):
                self.assertEqual(documented(bench), keys(kind) | more)

    def test_a_step_beside_pytorch_has_the_keys_of_its_row(self) -> None:
        given = SimpleNamespace(rounds=2, sequence=None, threads=2, kernels="cpu")
        measured = {"ours": lambda *_: (2.0, 10, {}), "theirs": lambda *_: (4.0, 20), "version": lambda _: "2"}
        with patch.multiple(pytorch_step, **measured):
            row = pytorch_step.held_against(given, "mlp", 8)
        self.assertEqual(row["ratio"], 0.5)
        self.assertEqual(documented("pytorch-step"), set(row) - {"bench", "machine"})

    def test_one_row_has_the_keys_of_all_goals(self) -> None:
        kinds = (compare.Verdict, compare_allreduce.Verdict, compare_kvstore.Verdict)
        found = set().union(*map(keys, kinds)) | {"peer"}
        self.assertEqual(documented("peers-transfer-goal"), found)


if __name__ == "__main__":
    unittest.main()
