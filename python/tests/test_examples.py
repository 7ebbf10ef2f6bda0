"""The examples of PyTorch, each as a user runs it, in two processes. Those of Ray are in test_ray.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
#: Seconds that an example may take: it takes a few, and a machine may be busy.
LIMIT = 300.0


def run(test: unittest.TestCase, name: str) -> str:
    """Returns what an example prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLES / name)]
    # a thread a process: two of them are on a machine that may have no more than two cores
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    test.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
    return ended.stdout + ended.stderr


class Examples(unittest.TestCase):
    def learns(self, said: str) -> None:
        losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", said, re.MULTILINE)]
        self.assertGreater(len(losses), 2, said)
        self.assertLess(losses[-1], losses[0] / 2, said)

    def test_ddp_learns_and_copies_nothing(self) -> None:
        said = run(self, "ddp.py")
        self.learns(said)
        self.assertRegex(said, r"(?m)^\d+ operations, \d+ of them in place$")
        self.assertRegex(said, r"(?m)^0 bytes copied from the third step on$")

    def test_fsdp2_learns_and_copies_nothing(self) -> None:
        said = run(self, "fsdp2.py")
        self.learns(said)
        operations = re.search(r"(?m)^(\d+) operations, (\d+) of them in place$", said)
        self.assertIsNotNone(operations, said)
        assert operations is not None
        self.assertEqual(*operations.groups())
        self.assertRegex(said, r"(?m)^0 bytes copied$")


if __name__ == "__main__":
    unittest.main()
