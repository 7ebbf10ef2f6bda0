"""Ray as an engine, where there is one: workers that it places, and tensors from actor to actor."""

import importlib.metadata
import os
import unittest

os.environ.setdefault("RAY_AUTH_MODE", "disabled")


HAS_RAY = any(importlib.metadata.distributions(name="ray"))


def shared(base):
    """What a worker gets of a store that all workers push to."""
    import numpy as np

    import tensorwire.kv

    kv = tensorwire.kv.create("dist_sync", timeout=30)
    kv.init("w", np.zeros(4))
    pulled = kv.pushpull("w", np.full(4, base + kv.rank))
    kv.close()
    return kv.rank, int(os.environ["LOCAL_RANK"]), pulled.tolist()


def spoiled():
    import tensorwire.kv

    kv = tensorwire.kv.create("dist_sync", timeout=30)
    if kv.rank == 1:
        raise ValueError("the data are spoiled")
    kv.barrier()


@unittest.skipUnless(HAS_RAY, "this Python has no Ray")
class Engine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import ray

        import tensorwire.ray

        tensorwire.ray.register()
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        cls.addClassCleanup(ray.shutdown)

    def test_workers_find_each_other(self):
        import tensorwire.ray

        results = tensorwire.ray.train(shared, 10.0, workers=2)
        self.assertEqual(results, [(0, 0, [21.0] * 4), (1, 1, [21.0] * 4)])

    def test_the_first_to_fail_is_named(self):
        import tensorwire.ray

        with self.assertRaisesRegex(RuntimeError, "worker 1 of 2, on .*ValueError: the data are spoiled"):
            tensorwire.ray.train(spoiled, workers=2)

    def test_no_room_is_said(self):
        import tensorwire.ray

        with self.assertRaisesRegex(TimeoutError, "no room for 3 workers"):
            tensorwire.ray.train(shared, 1.0, workers=3, timeout=1)

    def test_tensors_are_shared_between_actors(self):
        import ray
        import torch

        @ray.remote(num_cpus=0)
        class Actor:
            @ray.method(tensor_transport="TENSORWIRE")
            def make(self):
                self.kept = torch.arange(12.0).view(3, 4)
                return {"all": self.kept, "columns": self.kept[:, 1:3]}

            def change(self, given):
                given["all"][0, 1] = 100
                return given["columns"].tolist()

            def look(self):
                return float(self.kept[0, 1])

        source, other = Actor.remote(), Actor.remote()
        changed = ray.get(other.change.remote(source.make.remote()))
        self.assertEqual(changed, [[100.0, 2.0], [5.0, 6.0], [9.0, 10.0]])
        self.assertEqual(ray.get(source.look.remote()), 100)


if __name__ == "__main__":
    unittest.main()
