"""TensorFlow's side of the comparison of training steps: parameter servers as Xue et al. have them (section 5.2),
TensorFlow's own graph partitions over gRPC. Variables go round robin to servers (`replica_device_setter`), which
average the workers' gradients and update; one graph holds all replicas, so that a step is one `session.run`.

This process is worker 0 and the client; it starts the others on this machine, over loopback, or where peer_hosts.py
says, and they end with it.
peer_step.py says what is timed and printed, step_models.py what is computed. Keras 3 has no layers for such a
graph: they are made of TensorFlow's operators here. Knows nothing of tensorwire but its models.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

# read when TensorFlow is imported
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as fast as it can, also where that is not its choice
os.environ["OMP_NUM_THREADS"] = "1"

import tensorflow as tf

from peer_hosts import host_of, start
from peer_step import LEARNING_RATE, MOMENTUM, free_ports, options, print_row, time_steps
from step_models import AUXILIARY, MODELS, PAIR, RECURRENT, classes_of, samples_of

v1 = tf.compat.v1

class Layers:
    """As step_models.py wants them, of one replica; images are [n, h, w, c]. Each variable is read once."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.read: list[Any] = []

    def get(self, name: str, shape: list[int], limit: float = 0.0, first: Any = None) -> Any:
        variable = v1.get_variable(
            name,
            shape,
            initializer=first or v1.random_uniform_initializer(-limit, limit),
            use_resource=True,
        )
        with tf.device(variable.device):
            read = variable.read_value()
        self.variables.append(variable)
        self.read.append(read)
        return read

    def conv(
        self, name: str, x: Any, channels: int, kernel: PAIR, stride: int, same: bool, norm: str | None, relu: bool = True
    ) -> Any:
        inputs = x.shape[3]
        limit = (6 / (inputs * kernel[0] * kernel[1])) ** 0.5
        weight = self.get(f"{name}/weight", [*kernel, inputs, channels], limit)
        y = tf.nn.conv2d(x, weight, stride, "SAME" if same else "VALID")
        shift = self.get(f"{name}/shift" if norm else f"{name}/bias", [channels])
        if norm:
            ones = v1.ones_initializer()
            scale = self.get(f"{name}/scale", [channels], first=ones) if norm == "scale" else tf.ones([channels])
            y, _, _ = v1.nn.fused_batch_norm(y, scale, shift, epsilon=1e-3)
        else:
            y = tf.nn.bias_add(y, shift)
        return tf.nn.relu(y) if relu else y

    def relu(self, x: Any) -> Any:
        return tf.nn.relu(x)

    def dense(self, name: str, x: Any, outputs: int, relu: bool) -> Any:
        inputs = x.shape[1]
        weight = self.get(f"{name}/weight", [inputs, outputs], (6 / (inputs + outputs)) ** 0.5)
        y = tf.nn.bias_add(tf.matmul(x, weight), self.get(f"{name}/bias", [outputs]))
        return tf.nn.relu(y) if relu else y

    def max_pool(self, x: Any, kernel: int, stride: int, same: bool = False) -> Any:
        return tf.nn.max_pool2d(x, kernel, stride, "SAME" if same else "VALID")

    def avg_pool(self, x: Any, kernel: int, stride: int, same: bool) -> Any:
        return tf.nn.avg_pool2d(x, kernel, stride, "SAME" if same else "VALID")

    def mean(self, x: Any) -> Any:
        return tf.reduce_mean(x, [1, 2])

    def concat(self, xs: list[Any]) -> Any:
        return tf.concat(xs, 3)

    def flatten(self, x: Any) -> Any:
        return tf.reshape(x, [x.shape[0], -1])

    def dropout(self, x: Any, rate: float) -> Any:
        return tf.nn.dropout(x, rate)

    def recurrent(self, x: Any, cell: str) -> Any:
        """The products of all steps with the input at once, each step's with the state; a matrix a gate, as
        in Xue et al.'s table 2, put together in each step of training."""
        steps, batch, features = x.shape
        gates, hidden = RECURRENT[cell], 1024

        def together(part: str, shape: list[int], limit: float = 0.0) -> Any:
            found = [self.get(f"{cell}/gate{at}/{part}", shape, limit) for at in range(gates)]
            return tf.concat(found, len(shape) - 1)

        inputs = together("input", [features, hidden], (6 / (features + hidden)) ** 0.5)
        recurrent = together("recurrent", [hidden, hidden], hidden**-0.5)
        bias = together("bias", [hidden])
        given = tf.nn.bias_add(tf.matmul(tf.reshape(x, [steps * batch, features]), inputs), bias)
        given = tf.unstack(tf.reshape(given, [steps, batch, gates * hidden]))
        state = memory = tf.zeros([batch, hidden])
        for of_step in given:
            of_state = tf.matmul(state, recurrent)
            if cell == "lstm":
                i, f, c, o = tf.split(of_step + of_state, 4, 1)
                memory = tf.sigmoid(f) * memory + tf.sigmoid(i) * tf.tanh(c)
                state = tf.sigmoid(o) * tf.tanh(memory)
            else:
                (r, z, n), (hr, hz, hn) = (tf.split(of, 3, 1) for of in (of_step, of_state))
                new = tf.tanh(n + tf.sigmoid(r + hr) * hn)
                update = tf.sigmoid(z + hz)
                state = new + update * (state - new)
        return state


def config() -> Any:
    """For servers and the session: operators of a process one after the other, on one thread."""
    return v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


def replica(given: Any) -> tuple[Layers, Any, list[Any]]:
    """Its variables, its loss, and its gradients."""
    net = Layers()
    # outside of the model's names, by which a variable is known to be a server's
    with tf.name_scope("samples/"):
        samples = tf.Variable(
            tf.random.uniform(samples_of(given.model, given.batch)), trainable=False
        )
        labels = tf.Variable(
            tf.random.uniform([given.batch], maxval=classes_of(given.model), dtype=tf.int32),
            trainable=False,
        )
    outputs = MODELS[given.model](net, samples.read_value())
    heads = outputs if isinstance(outputs, tuple) else (outputs,)
    losses = [
        tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels.read_value(), logits))
        for logits in heads
    ]
    loss = losses[0] + AUXILIARY * losses[1] if len(losses) > 1 else losses[0]
    return net, loss, tf.gradients(loss, net.read)


def build(given: Any) -> tuple[Any, Any, int]:
    """What makes first values, what trains for a step, and the number of parameters."""
    replicas = []
    for rank in range(given.workers):
        device: Any = None
        if given.workers > 1:
            device = servers_or(f"/job:worker/task:{rank}", given.servers)
        with v1.device(device), v1.variable_scope("model", reuse=v1.AUTO_REUSE):
            replicas.append(replica(given))
    variables = replicas[0][0].variables
    means = []
    for variable, *gradients in zip(variables, *(gradients for _, _, gradients in replicas)):
        with tf.device(variable.device):
            mean = tf.add_n(gradients) / len(gradients) if len(gradients) > 1 else gradients[0]
        means.append((mean, variable))
    update = v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM).apply_gradients(means)
    with tf.control_dependencies([update]):
        trained = tf.group(*(loss for _, loss, _ in replicas))
    elsewhere = [made.name for made in (*variables, *v1.global_variables())
                 if given.workers > 1 and ("/job:ps" in made.device) != made.name.startswith("model/")]
    assert not elsewhere, f"on the wrong process: {elsewhere}"
    parameters = sum(variable.shape.num_elements() for variable in variables)
    return v1.global_variables_initializer(), trained, parameters


def servers_or(worker: str, servers: int) -> Any:
    """Puts what the model learns on servers, in turn, and all else on a worker."""
    setter = v1.train.replica_device_setter(ps_tasks=servers, worker_device=worker)

    def place(operation: Any) -> str:
        # made-up samples are variables, too, but nothing to share
        learned = operation.type != "VarHandleOp" or operation.name.startswith("model/")
        return str(setter(operation)) if learned else worker

    return place


def measure(given: Any, target: str) -> None:
    with tf.Graph().as_default():
        initialize, train, parameters = build(given)
        with v1.Session(target, config=config()) as session:
            session.run(initialize)
            found = time_steps(session.make_callable(train), given.steps)
    print_row("tensorflow-grpc", tf.__version__, given, parameters, found)


def serve(cluster: dict[str, list[str]], job: str, task: int) -> Any:
    """A server of TensorFlow, which cannot be stopped."""
    return tf.distribute.Server(
        cluster, job_name=job, task_index=task, protocol="grpc", config=config()
    )


def membership(parser: Any) -> None:
    """Options of the processes that `lead` starts."""
    parser.add_argument("--serve", nargs=2, metavar=("JOB", "TASK"), help="be a member of a job")
    parser.add_argument("--ps", help="addresses of all servers")
    parser.add_argument("--worker", help="addresses of all workers")


def lead(given: Any, servers: int, workers: int, run: Callable[[str], None]) -> None:
    """Calls `run` with the session's target, in worker 0; or serves, in a process that was started for it. Ends this
    process."""
    if given.serve:
        cluster = {"ps": given.ps.split(","), "worker": given.worker.split(",")}
        serve(cluster, given.serve[0], int(given.serve[1])).join()
    counts = {"ps": servers, "worker": workers}
    ports = iter(free_ports(servers + workers))
    cluster = {
        job: [f"{host_of(task, count)}:{next(ports)}" for task in range(count)]
        for job, count in counts.items()
    }
    with others(cluster):
        run(serve(cluster, "worker", 0).target)
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def others(cluster: dict[str, list[str]]) -> Iterator[None]:
    """All members but worker 0, each this command again. They end with the block, or with this process."""
    members = []
    try:
        for job, addresses in cluster.items():
            for task in range(len(addresses)):
                if (job, task) == ("worker", 0):
                    continue
                command = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
                command += ["--serve", job, str(task)]
                for name in cluster:
                    command += [f"--{name}", ",".join(cluster[name])]
                members.append(start(host_of(task, len(addresses)), command))
        yield
    finally:
        for member in members:
            member.kill()
            member.wait()


def main() -> None:
    parser = options(__doc__, servers=True)
    membership(parser)
    given = parser.parse_args()
    # Nothing that waits inside of TensorFlow can be interrupted.
    faulthandler.dump_traceback_later(given.deadline, exit=True)
    if given.workers == 1:
        return measure(given, "")
    return lead(given, given.servers, given.workers, lambda target: measure(given, target))


if __name__ == "__main__":
    main()
