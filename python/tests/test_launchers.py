"""Jobs that launchers start: torchrun, which starts dead ranks anew, mpirun and srun. TENSORWIRE_LONG has more of each."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

LONG = bool(os.environ.get("TENSORWIRE_LONG"))
#: Seconds that a job may take.
LIMIT = 300.0
RANKS = 2


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(*options: str) -> list[str]:
    python = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*python, *options, "-m", "tests.launched"]


def by_shell(rank: str, world: str) -> list[str]:
    """Returns a command that gives PyTorch its variables, as docs/python.md has it."""
    sets = f'RANK={rank} WORLD_SIZE={world} MASTER_ADDR=127.0.0.1 MASTER_PORT={port()} exec "$@"'
    return ["bash", "-c", sets, "bash", sys.executable, "-m", "tests.launched"]


def mpirun() -> list[str]:
    options = ["--allow-run-as-root", "--oversubscribe", "-np", str(RANKS)]
    return ["mpirun", *options, *by_shell("$OMPI_COMM_WORLD_RANK", "$OMPI_COMM_WORLD_SIZE")]


def srun(*options: str) -> list[str]:
    given = ["-n", str(RANKS), "--overcommit", "--mpi=none", *options]
    return ["srun", *given, *by_shell("$SLURM_PROCID", "$SLURM_NTASKS")]


class Launchers(unittest.TestCase):
    def launch(self, command: list[str], dies: str = "::") -> tuple[subprocess.CompletedProcess[str], float]:
        """Returns what a job has said, and the seconds that it took."""
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            ended = subprocess.run(
                [*command, folder, "--dies", dies],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        return ended, time.monotonic() - begun

    def finished(self, command: list[str], dies: str = "::") -> tuple[str, str]:
        """Returns the weights of a job that goes well, and how it came to them."""
        ended, _ = self.launch(command, dies)
        said = ended.stdout + ended.stderr
        self.assertEqual(ended.returncode, 0, said)
        found = re.search(rf"(?m)^weights (\w+) of {RANKS} ranks (from .*)$", ended.stdout)
        self.assertIsNotNone(found, said)
        assert found is not None
        return found[1], found[2]

    def fails(self, command: list[str], dies: str, names: str | None) -> None:
        """A job whose rank dies ends; who is left says who it was, unless the launcher ends it first."""
        ended, took = self.launch(command, dies)
        said = ended.stdout + ended.stderr
        self.assertNotEqual(ended.returncode, 0, said)
        # far below any timeout: Pythons have started, and have imported PyTorch
        self.assertLess(took, 60.0)
        if names is not None:
            raised = re.findall(r"raised: (.*)", said)
            self.assertEqual(len(raised), RANKS - 1, said)
            for each in raised:
                self.assertIn(names, each)

    def test_torchrun_starts_a_dead_rank_anew_and_the_job_finishes(self) -> None:
        again = torchrun("--max-restarts", "2")
        wanted, how = self.finished(again, "1:0:3")
        self.assertEqual(how, "from step 3 in attempt 1")
        # whoever dies at import is known to the launcher alone, who ends the others
        self.fails(torchrun(), "1:0:import", None)
        if LONG:
            self.assertEqual(self.finished(torchrun()), (wanted, "from step 0 in attempt 0"))
            self.assertEqual(self.finished(again, "0:0:init"), (wanted, "from step 0 in attempt 1"))
            self.assertEqual(self.finished(again, "1:0:import"), (wanted, "from step 0 in attempt 1"))

    def test_mpirun(self) -> None:
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun; scripts/setup.sh --tests installs it on Debian")
        self.finished(mpirun())
        if LONG:
            self.fails(mpirun(), "1:0:2", None)

    def test_srun(self) -> None:
        if "SLURM_CONF" not in os.environ:
            self.skipTest("no Slurm (slurm-wlm, munge), or not root")
        # Slurm leaves the others alone unless it is told to end them
        self.fails(srun(), "1:0:2", f"rank 1 on {socket.gethostname()} is lost")
        if LONG:
            self.finished(srun())
            self.fails(srun(), "1:0:init", f"rank 1 on {socket.gethostname()} is lost")
            self.fails(srun("-K"), "0:0:2", None)


if __name__ == "__main__":
    unittest.main()
