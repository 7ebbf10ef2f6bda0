"""Formulas of operators by others: what crate ``import`` has no row for, or not in this use, computed by what it has rows for.

PyTorch takes apart much by itself (``elu``, ``einsum``); what stands here it leaves whole, or takes apart into what is not known.
A formula takes what the operator takes. It is traced, so that matrices and places that depend on sizes alone become constants. Where
a formula costs more than an operator of our own would, its doc says so.
"""

from collections.abc import Callable
from typing import Any

from tensorwire.torch.formulas import images, layers, losses, places, sums
from tensorwire.torch.formulas._makers import MAKERS, Formula

__all__ = ["MAKERS", "Formula", "formula", "images", "layers", "losses", "places", "sums"]


def formula(operator: str, arguments: Callable[[], dict[str, Any]]) -> Formula | None:
    """Returns what computes this use of an operator by others; none if there is no such."""
    maker = MAKERS.get(operator) or MAKERS.get(operator.replace("_.", ".", 1))
    return maker(arguments()) if maker else None
