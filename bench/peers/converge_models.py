"""mlp and gpt-mini for peers whose layers have their own names. A model is a function from `Layers` and a batch of
inputs to logits, a row for each label. It has the variables of tensorwire's model, to the parameter, and draws first
values in the same ranges. Knows no framework; `Layers` says what each has to bring.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from peer_converge import VOCABULARY

PIXELS, UNITS, DIGITS = 64, 2048, 10
LAYERS, HEADS, WIDTH, PLACES = 6, 6, 192, 128
EPSILON = 1e-5


class Uniform(NamedTuple):
    """From -limit to limit."""

    limit: float


class Normal(NamedTuple):
    deviation: float


class Constant(NamedTuple):
    value: float


ZEROS, ONES = Constant(0.0), Constant(1.0)
First = Uniform | Normal | Constant


class Layers(Protocol):
    """A framework's operators. Rows are of `[rows, width]`."""

    def variable(self, name: str, shape: tuple[int, ...], first: First) -> Any: ...

    def linear(self, x: Any, outputs: int, weight: Any, bias: Any | None) -> Any:
        """By a weight of [outputs, inputs]."""

    def relu(self, x: Any) -> Any: ...

    def gelu(self, x: Any) -> Any:
        """By the hyperbolic tangent, as GPT-2's."""

    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        """Of each row, with EPSILON."""

    def embed(self, tokens: Any, table: Any, places: Any) -> Any:
        """Tokens of [batch, WINDOW]: a row for each, with that of its place of PLACES added."""

    def attend(self, x: Any) -> Any:
        """Queries, keys and values side by side, [rows, 3 * WIDTH]: causal attention of HEADS, [rows, WIDTH]."""


def dense(net: Layers, name: str, x: Any, inputs: int, outputs: int, first: First) -> Any:
    weight = net.variable(f"{name}.weight", (outputs, inputs), first)
    return net.linear(x, outputs, weight, net.variable(f"{name}.bias", (outputs,), ZEROS))


def norm(net: Layers, name: str, x: Any) -> Any:
    shift = net.variable(f"{name}.bias", (WIDTH,), ZEROS)
    return net.norm(x, net.variable(f"{name}.weight", (WIDTH,), ONES), shift)


def mlp(net: Layers, x: Any) -> Any:
    for name, inputs in (("hidden1", PIXELS), ("hidden2", UNITS)):
        x = net.relu(dense(net, name, x, inputs, UNITS, Uniform((6 / inputs) ** 0.5)))
    return dense(net, "output", x, UNITS, DIGITS, Uniform((6 / (UNITS + DIGITS)) ** 0.5))


def gpt(net: Layers, tokens: Any) -> Any:
    wide, residual = Normal(0.02), Normal(0.02 / (2 * LAYERS) ** 0.5)
    table = net.variable("wte.weight", (VOCABULARY, WIDTH), wide)
    x = net.embed(tokens, table, net.variable("wpe.weight", (PLACES, WIDTH), wide))
    for layer in range(LAYERS):
        of = f"h.{layer}"
        y = dense(net, f"{of}.attn.c_attn", norm(net, f"{of}.ln_1", x), WIDTH, 3 * WIDTH, wide)
        x = x + dense(net, f"{of}.attn.c_proj", net.attend(y), WIDTH, WIDTH, residual)
        y = dense(net, f"{of}.mlp.c_fc", norm(net, f"{of}.ln_2", x), WIDTH, 4 * WIDTH, wide)
        x = x + dense(net, f"{of}.mlp.c_proj", net.gelu(y), 4 * WIDTH, WIDTH, residual)
    return net.linear(norm(net, "ln_f", x), VOCABULARY, table, None)


MODELS = {"mlp": mlp, "gpt-mini": gpt}
