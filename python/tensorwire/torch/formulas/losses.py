"""Losses, with weights and reductions of all kinds."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorwire.torch.formulas._makers import of
from tensorwire.torch.formulas.places import within


def _reduced(each: Tensor, reduction: int) -> Tensor:
    """Returns what is asked for of a loss of each element: itself, its mean, its sum."""
    return (each, each.mean(), each.sum())[reduction] if reduction else each


def _is_weighed(target: Tensor, weight: Tensor | None, reduction: int, **_: Any) -> bool:
    return weight is not None or reduction != 1 or target.is_floating_point()


def _of_classes(
    likelihood: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, smoothing: float = 0.0
) -> Tensor:
    """Returns the cross-entropy of logarithms of shares with classes second, [n, c, …], or first where there is no batch."""
    axis = 1 if likelihood.dim() > 1 else 0
    classes = likelihood.shape[axis]
    aside = [-1 if place == axis else 1 for place in range(likelihood.dim())]
    weights = torch.ones(classes, dtype=likelihood.dtype) if weight is None else weight
    weights = weights.reshape(aside)
    if target.is_floating_point():
        target = target * (1 - smoothing) + smoothing / classes
        each = -(target * likelihood * weights).sum(axis)
        return (each, each.sum() / (each.numel() if each.dim() else 1), each.sum())[reduction]
    numbers = torch.arange(classes).reshape(aside)
    counts = (target != ignored).unsqueeze(axis)
    target = within(torch.where(target == ignored, 0, target), classes)
    at = (target.unsqueeze(axis) == numbers) & counts
    of_target = (at.to(likelihood.dtype) * weights).sum(axis)
    each = -torch.where(at, likelihood * weights, 0.0).sum(axis)
    if smoothing:
        spread = -(likelihood * weights * counts.to(likelihood.dtype)).sum(axis)
        each = each * (1 - smoothing) + spread * (smoothing / classes)
    if reduction == 0:
        return each
    return each.sum() / of_target.sum() if reduction == 1 else each.sum()


@of("aten.cross_entropy_loss.default", where=_is_weighed)
def _cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    likelihood = F.log_softmax(x, 1 if x.dim() > 1 else 0)
    return _of_classes(likelihood, target, weight, reduction, ignore_index, label_smoothing)


@of(
    "aten.nll_loss_nd.default",
    where=lambda weight, reduction, made_by, **_: weight is not None or reduction != 1 or made_by != "aten.log_softmax.int",
)
def _nll(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100) -> Tensor:
    return _of_classes(x, target, weight, reduction, ignore_index)


def _log(x: Tensor) -> Tensor:
    """Returns the logarithm, as PyTorch's loss bounds it: at least -100, with no slope at 0."""
    nothing = x <= 0
    return torch.where(nothing, -100.0, torch.where(nothing, 1.0, x).log().clamp(min=-100))


@of("aten.binary_cross_entropy.default")
def _binary(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    each = -(target * _log(x) + (1 - target) * _log(1 - x))
    return _reduced(each if weight is None else each * weight, reduction)


@of(
    "aten.binary_cross_entropy_with_logits.default",
    where=lambda weight, pos_weight, reduction, **_: weight is not None or pos_weight is not None or reduction != 1,
)
def _binary_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    soft = F.softplus(-x)
    if pos_weight is not None:
        soft = (1 + (pos_weight - 1) * target) * soft
    each = (1 - target) * x + soft
    return _reduced(each if weight is None else each * weight, reduction)


@of("aten.soft_margin_loss.default")
def _soft_margin(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _reduced(F.softplus(-target * x), reduction)
