"""tensorwire's models in PyTorch, over variables with tensorwire's names and layouts.

A model is a function from `Variables` and a batch to a loss. Images come as [n, h, w, c] and are taken as
channels_last; a fully connected layer behind them reads h, w, c in this order, as tensorwire's does.
Transformers are other people's modules (pytorch_transformers.py), which bring their own first values.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from pytorch_transformers import CHARACTERS, MODULES, Transformer

MASK64 = (1 << 64) - 1


class Variables:
    """What is learned, made on first use: uniform numbers in the ranges of tensorwire's initialisers."""

    def __init__(self, seed, vocabulary=CHARACTERS):
        self.seed, self.vocabulary = seed, vocabulary
        self.transformer = None
        self.generator = torch.Generator().manual_seed(seed)
        self.all = {}
        self.averages = {}
        self.step = 1
        self.exact_dropout = True

    def get(self, name, shape, limit=0.0, value=0.0):
        if name not in self.all:
            made = torch.full(shape, value) if limit == 0.0 else None
            if made is None:
                made = (torch.rand(shape, generator=self.generator) * 2 - 1) * limit
            if len(shape) == 4:
                made = made.contiguous(memory_format=torch.channels_last)
            self.all[name] = made.requires_grad_(True)
        return self.all[name]

    def of_transformer(self, model):
        if self.transformer is None:
            self.transformer = Transformer(model, self.seed, self.vocabulary)
            self.all = self.transformer.parameters
        return self.transformer

    def average(self, name, shape, value):
        self.averages.setdefault(name, torch.full(shape, value))


def he(fan_in):
    return math.sqrt(6 / fan_in)


def glorot(fan_in, fan_out):
    return math.sqrt(6 / (fan_in + fan_out))


def dense(v, name, x, outputs, limit):
    weight = v.get(f"{name}/weight", (outputs, x.shape[1]), limit)
    return F.linear(x, weight, v.get(f"{name}/bias", (outputs,)))


def dense_relu(v, name, x, outputs):
    return F.relu(dense(v, name, x, outputs, he(x.shape[1])), inplace=True)


def last(v, name, x, outputs):
    return dense(v, name, x, outputs, glorot(x.shape[1], outputs))


def conv(v, name, x, outputs, kernel, stride=1, padding=0, bias=True):
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    fan_in = x.shape[1] * kernel[0] * kernel[1]
    weight = v.get(f"{name}/weight", (outputs, x.shape[1], *kernel), he(fan_in))
    return F.conv2d(x, weight, v.get(f"{name}/bias", (outputs,)) if bias else None, stride, padding)


def conv_relu(v, *args, **kwargs):
    return F.relu(conv(v, *args, **kwargs), inplace=True)


def conv_norm(v, name, x, outputs, kernel, stride=1, padding=0, eps=1e-5, scaled=True):
    y = conv(v, name, x, outputs, kernel, stride, padding, bias=False)
    scale = v.get(f"{name}/scale", (outputs,), value=1.0) if scaled else torch.ones(outputs)
    shift = v.get(f"{name}/shift", (outputs,))
    v.average(f"{name}/mean", (outputs,), 0.0)
    v.average(f"{name}/variance", (outputs,), 1.0)
    # F.batch_norm refuses one value per channel
    return torch.batch_norm(y, scale, shift, None, None, True, 0.0, eps, False)


def images(batch):
    # a view: [n, h, w, c] is what channels_last means
    return batch["input"].permute(0, 3, 1, 2)


def flatten(x):
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


def mix(z):
    z = z ^ (z >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = z ^ (z >> np.uint64(27))
    z = z * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x0100000001B3) & MASK64
    return value


def dropout(v, name, x, rate, seed):
    """tensorwire's: which elements go is a hash of the node's name, the seed, the step and the element."""
    if not v.exact_dropout:
        return F.dropout(x, rate)
    key = np.uint64(fnv1a(f"replica0/{name}/dropout") ^ seed)
    with np.errstate(over="ignore"):
        start = mix(key ^ (np.uint64(v.step) * np.uint64(0x9E3779B97F4A7C15)))
        bits = mix(start + np.arange(x.numel(), dtype=np.uint64))
    kept = torch.from_numpy(bits >= np.uint64(int(rate * 2**64))).reshape(x.shape)
    return x * kept / (1 - rate)


def perceptron(v, x, layers, width):
    x = x.reshape(x.shape[0], -1)
    for name in layers:
        x = dense_relu(v, name, x, width)
    return last(v, "output", x, 10)


def mlp(v, batch, _):
    return perceptron(v, batch["input"], ["hidden1", "hidden2"], 2048)


def fcn5(v, batch, _):
    return perceptron(v, batch["input"], [f"hidden{i}" for i in (1, 2, 3, 4)], 4096)


def alexnet(v, batch, seed):
    y = conv_relu(v, "conv1", images(batch), 64, 11, 4)
    y = F.max_pool2d(y, 3, 2)
    y = conv_relu(v, "conv2", y, 192, 5, 1, 2)
    y = F.max_pool2d(y, 3, 2)
    y = conv_relu(v, "conv3", y, 384, 3, 1, 1)
    y = conv_relu(v, "conv4", y, 384, 3, 1, 1)
    y = conv_relu(v, "conv5", y, 256, 3, 1, 1)
    y = flatten(F.max_pool2d(y, 3, 2))
    for name in ("fc6", "fc7"):
        y = dropout(v, name, dense_relu(v, name, y, 4096), 0.5, seed)
    return last(v, "fc8", y, 10)


def vgg16(v, batch, seed):
    y = images(batch)
    for block, (convolutions, channels) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for at in range(1, convolutions + 1):
            y = conv_relu(v, f"conv{block}_{at}", y, channels, 3, 1, 1)
        y = F.max_pool2d(y, 2, 2)
    y = flatten(y)
    for name in ("fc6", "fc7"):
        y = dropout(v, name, dense_relu(v, name, y, 4096), 0.5, seed)
    return last(v, "fc8", y, 10)


def resnet50(v, batch, _):
    y = F.relu(conv_norm(v, "conv1", images(batch), 64, 7, 2, 3), inplace=True)
    y = F.max_pool2d(y, 3, 2, 1)
    for stage, (blocks, channels) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        for block in range(1, blocks + 1):
            name = f"stage{stage}/block{block}"
            stride = 2 if block == 1 and stage > 1 else 1
            short = conv_norm(v, f"{name}/shortcut", y, 4 * channels, 1, stride) if block == 1 else y
            y = F.relu(conv_norm(v, f"{name}/conv1", y, channels, 1), inplace=True)
            y = F.relu(conv_norm(v, f"{name}/conv2", y, channels, 3, stride, 1), inplace=True)
            y = F.relu(conv_norm(v, f"{name}/conv3", y, 4 * channels, 1) + short, inplace=True)
    return last(v, "output", flatten(y.mean((2, 3), keepdim=True)), 1000)


def same_max_pool(y):
    """3×3 by strides of 2, padded as TensorFlow's SAME."""
    pads = []
    for size in (y.shape[3], y.shape[2]):
        padding = max((-(-size // 2) - 1) * 2 + 3 - size, 0)
        pads += [padding // 2, padding - padding // 2]
    return F.max_pool2d(F.pad(y, pads, value=-math.inf), 3, 2)


def cifar(v, batch, _):
    norm = lambda y: F.local_response_norm(y, 9, alpha=0.001, beta=0.75, k=1.0)
    y = norm(same_max_pool(conv_relu(v, "conv1", images(batch), 64, 5, 1, 2)))
    y = same_max_pool(norm(conv_relu(v, "conv2", y, 64, 5, 1, 2)))
    y = flatten(y)
    for name, width in (("local3", 384), ("local4", 192)):
        y = dense_relu(v, name, y, width)
    return last(v, "softmax", y, 10)


def inception_v3(v, batch, seed):
    def c(name, x, channels, kernel, stride=1, padding="same"):
        if padding == "same" and stride == 1:
            k = kernel if isinstance(kernel, tuple) else (kernel, kernel)
            padding = (k[0] // 2, k[1] // 2)
        elif padding == "valid":
            padding = 0
        y = conv_norm(v, name, x, channels, kernel, stride, padding, eps=1e-3, scaled=False)
        return F.relu(y, inplace=True)

    def chain(name, x, layers):
        for layer, channels, kernel in layers:
            x = c(f"{name}/{layer}", x, channels, kernel)
        return x

    def pooled(name, x, channels):
        y = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        return c(f"{name}/d1", y, channels, 1)

    y = c("conv1a", images(batch), 32, 3, 2, "valid")
    y = c("conv2a", y, 32, 3, 1, "valid")
    y = F.max_pool2d(c("conv2b", y, 64, 3), 3, 2)
    y = c("conv3b", y, 80, 1)
    y = F.max_pool2d(c("conv4a", y, 192, 3, 1, "valid"), 3, 2)
    for n, p in (("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)):
        a = chain(n, y, [("a1", 64, 1)])
        b = chain(n, y, [("b1", 48, 1), ("b2", 64, 5)])
        d = chain(n, y, [("c1", 64, 1), ("c2", 96, 3), ("c3", 96, 3)])
        y = torch.cat([a, b, d, pooled(n, y, p)], 1)
    n = "mixed6a"
    a = c(f"{n}/a1", y, 384, 3, 2, "valid")
    b = c(f"{n}/b3", chain(n, y, [("b1", 64, 1), ("b2", 96, 3)]), 96, 3, 2, "valid")
    y = torch.cat([a, b, F.max_pool2d(y, 3, 2)], 1)
    for n, k in (("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)):
        a = chain(n, y, [("a1", 192, 1)])
        b = chain(n, y, [("b1", k, 1), ("b2", k, (1, 7)), ("b3", 192, (7, 1))])
        d = [("c1", k, 1), ("c2", k, (7, 1)), ("c3", k, (1, 7)), ("c4", k, (7, 1)), ("c5", 192, (1, 7))]
        y = torch.cat([a, b, chain(n, y, d), pooled(n, y, 192)], 1)
    side = c("auxiliary/conv1", F.avg_pool2d(y, 5, 3), 128, 1)
    side = last(v, "auxiliary/logits", flatten(c("auxiliary/conv2", side, 768, 5, 1, "valid")), 10)
    n = "mixed7a"
    a = c(f"{n}/a2", c(f"{n}/a1", y, 192, 1), 320, 3, 2, "valid")
    b = chain(n, y, [("b1", 192, 1), ("b2", 192, (1, 7)), ("b3", 192, (7, 1))])
    y = torch.cat([a, c(f"{n}/b4", b, 192, 3, 2, "valid"), F.max_pool2d(y, 3, 2)], 1)
    for n in ("mixed7b", "mixed7c"):
        a = chain(n, y, [("a1", 320, 1)])
        b = chain(n, y, [("b1", 384, 1)])
        b = [chain(n, b, [("b2", 384, (1, 3))]), chain(n, b, [("b3", 384, (3, 1))])]
        d = chain(n, y, [("c1", 448, 1), ("c2", 384, 3)])
        d = [chain(n, d, [("c3", 384, (1, 3))]), chain(n, d, [("c4", 384, (3, 1))])]
        y = torch.cat([a, *b, *d, pooled(n, y, 192)], 1)
    y = dropout(v, "pool8", flatten(y.mean((2, 3), keepdim=True)), 0.2, seed)
    return last(v, "logits", y, 10), side


# a cell's gates in the order of PyTorch's, and what runs it
CELLS = {
    "lstm": (("input", "forget", "cell", "output"), torch._VF.lstm),
    "gru": (("reset", "update", "new"), torch._VF.gru),
}


def recurrent(v, name, cell, x, state, active=None):
    """A layer over sequences of one length, or over packed ones: `active` says how many are not over at each step."""
    gates, layer = CELLS[cell]
    hidden = state[0].shape[-1]
    parts = {"input": [], "recurrent": [], "bias": []}
    for gate in gates:
        at = f"{name}/{gate}"
        parts["input"].append(v.get(f"{at}/input", (hidden, x.shape[-1]), glorot(x.shape[-1], hidden)))
        parts["recurrent"].append(v.get(f"{at}/recurrent", (hidden, hidden), 1 / math.sqrt(hidden)))
        first = 1.0 if gate == "forget" else 0.0
        parts["bias"].append(v.get(f"{at}/bias", (hidden,), value=first))
    weights = [torch.cat(parts[of]) for of in ("input", "recurrent", "bias")]
    # one bias a gate: the second of PyTorch's two is nothing
    weights.append(torch.zeros_like(weights[2]))
    state = tuple(state) if cell == "lstm" else state[0]
    if active is None:
        return layer(x, state, weights, True, 1, 0.0, True, False, False)
    return layer(x, active.long().cpu(), state, weights, True, 1, 0.0, True, False)


def sequences(v, batch, cell):
    samples = batch["labels"].shape[0]
    x = batch["input"].reshape(-1, samples, batch["input"].shape[1])
    state = torch.zeros(1, samples, 1024)
    return last(v, "output", recurrent(v, cell, cell, x, [state, state])[1][0], 1000)


def lstm(v, batch, _):
    return sequences(v, batch, "lstm")


def gru(v, batch, _):
    return sequences(v, batch, "gru")


def embedding(v, name, words, width, limit=0.1):
    return F.embedding(words.long(), v.get(f"{name}/weight", (v.vocabulary, width), limit))


def seq2seq(v, batch, _):
    first = torch.zeros(1, batch["order"].shape[0], 256)
    read = embedding(v, "source", batch["source"], 128)
    _, *thought = recurrent(v, "encoder", "lstm", read, [first, first], batch["source_active"])
    thought = [state[:, batch["order"].long()] for state in thought]
    said = embedding(v, "target", batch["target"], 128)
    written = recurrent(v, "decoder", "lstm", said, thought, batch["target_active"])[0]
    return last(v, "output", written, v.vocabulary)


def sentence_embedding(v, batch, _):
    def vectors(side):
        # wider than tensorwire's: with those the loss stays where it is for hundreds of steps
        x = embedding(v, "words", batch[side], 128, limit=1.0)
        first = torch.zeros(1, batch["labels"].shape[0], 128)
        final = recurrent(v, "gru", "gru", x, [first], batch[f"{side}_active"])[1]
        return final[0, batch[f"{side}_rows"].long()]

    return vectors("anchor") @ vectors("positive").T / math.sqrt(128)


MODELS = {
    "mlp": mlp,
    "fcn5": fcn5,
    "alexnet": alexnet,
    "vgg16": vgg16,
    "inception-v3": inception_v3,
    "resnet50": resnet50,
    "cifar": cifar,
    "lstm": lstm,
    "gru": gru,
    "seq2seq": seq2seq,
    "sentence-embedding": sentence_embedding,
    **MODULES,
}


def loss_of(model, v, batch, seed):
    if model in MODULES:
        return v.of_transformer(model).loss(batch)
    logits = MODELS[model](v, batch, seed)
    labels = batch["labels"].long()
    if isinstance(logits, tuple):
        return F.cross_entropy(logits[0], labels) + 0.4 * F.cross_entropy(logits[1], labels)
    return F.cross_entropy(logits, labels)
