"""Sums, the largest, and functions of elements."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorwire.torch.formulas._makers import Formula, of


@of("aten.cumsum.default", where=lambda self, **_: self.is_floating_point())
def _cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A product with a triangle of ones: n times as many products as there are elements along the dimension."""
    if x.dim() == 0:
        return x
    size = x.shape[dim]
    rows, columns = torch.arange(size).unsqueeze(1), torch.arange(size)
    return (x.movedim(dim, -1) @ (rows <= columns).to(x.dtype)).movedim(-1, dim)


@of("aten.amin.default")
def _amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return -(-x).amax(dim, keepdim)


def _largest(sign: int) -> Formula:
    def computed(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        x = x * sign if sign < 0 else x
        most = x.amax(dim, keepdim)
        return -most if sign < 0 else most, x.argmax(dim, keepdim)

    return computed


#: Most that are chosen one after the other.
_CHOSEN = 16


@of("aten.topk.default", where=lambda self, k, largest, **_: k <= _CHOSEN and largest and self.is_floating_point())
def _top(x: Tensor, k: int, dim: int = -1, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """The largest, and again without it: as many passes as are wanted."""
    dim = dim % x.dim()
    at = torch.arange(x.shape[dim]).reshape([-1 if axis == dim else 1 for axis in range(x.dim())])
    # -inf is a place that was chosen, whatever else is that small
    left = x.clamp(min=torch.finfo(x.dtype).min)
    most, places = [], []
    for _ in range(k):
        most.append(x.amax(dim, keepdim=True))
        places.append(left.argmax(dim, keepdim=True))
        x, left = (torch.where(places[-1] == at, -math.inf, each) for each in (x, left))
    return torch.cat(most, dim), torch.cat(places, dim)


def _power(x: Tensor, by: float) -> Tensor:
    """Returns a power of what is not negative, with no slope at 0, as PyTorch has it for lengths and deviations."""
    nothing = x == 0
    some = torch.where(nothing, 1.0, x)
    return torch.where(nothing, 0.0, some.sqrt() if by == 0.5 else some.pow(by))


of("aten.max.dim")(_largest(1))
of("aten.min.dim")(_largest(-1))
of("aten.argmin.default")(lambda x, dim=None, keepdim=False: (-x).argmax(dim, keepdim))
of("aten.max.default")(lambda x: x.amax())
of("aten.min.default")(lambda x: -(-x).amax())
of("aten.std.correction")(
    lambda x, dim=None, correction=1, keepdim=False: _power(x.var(dim, correction=correction, keepdim=keepdim), 0.5)
)
of("aten.std.default")(lambda x, unbiased=True: _power(x.var(unbiased=unbiased), 0.5))
of("aten.std.dim")(
    lambda x, dim, unbiased=True, keepdim=False: _power(x.var(dim, unbiased=unbiased, keepdim=keepdim), 0.5)
)


@of("aten.var_mean.correction")
def _var_mean(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dim = list(range(x.dim())) if dim is None else dim
    return x.var(dim, correction=correction, keepdim=keepdim), x.mean(dim, keepdim=keepdim)


@of("aten.std_mean.correction")
def _std_mean(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    variance, mean = _var_mean(x, dim, correction, keepdim)
    return _power(variance, 0.5), mean


def _any(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return (x != 0).float().amax(dim, keepdim) > 0


of("aten.any.default", "aten.any.dim", "aten.any.dims")(_any)
of("aten.all.default", "aten.all.dim", "aten.all.dims")(lambda x, dim=(), keepdim=False: ~_any(x == 0, dim, keepdim))


def _is_no_length(ord: Any, **_: Any) -> bool:
    return ord not in (2, None)


@of("aten.linalg_vector_norm.default", where=_is_no_length)
def _norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    dim = list(range(x.dim())) if dim is None else dim
    if abs(ord) == math.inf:
        return x.abs().amax(dim, keepdim) if ord > 0 else -(-x.abs()).amax(dim, keepdim)
    if ord == 1:
        return x.abs().sum(dim, keepdim)
    return _power(x.abs().pow(ord).sum(dim, keepdim), 1 / ord)


@of("aten.norm.Scalar", "aten.norm.ScalarOpt_dim")
def _any_norm(x: Tensor, p: float | None = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim, keepdim)


of("aten.softplus.default", where=lambda beta, **_: beta != 1)(lambda x, beta=1, threshold=20: F.softplus(x * beta) / beta)
of("aten.sign.default", "aten.sgn.default")(lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype))
@of("aten.erf.default")
def _erf(x: Tensor) -> Tensor:
    """2·Φ(x·√2) − 1, of GELUs' z·Φ(z); around 0 by its series."""
    z = x * math.sqrt(2)
    is_small = z.abs() < 0.1
    away = torch.where(is_small, 1.0, z)
    square = x * x
    near = x * (2 / math.sqrt(math.pi)) * (1 - square / 3 + square * square / 10 - square * square * square / 42)
    return torch.where(is_small, near, (F.gelu(away) + F.gelu(-away)) / away)


of("aten.log2.default")(lambda x: x.log() / math.log(2))
of("aten.log10.default")(lambda x: x.log() / math.log(10))
of("aten.exp2.default")(lambda x: (x * math.log(2)).exp())
of("aten.pow.Scalar")(lambda base, exponent: (exponent * math.log(base)).exp())
of("aten.pow.Tensor_Tensor")(lambda base, exponent: (base.log() * exponent).exp())
of("aten.xlogy.Tensor")(lambda x, y: x * torch.where(x == 0, 1.0, y).log())
of("aten.tan.default")(lambda x: x.sin() / x.cos())
