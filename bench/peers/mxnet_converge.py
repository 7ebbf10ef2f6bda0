"""MXNet's side of the comparison of learning: gluon's Trainer over `dist_sync`, whose servers update what workers push
gradients of. peer_converge.py says what is learned and written, converge_models.py what is computed.

This process starts a scheduler, servers and workers on this machine, over loopback, and watches them; they end with
it. Knows nothing of tensorwire but its models.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

from converge_models import EPSILON as NORM_EPSILON
from converge_models import HEADS, MODELS, VOCABULARY, WIDTH, Constant, First, Uniform
from mxnet_kvstore import job, watch
from mxnet_step import ONE_THREAD
from peer_converge import BETA1, BETA2, EPSILON, MOMENTUM, TASKS, WINDOW, WORKERS, Log, batches, options, save, write

SERVERS = 2


class Layers:
    """As converge_models.py wants them, of symbols."""

    def __init__(self, mx: Any) -> None:
        self.mx, self.sym = mx, mx.sym
        self.first: dict[str, Any] = {}

    def variable(self, name: str, shape: tuple[int, ...], first: First) -> Any:
        init = self.mx.init
        if isinstance(first, Uniform):
            self.first[name] = init.Uniform(first.limit)
        elif isinstance(first, Constant):
            self.first[name] = init.Constant(first.value)
        else:
            self.first[name] = init.Normal(first.deviation)
        return self.sym.var(name, shape=shape, dtype="float32")

    def linear(self, x: Any, outputs: int, weight: Any, bias: Any | None) -> Any:
        more = {"no_bias": True} if bias is None else {"bias": bias}
        return self.sym.FullyConnected(x, weight=weight, num_hidden=outputs, **more)

    def relu(self, x: Any) -> Any:
        return self.sym.relu(x)

    def gelu(self, x: Any) -> Any:
        """MXNet's own is by the error function."""
        return 0.5 * x * (1 + self.sym.tanh((2 / 3.141592653589793) ** 0.5 * (x + 0.044715 * x * x * x)))

    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        return self.sym.LayerNorm(x, gamma=scale, beta=shift, axis=-1, eps=NORM_EPSILON)

    def embed(self, tokens: Any, table: Any, places: Any) -> Any:
        x = self.sym.Embedding(tokens, weight=table, input_dim=VOCABULARY, output_dim=WIDTH)
        places = self.sym.slice_axis(places, axis=0, begin=0, end=WINDOW)
        x = self.sym.broadcast_add(x, self.sym.expand_dims(places, axis=0))
        return self.sym.reshape(x, shape=(-1, WIDTH))

    def attend(self, x: Any) -> Any:
        sym, size = self.sym, WIDTH // HEADS
        x = sym.transpose(sym.reshape(x, shape=(-1, WINDOW, 3, HEADS, size)), axes=(2, 0, 3, 1, 4))
        parts = sym.split(x, num_outputs=3, axis=0, squeeze_axis=True)
        query, key, value = (sym.reshape(part, shape=(-1, WINDOW, size)) for part in parts)
        place = sym.arange(0, WINDOW)
        later = sym.broadcast_lesser(sym.expand_dims(place, axis=1), sym.expand_dims(place, axis=0))
        scores = sym.batch_dot(query, key, transpose_b=True) / size**0.5
        scores = sym.broadcast_add(scores, sym.expand_dims(later * -1e9, axis=0))
        y = sym.reshape(sym.batch_dot(sym.softmax(scores, axis=-1), value), shape=(-1, HEADS, WINDOW, size))
        return sym.reshape(sym.transpose(y, axes=(0, 2, 1, 3)), shape=(-1, WIDTH))


def work(given: Any) -> None:
    """A worker's process."""
    import mxnet as mx  # it joins the job when it is imported

    task, net = TASKS[given.task], Layers(mx)
    samples = mx.sym.var("input", dtype="float32")
    block = mx.gluon.SymbolBlock(MODELS[task.model](net, samples), samples)
    variables = block.collect_params()
    mx.random.seed(given.seed)
    for name, variable in variables.items():
        variable.initialize(net.first[name])
    block.hybridize(static_alloc=True)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    if task.optimizer == "momentum":
        how = {"momentum": MOMENTUM}
    else:
        how = {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
    name = "sgd" if task.optimizer == "momentum" else task.optimizer
    if task.warm_up:
        # servers update, and count the steps; the curve behind the warm-up is constant
        grows = {"base_lr": task.rate, "warmup_steps": task.warm_up}
        how["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(step=10**9, factor=1, **grows)
    store = mx.kv.create("dist_sync")
    trainer = mx.gluon.Trainer(variables, name, {"learning_rate": task.rate, **how}, kvstore=store)

    def logits_of(x: Any) -> Any:
        # a pass of inference would leave weights in an order of oneDNN's, which servers that are given them do not take
        with mx.autograd.train_mode():
            return block(mx.nd.array(x)).asnumpy()

    log = Log(given)
    for x, labels in batches(given, store.rank):
        with mx.autograd.record():
            loss = loss_of(block(mx.nd.array(x)), mx.nd.array(labels.reshape(-1)))
        loss.backward()
        # servers add what workers push
        trainer.step(WORKERS * labels.size)
        log.step(loss.mean().asscalar())
        if store.rank == 0 and log.is_evaluated():
            log.evaluate(logits_of)
    save(log, given.work, store.rank)
    store._barrier()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--work", metavar="FOLDER", help="be a worker")
    given = parser.parse_args()
    if given.work:
        return work(given)
    os.environ.update(ONE_THREAD)
    with tempfile.TemporaryDirectory() as folder:
        join = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--work", folder]
        with job(WORKERS, SERVERS, join) as members:
            watch(members, given.deadline)
        write(given, folder)
    return None


if __name__ == "__main__":
    main()
