"""tensorwire's models for peers whose layers have their own names: fully connected, and over images.

A model is a function from `Layers` and a batch of samples to logits, or to those and an auxiliary head's. It has
the variables of tensorwire's model, to the parameter. Knows no framework; `Layers` says what each has to bring.
"""

from __future__ import annotations

from typing import Any, Protocol

PAIR = "tuple[int, int]"
RECURRENT = {"lstm": 4, "gru": 3}  # gates
STEPS, FEATURES = 80, 1024  # of a sequence


class Layers(Protocol):
    """A framework's layers. `x` is a batch, in whatever order the framework computes fastest."""

    def conv(
        self, name: str, x: Any, channels: int, kernel: PAIR, stride: int, same: bool, norm: str | None, relu: bool = True
    ) -> Any:
        """Padded, so that a stride of 1 keeps the size, or not at all. `norm`: normalised by the batch, with a "shift" or with
        a "scale" and a shift, and no bias then."""

    def dense(self, name: str, x: Any, outputs: int, relu: bool) -> Any: ...

    def relu(self, x: Any) -> Any: ...

    def max_pool(self, x: Any, kernel: int, stride: int, same: bool = False) -> Any: ...

    def avg_pool(self, x: Any, kernel: int, stride: int, same: bool) -> Any:
        """What is padded does not count."""

    def mean(self, x: Any) -> Any:
        """Over a whole image: [batch, channels]."""

    def concat(self, xs: list[Any]) -> Any:
        """Of channels."""

    def flatten(self, x: Any) -> Any: ...

    def dropout(self, x: Any, rate: float) -> Any: ...

    def recurrent(self, x: Any, cell: str) -> Any:
        """The last state of one layer of 1024, from [steps, batch, features] on."""


def classes_of(model: str) -> int:
    return 1000 if model in (*RECURRENT, "resnet50") else 10


def samples_of(model: str, batch: int) -> tuple[int, ...]:
    """The shape of a batch, with images as [n, h, w, c]."""
    if model in RECURRENT:
        return STEPS, batch, FEATURES
    size = {"mlp": 28, "fcn5": 28, "inception-v3": 299}.get(model, 224)
    return batch, size, size, 1 if size == 28 else 3


def perceptron(net: Layers, x: Any, layers: int, width: int) -> Any:
    x = net.flatten(x)
    for at in range(1, layers + 1):
        x = net.dense(f"hidden{at}", x, width, relu=True)
    return net.dense("output", x, 10, relu=False)


def mlp(net: Layers, x: Any) -> Any:
    return perceptron(net, x, 2, 2048)


def fcn5(net: Layers, x: Any) -> Any:
    return perceptron(net, x, 4, 4096)


def recurrent(cell: str) -> Any:
    return lambda net, x: net.dense("output", net.recurrent(x, cell), 1000, relu=False)


def plain_conv(net: Layers, name: str, x: Any, channels: int, kernel: int, stride: int = 1, same: bool = True) -> Any:
    return net.conv(name, x, channels, (kernel, kernel), stride, same, norm=None)


def classifier(net: Layers, x: Any) -> Any:
    x = net.flatten(x)
    for name in ("fc6", "fc7"):
        x = net.dropout(net.dense(name, x, 4096, relu=True), 0.5)
    return net.dense("fc8", x, 10, relu=False)


def alexnet(net: Layers, x: Any) -> Any:
    y = net.max_pool(plain_conv(net, "conv1", x, 64, 11, stride=4, same=False), 3, 2)
    y = net.max_pool(plain_conv(net, "conv2", y, 192, 5), 3, 2)
    for name, channels in (("conv3", 384), ("conv4", 384), ("conv5", 256)):
        y = plain_conv(net, name, y, channels, 3)
    return classifier(net, net.max_pool(y, 3, 2))


def vgg16(net: Layers, x: Any) -> Any:
    for block, (convolutions, channels) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for at in range(1, convolutions + 1):
            x = plain_conv(net, f"conv{block}_{at}", x, channels, 3)
        x = net.max_pool(x, 2, 2)
    return classifier(net, x)


def inception_v3(net: Layers, x: Any) -> Any:
    def conv(name: str, x: Any, channels: int, kernel: Any, stride: int = 1, same: bool = True) -> Any:
        pair = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        return net.conv(name, x, channels, pair, stride, same, norm="shift")

    def chain(block: str, x: Any, *layers: Any) -> Any:
        for name, channels, kernel in layers:
            x = conv(f"{block}_{name}", x, channels, kernel)
        return x

    def pooled(block: str, x: Any, channels: int) -> Any:
        return conv(f"{block}_d1", net.avg_pool(x, 3, 1, same=True), channels, 1)

    y = conv("conv1a", x, 32, 3, 2, same=False)
    y = conv("conv2a", y, 32, 3, same=False)
    y = net.max_pool(conv("conv2b", y, 64, 3), 3, 2)
    y = conv("conv3b", y, 80, 1)
    y = net.max_pool(conv("conv4a", y, 192, 3, same=False), 3, 2)
    for n, channels in (("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)):
        a = chain(n, y, ("a1", 64, 1))
        b = chain(n, y, ("b1", 48, 1), ("b2", 64, 5))
        c = chain(n, y, ("c1", 64, 1), ("c2", 96, 3), ("c3", 96, 3))
        y = net.concat([a, b, c, pooled(n, y, channels)])
    n = "mixed6a"
    a = conv(f"{n}_a1", y, 384, 3, 2, same=False)
    b = conv(f"{n}_b3", chain(n, y, ("b1", 64, 1), ("b2", 96, 3)), 96, 3, 2, same=False)
    y = net.concat([a, b, net.max_pool(y, 3, 2)])
    for n, k in (("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)):
        a = chain(n, y, ("a1", 192, 1))
        b = chain(n, y, ("b1", k, 1), ("b2", k, (1, 7)), ("b3", 192, (7, 1)))
        c = [("c1", k, 1), ("c2", k, (7, 1)), ("c3", k, (1, 7)), ("c4", k, (7, 1)), ("c5", 192, (1, 7))]
        y = net.concat([a, b, chain(n, y, *c), pooled(n, y, 192)])
    side = conv("auxiliary_conv1", net.avg_pool(y, 5, 3, same=False), 128, 1)
    side = net.flatten(conv("auxiliary_conv2", side, 768, 5, same=False))
    side = net.dense("auxiliary_logits", side, 10, relu=False)
    n = "mixed7a"
    a = conv(f"{n}_a2", chain(n, y, ("a1", 192, 1)), 320, 3, 2, same=False)
    b = chain(n, y, ("b1", 192, 1), ("b2", 192, (1, 7)), ("b3", 192, (7, 1)))
    y = net.concat([a, conv(f"{n}_b4", b, 192, 3, 2, same=False), net.max_pool(y, 3, 2)])
    for n in ("mixed7b", "mixed7c"):
        a = chain(n, y, ("a1", 320, 1))
        b = chain(n, y, ("b1", 384, 1))
        b = [chain(n, b, ("b2", 384, (1, 3))), chain(n, b, ("b3", 384, (3, 1)))]
        c = chain(n, y, ("c1", 448, 1), ("c2", 384, 3))
        c = [chain(n, c, ("c3", 384, (1, 3))), chain(n, c, ("c4", 384, (3, 1)))]
        y = net.concat([a, *b, *c, pooled(n, y, 192)])
    return net.dense("logits", net.dropout(net.mean(y), 0.2), 10, relu=False), side


def resnet50(net: Layers, x: Any) -> Any:
    def conv(name: str, x: Any, channels: int, kernel: int, stride: int = 1, relu: bool = True) -> Any:
        return net.conv(name, x, channels, (kernel, kernel), stride, same=True, norm="scale", relu=relu)

    y = net.max_pool(conv("conv1", x, 64, 7, 2), 3, 2, same=True)
    for stage, (blocks, channels) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            stride = 2 if block == 1 and stage > 1 else 1
            short = conv(f"{name}_shortcut", y, 4 * channels, 1, stride, relu=False) if block == 1 else y
            z = conv(f"{name}_conv1", y, channels, 1)
            z = conv(f"{name}_conv2", z, channels, 3, stride)
            y = net.relu(conv(f"{name}_conv3", z, 4 * channels, 1, relu=False) + short)
    return net.dense("output", net.mean(y), 1000, relu=False)


MODELS = {
    "mlp": mlp,
    "fcn5": fcn5,
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru"),
    "alexnet": alexnet,
    "vgg16": vgg16,
    "inception-v3": inception_v3,
    "resnet50": resnet50,
}
# how much the auxiliary head counts in the loss
AUXILIARY = 0.4
