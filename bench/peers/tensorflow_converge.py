"""TensorFlow's side of the comparison of learning: parameter servers over gRPC as in tensorflow_step.py, which average
the workers' gradients and update; one graph holds both replicas. peer_converge.py says what is learned and written,
converge_models.py what is computed.

This process is worker 0 and the client, which feeds the samples; it starts the others on this machine, over loopback,
and they end with it. Knows nothing of tensorwire but its models.
"""

from __future__ import annotations

import faulthandler
import tempfile
from typing import Any

# first: it sets what TensorFlow reads when it is imported
from tensorflow_step import config, lead, membership, servers_or, tf, v1

from converge_models import EPSILON as NORM_EPSILON
from converge_models import HEADS, MODELS, PIXELS, WIDTH, Constant, First, Uniform
from peer_converge import BETA1, BETA2, EPSILON, MOMENTUM, TASKS, VOCABULARY, WINDOW, WORKERS
from peer_converge import Log, batches, options, save, write

SERVERS = 2


class Layers:
    """As converge_models.py wants them, of one replica. Each variable is read once."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.read: list[Any] = []

    def variable(self, name: str, shape: tuple[int, ...], first: First) -> Any:
        if isinstance(first, Uniform):
            initializer = v1.random_uniform_initializer(-first.limit, first.limit)
        elif isinstance(first, Constant):
            initializer = v1.constant_initializer(first.value)
        else:
            initializer = v1.random_normal_initializer(0.0, first.deviation)
        variable = v1.get_variable(name, shape, initializer=initializer, use_resource=True)
        with tf.device(variable.device):
            read = variable.read_value()
        self.variables.append(variable)
        self.read.append(read)
        return read

    def linear(self, x: Any, outputs: int, weight: Any, bias: Any | None) -> Any:
        y = tf.matmul(x, weight, transpose_b=True)
        return y if bias is None else tf.nn.bias_add(y, bias)

    def relu(self, x: Any) -> Any:
        return tf.nn.relu(x)

    def gelu(self, x: Any) -> Any:
        return tf.nn.gelu(x, approximate=True)

    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        mean, variance = tf.nn.moments(x, [1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, NORM_EPSILON)

    def embed(self, tokens: Any, table: Any, places: Any) -> Any:
        # a gather's gradient would be computed where the table is, by a server
        rows = tf.matmul(tf.one_hot(tf.reshape(tokens, [-1]), VOCABULARY), table)
        return tf.reshape(tf.reshape(rows, [-1, WINDOW, WIDTH]) + places[:WINDOW], [-1, WIDTH])

    def attend(self, x: Any) -> Any:
        size = WIDTH // HEADS
        parts = tf.transpose(tf.reshape(x, [-1, WINDOW, 3, HEADS, size]), [2, 0, 3, 1, 4])
        query, key, value = tf.unstack(parts, 3)
        later = 1 - tf.linalg.band_part(tf.ones([WINDOW, WINDOW]), -1, 0)
        scores = tf.matmul(query, key, transpose_b=True) / size**0.5 - 1e9 * later
        y = tf.matmul(tf.nn.softmax(scores), value)
        return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, WIDTH])


class Replica:
    def __init__(self, task: Any) -> None:
        self.net = Layers()
        shape, kind = ([None, WINDOW], tf.int32) if task.data == "kjv" else ([None, PIXELS], tf.float32)
        self.input, self.labels = v1.placeholder(kind, shape), v1.placeholder(tf.int32, [None])
        self.logits = MODELS[task.model](self.net, self.input)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(self.labels, self.logits)
        self.loss = tf.reduce_mean(losses)
        self.gradients = tf.gradients(self.loss, self.net.read)


def train(given: Any, target: str, folder: str) -> None:
    task = TASKS[given.task]
    replicas = []
    for rank in range(WORKERS):
        place = servers_or(f"/job:worker/task:{rank}", SERVERS)
        with v1.device(place), v1.variable_scope("model", reuse=v1.AUTO_REUSE):
            replicas.append(Replica(task))
    variables = replicas[0].net.variables
    assert all("/job:ps" in variable.device for variable in variables)
    means = []
    for variable, *gradients in zip(variables, *(replica.gradients for replica in replicas), strict=True):
        with tf.device(variable.device):
            means.append((tf.add_n(gradients) / WORKERS, variable))
    rate = v1.placeholder(tf.float32, [])
    if task.optimizer == "momentum":
        optimizer = v1.train.MomentumOptimizer(rate, MOMENTUM)
    else:
        optimizer = v1.train.AdamOptimizer(rate, BETA1, BETA2, EPSILON)
    update = optimizer.apply_gradients(means)
    with v1.Session(target, config=config()) as session:
        session.run(v1.global_variables_initializer())
        logs = [Log(given) for _ in replicas]

        def logits_of(x: Any) -> Any:
            return session.run(replicas[0].logits, {replicas[0].input: x})

        taken = zip(*(batches(given, rank) for rank in range(WORKERS)), strict=True)
        for step, together in enumerate(taken, 1):
            feed = {rate: task.rate_of(step)}
            for replica, (x, labels) in zip(replicas, together, strict=True):
                feed |= {replica.input: x, replica.labels: labels.reshape(-1)}
            losses, _ = session.run([[replica.loss for replica in replicas], update], feed)
            for log, loss in zip(logs, losses, strict=True):
                log.step(loss)
            if logs[0].is_evaluated():
                logs[0].evaluate(logits_of)
    for rank, log in enumerate(logs):
        save(log, folder, rank)


def run(given: Any, target: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with tf.Graph().as_default():
            v1.set_random_seed(given.seed)
            train(given, target, folder)
        write(given, folder)


def main() -> None:
    parser = options(__doc__)
    membership(parser)
    given = parser.parse_args()
    # Nothing that waits inside of TensorFlow can be interrupted.
    faulthandler.dump_traceback_later(given.deadline, exit=True)
    lead(given, SERVERS, WORKERS, lambda target: run(given, target))


if __name__ == "__main__":
    main()
