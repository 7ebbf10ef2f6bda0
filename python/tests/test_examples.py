"""The examples of PyTorch and Ray, each as a user runs it, in two processes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
CLUSTERS = EXAMPLES.parent / "clusters"
#: Seconds that an example may take.
LIMIT = 120.0


def run(test: unittest.TestCase, name: str) -> str:
    """Returns what an example prints."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # a thread a process: two of them are on a machine that may have no more than two cores
    return run_command(test, [*torchrun, str(EXAMPLES / name)], OMP_NUM_THREADS="1")


def run_command(test: unittest.TestCase, command: list[str], **environment: str) -> str:
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LIMIT
    )
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

    @unittest.skipUnless(importlib.util.find_spec("ray"), "this Python has no Ray")
    def test_workers_of_ray_begin_again_when_one_is_lost(self) -> None:
        command = [sys.executable, str(EXAMPLES / "ray_train.py"), "--lose-a-worker"]
        said = run_command(self, command, RAY_AUTH_MODE="disabled")
        self.assertRegex(said, r"worker 1 of 2, on .* its process is lost: .* \(restart 1 of 2\)")
        losses = re.findall(r"(?m)^worker \d: from step 31 to 60, loss ([\d.]+)$", said)
        self.assertEqual(len(losses), 2, said)
        self.assertLess(max(map(float, losses)), 0.1)

    @unittest.skipUnless(importlib.util.find_spec("ray"), "this Python has no Ray")
    def test_what_the_manifest_of_ray_runs_trains(self) -> None:
        few = ["--workers", "1", "--servers", "1", "--epochs", "2", "--cpus", "0.5"]
        command = [sys.executable, str(CLUSTERS / "train_on_ray.py"), *few]
        said = run_command(self, command, RAY_AUTH_MODE="disabled")
        # 1,438 samples, 64 a step
        self.assertRegex(said, r"(?m)^44 steps, loss [\d.]+$")
        accuracy = re.search(r"(?m)^test accuracy ([\d.]+)$", said)
        assert accuracy is not None, said
        self.assertGreater(float(accuracy[1]), 0.6, said)


if __name__ == "__main__":
    unittest.main()
