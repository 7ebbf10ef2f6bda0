"""Ray as an engine, where there is one: jobs in processes that it places, and tensors from actor to actor.

There are two nodes, both on this machine. What workers do is a function here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# each process that Ray starts loads Ray and PyTorch: they are compiled once
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# a node that dies is missed soon
os.environ.setdefault("RAY_health_check_initial_delay_ms", "1000")
os.environ.setdefault("RAY_health_check_period_ms", "500")
os.environ.setdefault("RAY_health_check_failure_threshold", "4")

HAS_RAY = importlib.util.find_spec("ray") is not None
#: Seconds that anything may take.
LIMIT = 300.0


def shared(base: float) -> tuple[int, int, list[float]]:
    """What a worker gets of a store that all workers push to."""
    import numpy as np

    import tensorwire.kv

    kv = tensorwire.kv.create("dist_sync", timeout=LIMIT)
    kv.init("w", np.zeros(4))
    pulled = kv.pushpull("w", np.full(4, base + kv.rank))
    kv.close()
    return kv.rank, int(os.environ["LOCAL_RANK"]), pulled.tolist()


def spoiled() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the data are spoiled")
    time.sleep(LIMIT)


def learned(folder: str, steps: int, victim: int, at: int) -> tuple[int, int, float]:
    """Adds up all ranks' numbers step by step, and keeps the sum. In the first attempt a worker waits to be lost in one step.

    Returns how often all began again, where this attempt began, and the sum.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("tensorwire")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    kept = Path(folder) / "kept.pt"
    begun, total = torch.load(kept) if kept.exists() else (0, torch.zeros(1000))
    for step in range(begun, steps):
        if attempt == 0 and step == at and rank == victim:
            (Path(folder) / "victim").write_text(str(os.getpid()))
            time.sleep(LIMIT)
        numbers = torch.full((1000,), float(rank + step))
        dist.all_reduce(numbers)
        total += numbers
        if rank == 0:
            torch.save((step + 1, total), kept.with_suffix(".new"))
            kept.with_suffix(".new").rename(kept)
    dist.destroy_process_group()
    return attempt, begun, float(total[0])


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def trained(config: dict[str, Any]) -> None:
    """What TorchTrainer runs in each worker."""
    import ray.train.torch
    import torch
    import torch.distributed as dist

    model = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(model.weight)
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["rate"])
    for _ in range(3):
        loss = model(torch.full((2, 4), float(dist.get_rank() + 1))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weight = next(model.parameters())[0, 0].item()
    (Path(config["folder"]) / f"rank{dist.get_rank()}").write_text(f"{dist.get_backend()} {weight:.5f}")


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: The environment of a user: Ray misses nodes when it will.
USERS = {name: value for name, value in os.environ.items() if not name.startswith("RAY_health_check")}


@unittest.skipUnless(HAS_RAY, "this Python has no Ray")
class Examples(unittest.TestCase):
    """Each as a user runs it, in a cluster of its own. They run before there is that of the others: two would share two cores."""

    def said(self, *command: str) -> str:
        ended = subprocess.run([sys.executable, *command], env=USERS, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout + ended.stderr

    def test_workers_begin_again_when_one_is_lost(self) -> None:
        said = self.said(str(EXAMPLES / "python" / "ray_train.py"), "--lose-a-worker")
        self.assertRegex(said, r"worker 1 of 2, on .* its process is lost: .* \(restart 1 of 2\)")
        losses = re.findall(r"(?m)^worker \d: from step 31 to 60, loss ([\d.]+)$", said)
        self.assertEqual(len(losses), 2, said)
        self.assertLess(max(map(float, losses)), 0.1)

    def test_what_the_manifest_runs_trains(self) -> None:
        few = ["--workers", "1", "--servers", "1", "--epochs", "2", "--cpus", "0.5"]
        said = self.said(str(EXAMPLES / "clusters" / "train_on_ray.py"), *few)
        # 1,438 samples, 64 a step
        self.assertRegex(said, r"(?m)^44 steps, loss [\d.]+$")
        accuracy = re.search(r"(?m)^test accuracy ([\d.]+)$", said)
        assert accuracy is not None, said
        self.assertGreater(float(accuracy[1]), 0.6, said)


@unittest.skipUnless(HAS_RAY, "this Python has no Ray")
class Case(unittest.TestCase):
    """Tests on one cluster of Ray, which is made for the first of them."""

    cluster: Any = None

    @classmethod
    def setUpClass(cls) -> None:
        if Case.cluster is not None:
            return
        import ray
        from ray.cluster_utils import Cluster

        Case.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"first": 10}, "include_dashboard": False})
        ray.init(address=Case.cluster.address, log_to_driver=False)

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def when_there(self, act: Callable[[int], None]) -> None:
        """Does something with the process that says that it may be killed."""
        victim = Path(self.folder) / "victim"

        def wait() -> None:
            end = time.monotonic() + LIMIT
            while time.monotonic() < end:
                if victim.exists() and victim.read_text():
                    return act(int(victim.read_text()))
                time.sleep(0.02)

        thread = threading.Thread(target=wait)
        thread.start()
        self.addCleanup(thread.join)


def tearDownModule() -> None:
    if Case.cluster is not None:
        import ray

        ray.shutdown()
        Case.cluster.shutdown()


#: What `learned` adds up in 6 steps of two workers.
SUM = float(sum(2 * step + 1 for step in range(6)))


class Functions(Case):
    def test_workers_find_each_other(self) -> None:
        import tensorwire.ray

        results = tensorwire.ray.train(shared, 10.0, workers=2)
        self.assertEqual(results, [(0, 0, [21.0] * 4), (1, 1, [21.0] * 4)])

    def test_the_first_to_fail_is_named(self) -> None:
        import tensorwire.ray
        from tensorwire.ray import engine

        self.addCleanup(setattr, engine, "_LAST_WORDS", engine._LAST_WORDS)
        engine._LAST_WORDS = 1.0
        with self.assertRaisesRegex(
            tensorwire.ray.WorkerFailed, r"worker 1 of 2, on \S+ \([\d.]+\), failed: ValueError: the data are spoiled"
        ) as caught:
            tensorwire.ray.train(spoiled, workers=2)
        self.assertEqual(caught.exception.rank, 1)

    def test_what_makes_no_sense_is_said(self) -> None:
        import tensorwire.ray

        with self.assertRaisesRegex(TimeoutError, "no room for 5 processes"):
            tensorwire.ray.train(shared, 1.0, workers=5, timeout=1)
        with self.assertRaisesRegex(TypeError, "steps: these options are of a graph"):
            tensorwire.ray.train(shared, 1.0, steps=3)
        with self.assertRaisesRegex(ValueError, "--workers must be at least 1"):
            tensorwire.ray.train("mlp", "digits", workers=0, steps=1)
        with self.assertRaisesRegex(ValueError, "no model 'mlq'"):
            tensorwire.ray.train("mlq", "digits", strategy="local", workers=1, steps=1)

    def test_a_worker_that_is_killed_ends_all(self) -> None:
        import tensorwire.ray

        kills = []

        def kill(pid: int) -> None:
            killed(pid)
            kills.append(time.monotonic())

        self.when_there(kill)
        with self.assertRaisesRegex(
            tensorwire.ray.WorkerFailed, r"worker 1 of 2, on \S+ \([\d.]+\), failed: its process is lost: killed"
        ):
            tensorwire.ray.train(learned, self.folder, 6, 1, 3)
        self.assertLess(time.monotonic() - kills[0], LIMIT / 2, "it does not wait for the worker that lives")

    def test_torch_trainer_takes_the_backend(self) -> None:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        TorchTrainer(
            trained,
            train_loop_config={"rate": 0.1, "folder": self.folder},
            torch_config=TorchConfig(backend="tensorwire"),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=self.folder, name="run"),
        ).fit()
        # the mean of what both see, 1 and 2, three times
        for rank in range(2):
            said = (Path(self.folder) / f"rank{rank}").read_text()
            self.assertEqual(said, f"tensorwire {1 - 3 * 0.1 * 1.5:.5f}")


class Graphs(Case):
    OPTIONS = {"steps": 60, "batch": 16, "learning_rate": 0.05}

    def test_a_graph_is_trained_to_the_bits_of_one_process(self) -> None:
        import torch
        from torch import nn

        import tensorwire.ray
        from tensorwire.torch import import_

        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        data = (torch.randn(64, 6), torch.randint(0, 4, (64,)))
        graph = import_(net, tuple(tensor[:8] for tensor in data), loss="cross_entropy")
        there = tensorwire.ray.train(graph, data, workers=2, servers=1, steps=4, resources={"CPU": 0.5})
        here = tensorwire.train(graph, data, strategy="local", workers=2, steps=4, threads=1)
        self.assertEqual(there.losses, here.losses)
        torch.testing.assert_close(there.state_dict, here.state_dict, rtol=0, atol=0)
        net.load_state_dict(there.state_dict)

    def test_all_go_on_from_a_checkpoint_when_one_is_killed(self) -> None:
        import tensorwire.ray

        here = tensorwire.train("mlp", "digits", strategy="local", workers=2, threads=1, **self.OPTIONS)
        self.assertEqual(len(here.losses), 60)
        told = []

        def watch(step: dict[str, Any]) -> None:
            told.append(step["step"])
            if told.count(25) == 1 and told[-1] == 25:
                kill_process("1")

        with self.assertLogs("tensorwire.ray", "WARNING") as logged:
            there = tensorwire.ray.train(
                "mlp",
                "digits",
                workers=2,
                servers=1,
                restarts=1,
                resources={"CPU": 0.5},
                checkpoint={"path": self.folder, "every": 10},
                environment={MARK: self.folder},
                on_step=watch,
                **self.OPTIONS,
            )
        self.assertRegex(logged.output[0], r"worker 1 of 3, on .*failed: its process is lost: .*at step \d+: .*all begin again")
        self.assertEqual(there.losses, here.losses)
        self.assertEqual(there.summary["weights_sha256"], here.summary["weights_sha256"])
        again = told[told.index(25) + 1 :]
        self.assertTrue(any(step <= 60 and step % 10 == 1 and step > 1 for step in again), f"from a checkpoint: {again[:3]}")
        self.assertEqual(told[-1], 60)

    def test_an_elastic_job_goes_on_without_a_worker(self) -> None:
        import tensorwire.ray

        def watch(step: dict[str, Any]) -> None:
            if step["step"] == 10:
                kill_process("1")

        done = tensorwire.ray.train(
            "mlp",
            "digits",
            strategy="dist-sgd",
            store={"elastic": True},
            workers=2,
            servers=1,
            resources={"CPU": 0.5},
            environment={MARK: self.folder},
            on_step=watch,
            **(self.OPTIONS | {"steps": 200}),
        )
        self.assertEqual((done.summary["steps"], done.summary["workers_finished"]), (200, 1))

    def test_a_process_that_is_killed_ends_the_job(self) -> None:
        import tensorwire
        import tensorwire.ray

        def watch(step: dict[str, Any]) -> None:
            if step["step"] == 10:
                kill_process("2", with_actor=False)

        with self.assertRaisesRegex(tensorwire.JobFailed, r"server 0 \(rank 2.*its process ended"):
            tensorwire.ray.train(
                "mlp",
                "digits",
                workers=2,
                servers=1,
                resources={"CPU": 0.5},
                environment={MARK: self.folder},
                on_step=watch,
                **(self.OPTIONS | {"steps": 100_000}),
            )


#: In the environment of a job's processes, to find them by.
MARK = "TENSORWIRE_TEST_OF_RAY"


def kill_process(rank: str, with_actor: bool = True) -> None:
    """Kills a process of a job, and the actor that runs it."""
    for folder in Path("/proc").iterdir():
        try:
            found = dict(line.split("=", 1) for line in (folder / "environ").read_text().split("\0") if "=" in line)
            started_by = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        is_process = b"tensorwire._job" in (folder / "cmdline").read_bytes()
        if is_process and MARK in found and found.get("RANK") == rank:
            if with_actor:
                os.kill(started_by, signal.SIGKILL)
            os.kill(int(folder.name), signal.SIGKILL)
            return
    raise AssertionError(f"there is no process of rank {rank}")


class Nodes(Case):
    """Two nodes, of which the second comes and goes."""

    def setUp(self) -> None:
        super().setUp()
        self.node = self.cluster.add_node(num_cpus=2, resources={"second": 10})
        self.addCleanup(self.lose_node)

    def lose_node(self) -> None:
        import ray

        if self.node is None:
            return
        lost, self.node = self.node, None
        self.cluster.remove_node(lost, allow_graceful=False)
        # until it is missed, actors are placed on it
        end = time.monotonic() + LIMIT
        while any(node["Alive"] for node in ray.nodes() if node["NodeID"] == lost.node_id):
            self.assertLess(time.monotonic(), end, "a node that is lost is missed")
            time.sleep(0.05)

    def test_the_work_of_a_node_that_dies_goes_to_another(self) -> None:
        import tensorwire.ray

        self.when_there(lambda _: self.lose_node())
        with self.assertLogs("tensorwire.ray", "WARNING") as logged:
            results = tensorwire.ray.train(learned, self.folder, 6, 1, 3, restarts=1, placement_strategy="SPREAD")
        self.assertEqual(results, [(1, 3, SUM)] * 2)
        self.assertRegex(logged.output[0], r"worker \d of 2, on .* is lost.* all begin again \(restart 1 of 1\)")

    def test_files_of_a_job_go_to_nodes_that_do_not_see_them(self) -> None:
        from tensorwire.ray import engine

        class Apart(engine._Copies):
            """As if nodes did not share the file system."""

            def there(self, name: str) -> str:
                return f"{self.folder}-there/{name}"

        folder = Path(self.folder) / "job"
        folder.mkdir()
        contents = {"job.json": b"{}", "a.bin": os.urandom(5000), "empty.bin": b""}
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        self.addCleanup(setattr, engine, "_PIECE", engine._PIECE)
        engine._PIECE = 2000
        placing = engine._Placing({"CPU": 0.5, "second": 1}, "PACK", {}, LIMIT)
        with engine._Placed(["worker 0", "worker 1"], placing, 0) as placed:
            with Apart(placed, folder) as copies:
                self.assertEqual(copies.ranks, [0], "once a node")
                for name, content in contents.items():
                    self.assertEqual(Path(copies.there(name)).read_bytes(), content)
                made = os.urandom(4001)
                Path(copies.there("trained")).write_bytes(made)
                copies.fetch("trained")
                self.assertEqual((folder / "trained").read_bytes(), made)
            self.assertFalse(Path(copies.there("")).exists(), "copies go")
            with engine._Copies(placed, folder) as copies:
                self.assertEqual(copies.ranks, [], "they see it")
            self.assertTrue(folder.exists())

    def test_tensors_go_from_node_to_node(self) -> None:
        import ray
        import torch

        Source, Other = actors()
        source = Source.options(resources={"first": 1}).remote("tcp")
        other = Other.options(resources={"second": 1}).remote("tcp")
        for halves in (0, 3):
            self.assertEqual(ray.get(other.total.remote(source.make.remote(halves))), 66.0 + halves * 0.5)
        large = ray.get(other.total.remote(source.large.remote(1 << 20)))
        self.assertEqual(large, float(torch.arange(1 << 20, dtype=torch.float64).sum()))
        made = source.make.remote(3)
        self.assertEqual(ray.get(other.change.remote(made))[0], [100.0, 2.0])
        self.assertEqual(ray.get(source.look.remote()), 1.0, "it is a copy")
        # what was taken before may still be there
        left = source.make.remote(3)
        process = Path("/proc", str(ray.get(source.process.remote())))
        ray.kill(source)
        with self.assertRaises(ray.exceptions.RayActorError):
            while True:
                ray.get(source.look.remote())
        # it is called dead before it ends
        end = time.monotonic() + LIMIT
        while process.exists():
            self.assertLess(time.monotonic(), end, "an actor that is killed ends")
            time.sleep(0.02)
        with self.assertRaises(ray.exceptions.RayError):
            ray.get(other.total.remote(left), timeout=LIMIT)


def actors() -> tuple[Any, Any]:
    """Returns the classes of an actor that has tensors and of one that takes them."""
    import ray
    import torch
    from ray.experimental.rdt.util import transport_manager_info

    import tensorwire.ray

    if "TENSORWIRE" not in transport_manager_info:
        tensorwire.ray.register()

    @ray.remote(num_cpus=0)
    class Source:
        def __init__(self, transport: str = "auto") -> None:
            os.environ["TENSORWIRE_TRANSPORT"] = transport

        @ray.method(tensor_transport="TENSORWIRE")
        def make(self, halves: int, is_shared: bool = False) -> dict[str, torch.Tensor]:
            self.kept = torch.arange(12.0).view(3, 4)
            if is_shared:
                self.kept.share_memory_()
            return {"all": self.kept, "columns": self.kept[:, 1:3], "halves": torch.full((halves,), 0.5).half()}

        @ray.method(tensor_transport="TENSORWIRE")
        def large(self, elements: int) -> dict[str, torch.Tensor]:
            return {"all": torch.arange(elements, dtype=torch.float64)}

        def look(self) -> float:
            return float(self.kept[0, 1])

        def process(self) -> int:
            return os.getpid()

    @ray.remote(num_cpus=0, enable_tensor_transport=True)
    class Other:
        def __init__(self, transport: str = "auto") -> None:
            os.environ["TENSORWIRE_TRANSPORT"] = transport

        def change(self, given: dict[str, torch.Tensor]) -> list[list[float]]:
            given["columns"][0, 0] = 100
            return given["columns"].tolist()

        def total(self, given: dict[str, torch.Tensor]) -> float:
            return sum(float(tensor.double().sum()) for name, tensor in given.items() if name != "columns")

    return Source, Other


class Tensors(Case):
    """Tensors from actor to actor on one host."""

    def test_what_is_shared_is_mapped_and_all_else_copied(self) -> None:
        import ray

        Source, Other = actors()
        source, other = (each.remote() for each in (Source, Other))
        for is_shared in (True, False):
            for halves in (0, 3):
                made = source.make.remote(halves, is_shared)
                self.assertEqual(ray.get(other.total.remote(made)), 66.0 + halves * 0.5)
            self.assertEqual(ray.get(other.change.remote(made)), [[100.0, 2.0], [5.0, 6.0], [9.0, 10.0]])
            self.assertEqual(ray.get(source.look.remote()), 100 if is_shared else 1)
        size = 1 << 20
        self.assertEqual(ray.get(other.total.remote(source.large.remote(size))), size * (size - 1) / 2)


if __name__ == "__main__":
    unittest.main()
