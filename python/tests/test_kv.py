"""The store of `tensorwire.kv`: one process, and several that a launcher starts.

What several processes do is a function here by that name, which each of them runs: `Jobs.job` starts them.
"""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

import tensorwire.kv

check = unittest.TestCase()
check.maxDiff = None


class Alone(unittest.TestCase):
    """A store of one process."""

    def setUp(self):
        self.kv = tensorwire.kv.create("local")
        self.addCleanup(self.kv.close)

    def test_is_a_store_of_one_worker(self):
        self.assertEqual((self.kv.rank, self.kv.num_workers, self.kv.type), (0, 1, "local"))
        self.kv.barrier()

    def test_keys_are_numbers_or_names_one_or_a_list(self):
        self.kv.init([3, "w"], [np.zeros(4, np.float32), np.ones((2, 3))])
        self.kv.push(3, np.full(4, 2, np.float32))
        one = self.kv.pull(3)
        self.assertEqual((one.shape, one.dtype, one.nbytes), ([4], "float32", 16))
        self.assertEqual(one.numpy().tolist(), [2, 2, 2, 2])
        first, second = np.empty(4, np.float32), np.empty((2, 3))
        self.kv.pull([3, "w"], [first, second])
        self.assertEqual((first[0], second[1, 2]), (2, 1))

    def test_tensors_of_devices_are_added_and_all_filled(self):
        self.kv.init("w", np.zeros(3, np.int64))
        self.kv.push("w", [np.array([1, 2, 3]), np.array([10, 20, 30])])
        out = [np.empty(3, np.int64), np.empty(3, np.int64)]
        self.kv.pull("w", out)
        self.assertEqual([o.tolist() for o in out], [[11, 22, 33]] * 2)

    def test_memory_of_the_store_is_shared_and_outlives_it(self):
        kv = tensorwire.kv.create("local")
        tensor = kv.zeros((2, 5), "float64")
        one, other = tensor.numpy(), np.from_dlpack(tensor)
        one[1, 4] = 7
        kv.close()
        del kv, tensor, one
        self.assertEqual((other.shape, other[1, 4], other.sum()), ((2, 5), 7, 7))
        other[:] = 1

    def test_what_is_wrong_is_said(self):
        kv = self.kv
        kv.init("w", np.zeros((2, 3), np.float32))
        frozen = np.zeros((2, 3), np.float32)
        frozen.flags.writeable = False
        for error, words, call in [
            (ValueError, "key 'v' was never initialised here; call init first", lambda: kv.pull("v")),
            (
                ValueError,
                r"key 'w' is float32 of shape \[2, 3\], and the tensor is float64 of shape \[3\]",
                lambda: kv.push("w", np.zeros(3)),
            ),
            (ValueError, "numpy.ascontiguousarray", lambda: kv.push("w", np.zeros((3, 2), np.float32).T)),
            (ValueError, "is read-only; give one", lambda: kv.pull("w", frozen)),
            (TypeError, "list has no __dlpack__", lambda: kv._store.push(["w"], [[[1.0]]], 0, 1.0)),
            (TypeError, "a type of 16 bits", lambda: kv.init("h", np.zeros(3, np.float16))),
            (TypeError, "a key is a number from 0 on or a name, not 1.5", lambda: kv.pull(1.5)),
            (TypeError, "2 keys take a list of values", lambda: kv.push(["w", "w"], frozen)),
            (ValueError, "2 keys, but tensors for 1", lambda: kv.push(["w", "w"], [frozen])),
            (ValueError, "1 keys, but tensors for 2", lambda: kv.pull(["w"], [frozen, frozen])),
            (ValueError, r"key 'w' is f32\[2×3\], not f32\[3×2\]", lambda: kv.init("w", frozen.reshape(3, 2))),
            (ValueError, "key 'w': row 2 of 2", lambda: kv.row_sparse_pull("w", row_ids=[2])),
            (ValueError, "no optimizer 'adams'; there are sgd,", lambda: kv.set_optimizer("adams", lr=1)),
            (ValueError, "'adam' has no parameter 'momentum'", lambda: kv.set_optimizer("adam", lr=1, momentum=0)),
            (ValueError, "beta1 is 1.5, not from 0 to below 1", lambda: kv.set_optimizer("adam", lr=1, beta1=1.5)),
            (ValueError, "'sgd' needs learning_rate", lambda: kv.set_optimizer("sgd")),
            (ValueError, "no compression '2bit'", lambda: kv.set_gradient_compression({"type": "2bit"})),
            (ValueError, "share is above 0", lambda: kv.set_gradient_compression({"type": "top-k", "share": 2.0})),
            (ValueError, "a compression has a type", lambda: kv.set_gradient_compression({"threshold": 0.5})),
            (ValueError, "there is no store 'dist_fast'", lambda: tensorwire.kv.create("dist_fast")),
            (ValueError, "max_delay is of dist_async", lambda: tensorwire.kv.create("dist_sync", max_delay=1)),
        ]:
            with self.subTest(words), self.assertRaisesRegex(error, words):
                call()
        self.assertEqual(kv.pull("w").numpy().sum(), 0, "it goes on")

    def test_updates_are_those_of_pytorch(self):
        import torch

        for make, options in [
            (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8}),
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
            (torch.optim.Adagrad, {"lr": 0.1}),
            (torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.9, "eps": 1e-4}),
            (torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.9)}),
            (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2}),
        ]:
            with self.subTest(make=make.__name__, **options):
                parameter = torch.nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4))
                optimizer = make([parameter], **options)
                kv = tensorwire.kv.create("local")
                kv.set_optimizer(optimizer)
                kv.init("w", parameter)
                for step in range(1, 4):
                    parameter.grad = torch.sin(step * torch.arange(12.0, dtype=torch.float64)).view(3, 4)
                    kv.push("w", parameter.grad)
                    optimizer.step()
                torch.testing.assert_close(kv.pull("w").torch(), parameter.detach())
        with self.assertRaisesRegex(ValueError, "servers have Adam without amsgrad"):
            self.kv.set_optimizer(torch.optim.Adam([parameter], amsgrad=True))

    def test_less_of_what_is_pushed_crosses_and_nothing_is_lost(self):
        kv, rows = self.kv, np.random.default_rng(3)
        for number, compression in enumerate([{"type": "int8"}, {"type": "top-k", "share": 0.1}]):
            with self.subTest(**compression):
                kv.set_gradient_compression(compression)
                small, large = f"small{number}", f"large{number}"
                kv.init([small, large], [np.zeros(5, np.float32), np.zeros((30, 20), np.float32)])
                given, found = np.zeros((30, 20)), np.zeros((30, 20))
                for _ in range(40):
                    pushed = rows.standard_normal((30, 20)).astype(np.float32)
                    given += pushed
                    kv.push(small, pushed[0, :5])
                    self.assertTrue((kv.pull(small).numpy() == pushed[0, :5]).all())
                    found += kv.pushpull(large, pushed, out=kv.empty((30, 20))).numpy()
                # what is left is of the last few
                left = np.abs(given - found).max()
                self.assertLess(left, 0.1 if number == 0 else 12)
                self.assertGreater(left, 0)
        kv.set_gradient_compression(None)
        kv.push("large0", pushed)
        self.assertTrue((kv.pull("large0").numpy() == pushed).all())

    def test_a_store_of_several_needs_a_launcher(self):
        command = [sys.executable, "-c", "import tensorwire.kv; tensorwire.kv.create()"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        self.assertIn("nobody started other processes", done.stderr)
        self.assertIn("python -m tensorwire.kv --workers 2", done.stderr)

    def test_a_closed_store_says_so(self):
        self.kv.close()
        self.kv.close()
        with self.assertRaisesRegex(tensorwire.kv.StoreError, "closed"):
            self.kv.barrier()


    def test_what_ends_a_block_is_raised_though_nobody_can_be_told(self):
        busy = tensorwire.kv.StoreError("waited 1 s for a call of another thread of this process")
        has_notes = sys.version_info >= (3, 11)
        with contextlib.nullcontext() if has_notes else self.assertLogs("tensorwire.kv") as log:
            with self.assertRaisesRegex(KeyError, "spoiled") as raised, mock.patch.object(self.kv, "_store") as store:
                store.fail.side_effect = busy
                with self.kv:
                    raise KeyError("spoiled")
        [said] = raised.exception.__notes__ if has_notes else log.output
        self.assertIn(f"the other workers may not know of it: StoreError: {busy}", said)


def shared():
    """Two workers, two servers: values whole and split, of both workers."""
    kv = tensorwire.kv.create("dist_sync", servers=2, big_elements=1000, timeout=20)
    check.assertEqual(kv.num_workers, 2)
    check.assertEqual(kv.rank, int(os.environ["RANK"]))
    kv.init(["small", 7], [np.full(3, kv.rank + 5.0), np.zeros(5000, np.float32)])
    check.assertEqual(kv.pull("small").numpy().tolist(), [5, 5, 5], "those of rank 0")
    own = np.arange(5000, dtype=np.float32) * (kv.rank + 1)
    kv.push(["small", 7], [np.full(3, 10.0**kv.rank), own], priority=-1)
    check.assertEqual(kv.pull("small", np.empty(3)).tolist(), [11, 11, 11])
    expected = np.arange(5000, dtype=np.float32) * 3
    np.testing.assert_array_equal(kv.pull(7).numpy(), expected)
    check.assertIs(kv.pushpull(7, own), own)
    np.testing.assert_array_equal(own, expected)
    _pass_in_place(kv)
    _go_by_rows(kv)
    _update(kv)
    _keep(kv)


def _pass_in_place(kv):
    """Memory of the store goes to servers and back without a copy; other memory is copied, and counted."""
    elements = 300_000
    kv.init("large", kv.zeros(elements))
    pushed, pulled = kv.empty(elements), kv.empty(elements)
    pushed.numpy()[:] = kv.rank + 1
    before, staged = kv.stats()["copied_bytes"], kv.stats()["staged_bytes"]
    for _ in range(3):
        kv.push("large", pushed)
        kv.pull("large", pulled.numpy())
    check.assertEqual(kv.stats()["copied_bytes"], before)
    check.assertEqual(set(pulled.numpy()), {3})
    kv.push("large", pushed.numpy().copy())
    kv.pull("large", pulled)
    check.assertEqual(kv.stats()["copied_bytes"] - before, 4 * elements)
    check.assertEqual(kv.stats()["staged_bytes"] - staged, 4 * elements)


def _go_by_rows(kv):
    kv.init("table", np.zeros((100, 4)))
    rows = [3, 60] if kv.rank == 0 else [99, 60, 60]
    value = np.arange(len(rows) * 4, dtype=float).reshape(-1, 4)
    kv.row_sparse_push("table", value, rows)
    found = kv.row_sparse_pull("table", row_ids=np.array([3, 60, 61, 99])).numpy()
    other = np.arange(12, dtype=float).reshape(-1, 4)
    expected = [other[0], other[1] + other[1] + other[2], 0 * other[0], other[0]]
    np.testing.assert_array_equal(found, expected)
    mixed = np.empty((3, 4))
    kv.row_sparse_pull("table", mixed, row_ids=[99, 3, 60])
    np.testing.assert_array_equal(mixed, found[[3, 0, 1]])


def _update(kv):
    """Servers update by the formulas, with the mean of what the workers pushed."""
    kv.set_optimizer("adam", learning_rate=0.1, of_keys={"plain": ("sgd", {"lr": 0.5, "momentum": 0.9})})
    first = np.linspace(-1, 1, 2000)
    kv.init(["adam", "plain"], [first, first])
    adam, plain = first.copy(), first.copy()
    m, s, u = 0, 0, 0
    for step in range(1, 4):
        gradients = [np.sin(first * step * (rank + 1)) for rank in range(2)]
        kv.push(["adam", "plain"], [gradients[kv.rank]] * 2)
        g = sum(gradients) / 2
        m, s, u = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g, 0.9 * u + g
        adam -= 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
        plain -= 0.5 * u
    found = kv.pull(["adam", "plain"])
    np.testing.assert_allclose(found[0].numpy(), adam, rtol=1e-9)
    np.testing.assert_allclose(found[1].numpy(), plain, rtol=1e-9)


def _keep(kv):
    """Servers write what they have, the state of optimizers, too, and take it back."""
    kv.set_optimizer("sgd", learning_rate=0.5, momentum=0.9)
    out = np.empty(2000)
    check.assertIs(kv.broadcast("kept", np.full(2000, kv.rank + 1.0), out), out)
    check.assertEqual(set(out), {1}, "those of rank 0")

    def at_rank_0(act):
        kv.barrier()
        if kv.rank == 0:
            act(f"{sys.argv[2]}/states")
        kv.barrier()

    def two_more():
        for step in range(2):
            kv.push("kept", np.full(2000, kv.rank + step + 0.5))
        return kv.pull("kept").numpy().copy()

    two_more()
    at_rank_0(kv.save_optimizer_states)
    expected = two_more()
    at_rank_0(kv.load_optimizer_states)
    np.testing.assert_array_equal(two_more(), expected)


def bounded():
    """A worker that is ahead by more than the bound waits for the other."""
    kv = tensorwire.kv.create("dist_async", max_delay=1, timeout=20)
    kv.set_optimizer("sgd", learning_rate=1.0)
    kv.init("w", np.zeros(10))
    kv.barrier()
    # rank 1 may come out of the next one, and sleep, long before rank 0 does
    start = time.monotonic()
    kv.barrier()
    if kv.rank == 0:
        for _ in range(3):
            kv.push("w", np.ones(10))
        check.assertLessEqual(kv.pull("w").numpy()[0], -5)
        check.assertGreater(time.monotonic() - start, 0.4)
    else:
        for _ in range(2):
            time.sleep(0.25)
            kv.push("w", np.ones(10))
        check.assertLess(time.monotonic() - start, 15, "who is behind does not wait")
    kv.barrier()
    check.assertEqual(kv.pull("w").numpy()[0], -5)


def torch_tensors():
    import torch

    kv = tensorwire.kv.create("dist_sync", timeout=20)
    kv.set_optimizer("sgd", lr=0.1)
    model = torch.nn.Linear(3, 2)
    names, parameters = map(list, zip(*model.named_parameters()))
    kv.init(names, parameters)
    kv.pull(names, parameters)
    inputs = [torch.full((4, 3), rank + 1.0) for rank in range(2)]
    # what one process would do with the samples of both
    model(torch.cat(inputs)).square().mean().backward()
    expected = [parameter.detach() - 0.1 * parameter.grad for parameter in parameters]
    model.zero_grad()
    model(inputs[kv.rank]).square().mean().backward()
    kv.pushpull(names, [parameter.grad for parameter in parameters], out=parameters)
    torch.testing.assert_close([parameter.detach() for parameter in parameters], expected)
    kv.set_optimizer("sum")
    kv.init("table", torch.zeros(5, 2))
    kv.push("table", torch.sparse_coo_tensor([[4, 1, 4]], [[1.0, 1.0]] * 3, (5, 2)))
    check.assertEqual(kv.pull("table").torch()[:, 0].tolist(), [0, 2, 0, 0, 4])
    kv.init("dense", torch.zeros(3))
    row = torch.sparse_coo_tensor([[1]], [[1.0, 1.0]], (5, 2))
    kv.push(["table", "dense"], [[row, row], torch.ones(3)])
    check.assertEqual(kv.pull("table").torch()[:, 0].tolist(), [0, 6, 0, 0, 4])
    check.assertEqual(kv.pull("dense").torch().tolist(), [2] * 3)
    for words, given in [(r"sparse in 2 dimensions", torch.ones(5, 2).to_sparse()), ("some are sparse", [row, torch.ones(5, 2)])]:
        with check.assertRaisesRegex((TypeError, ValueError), words):
            kv.push("table", given)
    given = kv.zeros((2, 2))
    given.torch()[0] = 1
    kv.row_sparse_push("table", given, [3, 1])
    check.assertEqual(kv.pull("table").torch()[:, 0].tolist(), [0, 6, 0, 2, 4])
    for call in (lambda of: kv.push("dense", of), lambda of: kv.pull("dense", of), lambda of: kv.pushpull("dense", torch.ones(3), of)):
        with check.assertRaisesRegex(ValueError, "put off to negate the tensor"):
            call(torch._neg_view(torch.ones(3)))
    half = kv.zeros(300_000, torch.bfloat16)
    kv.init("half", half)
    half.torch()[:] = 0.5
    before = kv.stats()["copied_bytes"]
    check.assertEqual(kv.pushpull("half", half.torch()).unique().tolist(), [1])
    check.assertEqual(kv.stats()["copied_bytes"], before, "it lies in memory of the store")


def stopped():
    """A worker is lost in the middle; the other one says who it was, within seconds."""
    kv = tensorwire.kv.create("dist_sync", timeout=30)
    kv.init("w", np.zeros(10))
    victim, how = int(sys.argv[2]), sys.argv[3]
    start = time.monotonic()
    try:
        kv.barrier()
        start = time.monotonic()
        if kv.rank == victim:
            if how == "raises":
                raise ValueError("the data are spoiled")
            os.kill(os.getpid(), signal.SIGKILL)
        kv.push("w", np.zeros(10))
        kv.pull("w")
    except tensorwire.kv.StoreError as error:
        print(f"{time.monotonic() - start:.1f} s: {error}", flush=True)
        os._exit(3)


def elastic():
    """The others go on without a worker that is lost."""
    kv = tensorwire.kv.create("dist_sync", elastic=True, timeout=20)
    kv.init("w", np.zeros(10))
    kv.barrier()
    if kv.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kv.push("w", np.ones(10))
    check.assertEqual(kv.pull("w").numpy()[0], 1)
    print("goes on", flush=True)


def interrupted():
    """Ctrl-C ends a wait."""
    # a shell that runs tests in the background has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    is_raised = Path(sys.argv[2]) / "raised"
    kv = tensorwire.kv.create("dist_sync", timeout=30)
    if kv.rank == 1:
        start = time.monotonic()
        with check.assertRaises(KeyboardInterrupt):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            kv.barrier()
        check.assertLess(time.monotonic() - start, 10)
        is_raised.touch()
    while not is_raised.exists():
        time.sleep(0.01)
    kv.barrier()


def shared_by_threads():
    """A call waits for another thread's no longer than it may, and Ctrl-C ends that wait."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    is_done = Path(sys.argv[2]) / "done"
    kv = tensorwire.kv.create("dist_sync", timeout=50)
    if kv.rank == 1:
        while not is_done.exists():
            time.sleep(0.01)
        kv.barrier()
        return
    waiting = threading.Thread(target=kv.barrier)
    waiting.start()
    said = ""
    while "another thread" not in said:
        try:
            kv._store.stats(0.01)
        except tensorwire.kv.StoreError as error:
            said = str(error)
    with check.assertRaises(KeyboardInterrupt):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        kv.empty(3)
    check.assertTrue(waiting.is_alive(), "the other call goes on")
    is_done.touch()
    waiting.join()
    kv.barrier()


def led_on():
    """The process that leads waits for the others no longer than it may, and leads them on."""
    folder = Path(sys.argv[2])
    kv = tensorwire.kv.create("dist_sync", timeout=15)
    if kv.rank == 0:
        with check.assertRaisesRegex(tensorwire.kv.StoreError, r"waited \d+ s for the other workers to close the store"):
            kv.close()
        (folder / "waited").touch()
    while not (folder / "waited").exists():
        time.sleep(0.01)
    kv.close()
    (folder / str(kv.rank)).touch()
    while not (folder / "1").exists():
        time.sleep(0.01)


def forked():
    """A fork, as a loader of data is one, cannot use the store, and ends without a word to others."""
    kv = tensorwire.kv.create("dist_sync", timeout=20)
    kv.init("w", np.zeros(3))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (kv.barrier, kv.stats, lambda: kv.push("w", np.ones(3)), lambda: kv.pull("w"), lambda: kv.zeros(2)):
                with check.assertRaisesRegex(tensorwire.kv.StoreError, "a fork of the one that opened the store"):
                    call()
            kv.close()
            del kv, call
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    check.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
    kv.push("w", np.ones(3))
    check.assertEqual(kv.pull("w").numpy().tolist(), [2] * 3)


def tracked():
    """What MXNet's users run: servers and the scheduler run the same script."""
    kv = tensorwire.kv.create("dist_sync", timeout=20)
    check.assertEqual(os.environ["DMLC_ROLE"], "worker")
    kv.init(1, np.zeros(4))
    kv.push(1, np.ones(4))
    check.assertEqual(kv.pull(1).numpy().tolist(), [kv.num_workers] * 4)


def differing():
    """Workers that want different stores."""
    tensorwire.kv.create("dist_sync", big_elements=1000 + int(os.environ["RANK"]), timeout=20)


class Jobs(unittest.TestCase):
    """Processes that share a store."""

    def job(self, function, *arguments, runner=("tensorwire.kv", "--workers", "2"), status=0):
        """Runs a function of this file in two workers; returns what they said."""
        command = [sys.executable, "-m", *runner, __file__, function.__name__, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_values_are_shared(self):
        with tempfile.TemporaryDirectory() as folder:
            self.job(shared, folder)

    def test_nobody_is_further_ahead_than_a_bound(self):
        self.job(bounded)

    def test_pytorch_and_torchrun(self):
        self.job(torch_tensors, runner=("torch.distributed.run", "--nproc-per-node", "2"))

    def test_a_lost_worker_is_named(self):
        for victim, how, status, words in [
            (1, "dies", 137, r"worker 1 \(rank 1, pid \d+\) failed: its process ended"),
            (0, "dies", 137, r"the process that leads the store \(rank 0, or the scheduler\) is gone"),
            (1, "raises", 1, r"worker 1 \(rank 1, pid \d+\) failed: ValueError: the data are spoiled"),
            (0, "raises", 1, r"worker 0 \(rank 0, pid \d+\) failed: ValueError: the data are spoiled"),
        ]:
            with self.subTest(victim=victim, how=how):
                start = time.monotonic()
                runner = ("tensorwire.kv", "--workers", "2")
                command = [sys.executable, "-m", *runner, __file__, "stopped", str(victim), how]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                said = done.stdout + done.stderr
                self.assertRegex(said, words)
                self.assertLess(float(done.stdout.split(" s: ")[0]), 5, said)
                self.assertLess(time.monotonic() - start, 20)

    def test_an_elastic_store_goes_on(self):
        self.assertIn("goes on", self.job(elastic, status=137))

    def test_ctrl_c_ends_a_wait(self):
        with tempfile.TemporaryDirectory() as folder:
            self.job(interrupted, folder)

    def test_threads_wait_for_each_other_no_longer_than_they_may(self):
        with tempfile.TemporaryDirectory() as folder:
            self.job(shared_by_threads, folder)

    def test_who_leads_waits_for_the_others_no_longer_than_it_may(self):
        with tempfile.TemporaryDirectory() as folder:
            self.job(led_on, folder)

    def test_a_fork_cannot_use_the_store_and_ends(self):
        self.job(forked)

    def test_all_ask_for_the_same(self):
        said = self.job(differing, status=1)
        self.assertIn("all must ask for the same", said)

    def test_the_example_learns(self):
        example = Path(__file__).parents[2] / "examples/python/store.py"
        command = [sys.executable, "-m", "tensorwire.kv", "--workers", "2", str(example)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(2):
            self.assertIn(f"worker {rank} of 2: 100% right, 0 bytes copied", done.stdout)

    def test_a_tracker_of_mxnet_starts_all(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        place = {
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(port),
        }
        processes = []
        for role in ["scheduler", "server", "worker", "worker"]:
            environment = {**os.environ, **place, "DMLC_ROLE": role}
            command = [sys.executable, __file__, "tracked"]
            processes.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            )
        for process in processes:
            _, said = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 0, said)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
