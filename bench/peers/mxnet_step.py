"""MXNet's side of the comparison of training steps: gluon's Trainer over `dist_sync`, whose servers update what
workers push gradients of; ps-lite over ZeroMQ and TCP. Models are hybridized, their memory planned once.

This process starts a scheduler, servers and workers on this machine, over loopback, and watches them; they end
with it. peer_step.py says what is timed and printed, step_models.py what is computed. The time is worker 0's:
`dist_sync` keeps the others in step. Knows nothing of tensorwire but its models.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from mxnet_kvstore import job, watch
from peer_step import LEARNING_RATE, MOMENTUM, options, print_row, time_steps
from step_models import AUXILIARY, MODELS, PAIR, RECURRENT, STEPS, classes_of, samples_of

# of each process; read when MXNet is imported
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MXNET_CPU_WORKER_NTHREADS": "1",
    "MXNET_KVSTORE_REDUCTION_NTHREADS": "1",
}


class Layers:
    """As step_models.py wants them, of symbols; images are [n, c, h, w]."""

    def __init__(self, sym: Any) -> None:
        self.sym = sym

    def conv(
        self, name: str, x: Any, channels: int, kernel: PAIR, stride: int, same: bool, norm: str | None, relu: bool = True
    ) -> Any:
        y = self.sym.Convolution(
            x,
            name=name,
            num_filter=channels,
            kernel=kernel,
            stride=(stride, stride),
            pad=tuple(side // 2 for side in kernel) if same else (0, 0),
            no_bias=norm is not None,
        )
        if norm:
            y = self.sym.BatchNorm(y, name=f"{name}_{norm}", eps=1e-3, fix_gamma=norm == "shift")
        return self.sym.relu(y) if relu else y

    def relu(self, x: Any) -> Any:
        return self.sym.relu(x)

    def dense(self, name: str, x: Any, outputs: int, relu: bool) -> Any:
        y = self.sym.FullyConnected(x, name=name, num_hidden=outputs)
        return self.sym.relu(y) if relu else y

    def max_pool(self, x: Any, kernel: int, stride: int, same: bool = False) -> Any:
        pad = (kernel // 2, kernel // 2) if same else (0, 0)
        return self.sym.Pooling(x, pool_type="max", kernel=(kernel, kernel), stride=(stride, stride), pad=pad)

    def avg_pool(self, x: Any, kernel: int, stride: int, same: bool) -> Any:
        pad = kernel // 2 if same else 0
        of = {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (pad, pad)}
        return self.sym.Pooling(x, pool_type="avg", count_include_pad=False, **of)

    def mean(self, x: Any) -> Any:
        return self.flatten(self.sym.Pooling(x, pool_type="avg", global_pool=True, kernel=(1, 1)))

    def concat(self, xs: list[Any]) -> Any:
        return self.sym.concat(*xs, dim=1)

    def flatten(self, x: Any) -> Any:
        return self.sym.flatten(x)

    def dropout(self, x: Any, rate: float) -> Any:
        return self.sym.Dropout(x, p=rate)

    def recurrent(self, x: Any, cell: str) -> Any:
        """The products of all steps with the input at once, each step's with the state. MXNet's own operator for
        it, `RNN`, crashes in training on a CPU (1.9.1)."""
        sym, hidden = self.sym, 1024
        width = RECURRENT[cell] * hidden
        weight = sym.var("state_weight")
        given = sym.FullyConnected(x, name="gates", num_hidden=width, flatten=False)
        given = sym.split(given, num_outputs=STEPS, axis=0, squeeze_axis=True)
        state = memory = sym.zeros_like(sym.slice_axis(given[0], axis=1, begin=0, end=hidden))
        for of_step in given:
            of_state = sym.FullyConnected(state, weight=weight, num_hidden=width, no_bias=True)
            if cell == "lstm":
                i, f, c, o = sym.split(of_step + of_state, num_outputs=4, axis=1)
                memory = sym.sigmoid(f) * memory + sym.sigmoid(i) * sym.tanh(c)
                state = sym.sigmoid(o) * sym.tanh(memory)
            else:
                parts = (sym.split(of, num_outputs=3, axis=1) for of in (of_step, of_state))
                (r, z, n), (hr, hz, hn) = parts
                new = sym.tanh(n + sym.sigmoid(r + hr) * hn)
                update = sym.sigmoid(z + hz)
                state = new + update * (state - new)
        return state


def build(mx: Any, model: str) -> Any:
    samples = mx.sym.var("input", dtype="float32")
    outputs = MODELS[model](Layers(mx.sym), samples)
    outputs = mx.sym.Group(list(outputs)) if isinstance(outputs, tuple) else outputs
    return mx.gluon.SymbolBlock(outputs, samples)


def work(given: Any) -> None:
    """A worker's process, or the only one."""
    import mxnet as mx  # it joins the job when it is imported

    net = build(mx, given.model)
    variables = net.collect_params()
    for name, variable in variables.items():
        scale = mx.init.One() if name.endswith("_gamma") else mx.init.Zero()
        variable.initialize(mx.init.Xavier() if name.endswith("weight") else scale)
        if name.endswith("_shift_gamma"):
            variable.grad_req = "null"  # fixed, and so nothing to exchange
    net.hybridize(static_alloc=True, static_shape=True)
    shape = samples_of(given.model, given.batch)
    if len(shape) == 4:
        shape = (shape[0], shape[3], *shape[1:3])
    samples = mx.nd.random.uniform(shape=shape)
    labels = mx.nd.random.randint(0, classes_of(given.model), (given.batch,)).astype("float32")
    # the first pass is one of training: one of inference would leave convolutions' weights in an order of oneDNN's,
    # which servers that are given them do not take
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    together = given.workers > 1
    trainer = mx.gluon.Trainer(
        variables,
        "sgd",
        {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM},
        kvstore="dist_sync" if together else None,
    )

    def step() -> None:
        with mx.autograd.record():
            outputs = net(samples)
            if isinstance(outputs, (list, tuple)):
                loss = loss_of(outputs[0], labels) + AUXILIARY * loss_of(outputs[1], labels)
            else:
                loss = loss_of(outputs, labels)
        loss.backward()
        trainer.step(given.batch)
        loss.asnumpy()
        mx.nd.waitall()

    found = time_steps(step, given.steps)
    learned = [one for one in variables.values() if one.grad_req != "null"]
    if not together or trainer._kvstore.rank == 0:
        parameters = sum(variable.data().size for variable in learned)
        print_row("mxnet-dist-sync", mx.__version__, given, parameters, found)
    if together:
        trainer._kvstore._barrier()


def main() -> None:
    parser = options(__doc__, servers=True)
    parser.add_argument("--work", action="store_true", help="be a worker")
    given = parser.parse_args()
    if given.work:
        return work(given)
    os.environ.update(ONE_THREAD)
    join = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--work"]
    if given.workers == 1:
        os.execv(join[0], join)  # nobody to wait for
    with job(given.workers, given.servers, join) as members:
        watch(members, given.deadline)
    return None


if __name__ == "__main__":
    main()
