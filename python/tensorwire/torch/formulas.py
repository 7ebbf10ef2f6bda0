"""Formulas of operators by others: what crate ``import`` has no row for, or not in this use, computed by what it has rows for.

PyTorch takes apart much by itself (``elu``, ``einsum``); what stands here it leaves whole, or takes apart into what is not known.
A formula takes what the operator takes. It is traced, so that matrices and places that depend on sizes alone become constants. Where
a formula costs more than an operator of our own would, its doc says so.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensor

Formula = Callable[..., Any]
#: Gives the formula for a use of an operator; none where the row has it. Of its arguments, by name, only constants have values.
Maker = Callable[[dict[str, Any]], Formula | None]

_MAKERS: dict[str, Maker] = {}


def formula(operator: str, arguments: dict[str, Any]) -> Formula | None:
    """Returns what computes this use of an operator by others; none if there is no such."""
    maker = _MAKERS.get(operator) or _MAKERS.get(operator.replace("_.", ".", 1))
    return maker and maker(arguments)


def _of(*operators: str, where: Callable[..., bool] | None = None) -> Callable[[Formula], Formula]:
    """Takes a function as the formula of operators, of all uses or of those of which ``where`` is true."""

    def taken(function: Formula) -> Formula:
        def made(arguments: dict[str, Any]) -> Formula | None:
            return function if where is None or where(**arguments) else None

        _MAKERS.update(dict.fromkeys(operators, made))
        return function

    return taken


def _several(given: Any, count: int) -> list[Any]:
    """Returns a number a side, where one may be given for all."""
    sides = list(given) if isinstance(given, (list, tuple)) else [given]
    return sides * count if len(sides) == 1 else sides


# --- Sizes of images: each side is a product with a matrix of shares, [new, old].


def _along_sides(x: Tensor, matrices: Iterable[Tensor]) -> Tensor:
    """Returns x with its last sides, as many as there are matrices, as their products with them."""
    matrices = list(matrices)
    for place, shares in enumerate(reversed(matrices), 1):
        x = (x.transpose(-place, -1) @ shares.to(x.dtype).t()).transpose(-place, -1)
    return x


def _rows(size: int, places: Tensor, share: Tensor) -> Tensor:
    """Returns a matrix whose row r has ``share[r]`` at ``places[r]``, which is moved to where there is something."""
    places = places.clamp(0, size - 1).unsqueeze(1)
    return (places == torch.arange(size)).double() * share.unsqueeze(1)


def _centres(old: int, new: int, scale: float | None, align: bool) -> Tensor:
    """Returns where the new elements lie among the old ones (PyTorch's ``area_pixel_compute_source_index``)."""
    places = torch.arange(new, dtype=torch.float64)
    if align:
        return places * ((old - 1) / (new - 1) if new > 1 else 0.0)
    return (places + 0.5) * (1 / scale if scale else old / new) - 0.5


def _linear_shares(old: int, new: int, scale: float | None, align: bool) -> Tensor:
    at = _centres(old, new, scale, align).clamp(min=0)
    low = at.floor()
    return _rows(old, low, 1 - (at - low)) + _rows(old, low + 1, at - low)


def _cubic_shares(old: int, new: int, scale: float | None, align: bool) -> Tensor:
    """Keys 1981 with a = −0.75, as PyTorch has it."""
    at = _centres(old, new, scale, align)
    low, a = at.floor(), -0.75
    near = lambda t: ((a + 2) * t - (a + 3)) * t * t + 1  # noqa: E731
    far = lambda t: ((a * t - 5 * a) * t + 8 * a) * t - 4 * a  # noqa: E731
    t = at - low
    taps = [(low - 1, far(t + 1)), (low, near(t)), (low + 1, near(1 - t)), (low + 2, far(2 - t))]
    return sum(_rows(old, place, share) for place, share in taps)


def _interpolated(by: Callable[..., Tensor], sides: int) -> Formula:
    def computed(x: Tensor, output_size: Any, align: bool, scales: Any = None) -> Tensor:
        old = x.shape[-sides:]
        new = output_size or [math.floor(size * scale) for size, scale in zip(old, scales, strict=True)]
        scales = scales or [None] * sides
        return _along_sides(x, [by(*side, align) for side in zip(old, new, scales, strict=True)])

    return computed


_of("aten.upsample_linear1d.vec")(_interpolated(_linear_shares, 1))
_of("aten.upsample_bilinear2d.vec")(_interpolated(_linear_shares, 2))
_of("aten.upsample_trilinear3d.vec")(_interpolated(_linear_shares, 3))
_of("aten.upsample_bicubic2d.vec")(_interpolated(_cubic_shares, 2))


def _nearest(sides: int, exact: bool) -> Formula:
    def computed(x: Tensor, output_size: Any, scales: Any = None) -> Tensor:
        for side in range(sides):
            axis = x.dim() - sides + side
            old = x.shape[axis]
            new = output_size[side] if output_size else math.floor(old * scales[side])
            ratio = 1 / scales[side] if scales else old / new
            places = ((torch.arange(new, dtype=torch.float64) + (0.5 if exact else 0)) * ratio).long().clamp(max=old - 1)
            x = x.index_select(axis, places)
        return x

    return computed


def _is_uneven(input: Tensor, output_size: Any, scale_factors: Any, **_: Any) -> bool:
    new = output_size or [math.floor(size * scale) for size, scale in zip(input.shape[2:], scale_factors, strict=True)]
    return any(size % old for size, old in zip(new, input.shape[2:], strict=True))


_of("aten.upsample_nearest1d.vec")(_nearest(1, False))
_of("aten.upsample_nearest2d.vec", where=_is_uneven)(_nearest(2, False))
_of("aten.upsample_nearest3d.vec")(_nearest(3, False))
_of("aten._upsample_nearest_exact1d.vec")(_nearest(1, True))
_of("aten._upsample_nearest_exact2d.vec")(_nearest(2, True))


def _mean_shares(old: int, new: int) -> Tensor:
    """Windows that may overlap and be of two sizes."""
    at, places = torch.arange(new).unsqueeze(1), torch.arange(old)
    begin, end = at * old // new, -((at + 1) * old // -new)
    return ((places >= begin) & (places < end)).double() / (end - begin)


def _adaptive_mean(x: Tensor, output_size: Any) -> Tensor:
    sides = len(output_size)
    if all(size == 1 for size in output_size):
        return x.mean(list(range(-sides, 0)), keepdim=True)
    return _along_sides(x, [_mean_shares(*side) for side in zip(x.shape[-sides:], output_size, strict=True)])


_of("aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool3d.default")(_adaptive_mean)
_of(
    "aten.adaptive_avg_pool2d.default",
    where=lambda self, output_size, **_: any(old % new for old, new in zip(self.shape[-2:], output_size, strict=True)),
)(_adaptive_mean)


def _adaptive_max(pool: Callable[..., Tensor]) -> Maker:
    def made(arguments: dict[str, Any]) -> Formula | None:
        old, new = arguments["self"].shape[2:], arguments["output_size"]
        if any(size % to for size, to in zip(old, new, strict=True)):
            return None
        window = [size // to for size, to in zip(old, new, strict=True)]
        # whoever asks where the largest were is refused
        return lambda x, output_size: (pool(x, window), None)

    return made


_MAKERS["aten.adaptive_max_pool1d.default"] = _adaptive_max(F.max_pool1d)
_MAKERS["aten.adaptive_max_pool2d.default"] = _adaptive_max(F.max_pool2d)
_MAKERS["aten.adaptive_max_pool3d.default"] = _adaptive_max(F.max_pool3d)


# --- Three dimensions, by images of two.


@_of("aten.conv3d.default")
def _conv3d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """Frames that one place of the kernel sees are channels of one image: each frame is copied as often as the kernel is deep."""
    stride, padding, dilation = (_several(given, 3) for given in (stride, padding, dilation))
    deep = weight.shape[2]
    # channels last, as they are computed
    x = F.pad(x.permute(0, 2, 3, 4, 1), (0, 0, 0, 0, 0, 0, padding[0], padding[0]))
    frames = (x.shape[1] - dilation[0] * (deep - 1) - 1) // stride[0] + 1
    starts = [place * dilation[0] for place in range(deep)]
    taps = [x[:, start : start + (frames - 1) * stride[0] + 1 : stride[0]] for start in starts]
    if groups == 1:
        x, weight = torch.cat(taps, -1), weight.transpose(1, 2).flatten(1, 2)
    else:
        # a group's channels stay together
        x, weight = torch.stack(taps, -1).flatten(-2), weight.flatten(1, 2)
    y = F.conv2d(x.flatten(0, 1).permute(0, 3, 1, 2), weight, bias, stride[1:], padding[1:], dilation[1:], groups)
    return y.permute(0, 2, 3, 1).unflatten(0, (-1, frames)).permute(0, 4, 1, 2, 3)


@_of("aten.conv_transpose3d.input")
def _conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A convolution of what has zeros between its elements, by the kernel turned around."""
    stride, padding, more, dilation = (_several(given, 3) for given in (stride, padding, output_padding, dilation))
    for side in range(3):
        axis, every = 2 + side, stride[side]
        if every > 1:
            behind = [0, 0] * (x.dim() - axis - 1)
            x = F.pad(x.unsqueeze(axis + 1), (*behind, 0, every - 1)).flatten(axis, axis + 1)
    reach = [dilation[side] * (weight.shape[2 + side] - 1) - padding[side] for side in range(3)]
    pads = [(reach[side], reach[side] + more[side] - (stride[side] - 1)) for side in range(3)]
    x = F.pad(x, [size for pair in reversed(pads) for size in pair])
    each = weight.shape[0] // groups
    weight = weight.flip(2, 3, 4).unflatten(0, (groups, each)).transpose(1, 2).flatten(0, 1)
    return F.conv3d(x, weight, bias, 1, 0, dilation, groups)


def _by_frames(x: Tensor, pool: Callable[..., Tensor], windows: Sequence[Sequence[Any]]) -> Tensor:
    """Returns x, [n, c, d, h, w], pooled within its frames and then over them; of windows the first side is of frames."""
    batch, channels, frames = x.shape[:3]
    y = pool(x.transpose(1, 2).flatten(0, 1), *[window[1:] for window in windows])
    y = y.unflatten(0, (batch, frames)).transpose(1, 2)
    sides = y.shape[3:]
    y = pool(y.flatten(3), *[[window[0], 1 if place < 2 else 0] for place, window in enumerate(windows)])
    return y.unflatten(3, sides)


@_of("aten.max_pool3d.default", where=lambda dilation, ceil_mode, **_: _several(dilation, 3) == [1, 1, 1] and not ceil_mode)
def _max_pool3d(x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, *_: Any) -> Tensor:
    windows = [_several(given, 3) for given in (kernel_size, stride or kernel_size, padding)]
    return _by_frames(x, F.max_pool2d, windows)


@_of(
    "aten.avg_pool3d.default",
    where=lambda ceil_mode, divisor_override, **_: not ceil_mode and divisor_override is None,
)
def _avg_pool3d(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *_: Any
) -> Tensor:
    windows = [_several(given, 3) for given in (kernel_size, stride or kernel_size, padding)]
    return _by_frames(x, lambda y, *window: F.avg_pool2d(y, *window, False, count_include_pad), windows)


# --- Elements by their places.


def _index(arguments: dict[str, Any]) -> Formula | None:
    """Rows of the tensor with the dimensions that are named first and as one."""
    found = [index for index in arguments["indices"] if index is not None]
    if len(arguments["indices"]) == 1 or any(index.dtype not in (torch.int64, torch.int32) for index in found):
        return None
    # what the data say is counted from the first
    from_last = [not isinstance(index, FakeTensor) and bool((index < 0).any()) for index in found]

    def computed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        rest = [axis for axis in range(x.dim()) if axis not in axes]
        places = None
        for axis, turns in zip(axes, from_last, strict=True):
            at = torch.remainder(indices[axis], x.shape[axis]) if turns else indices[axis]
            places = at if places is None else places * x.shape[axis] + at
        rows = x.permute(*axes, *rest).reshape(-1, *[x.shape[axis] for axis in rest])
        y = torch.ops.aten.index.Tensor(rows, [places])
        if axes != list(range(axes[0], axes[-1] + 1)):
            return y
        named, left = list(range(places.dim())), list(range(places.dim(), y.dim()))
        return y.permute(*left[: axes[0]], *named, *left[axes[0] :])

    return computed


_MAKERS["aten.index.Tensor"] = _index


@_of("aten.index_select.default")
def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    dim = dim % x.dim()
    return torch.ops.aten.index.Tensor(x.movedim(dim, 0), [index]).movedim(0, dim)


@_of("aten.gather.default")
def _gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """Each element by itself."""
    dim = dim % x.dim()
    for axis in range(x.dim()):
        if axis != dim:
            x = x.narrow(axis, 0, index.shape[axis])
    x, index = x.movedim(dim, -1), index.movedim(dim, -1)
    rows, size = math.prod(x.shape[:-1]), x.shape[-1]
    places = index.reshape(rows, -1) + (torch.arange(rows) * size).unsqueeze(1)
    y = torch.ops.aten.index.Tensor(x.reshape(-1), [places.reshape(-1)])
    return y.reshape(index.shape).movedim(-1, dim)


@_of("aten.one_hot.default")
def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    return (x.unsqueeze(-1) == torch.arange(num_classes)).long()


@_of(
    "aten.scatter.value",
    where=lambda self, dim, index, **_: all(
        size == of for axis, (size, of) in enumerate(zip(index.shape, self.shape, strict=True)) if axis != dim % self.dim()
    ),
)
def _scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    """One number where any of the indices is: as many comparisons as there are indices along the dimension."""
    dim = dim % x.dim()
    there = None
    for one in index.unbind(dim):
        at = torch.arange(x.shape[dim]).reshape([-1 if axis == dim else 1 for axis in range(x.dim())])
        found = one.unsqueeze(dim) == at
        there = found if there is None else there | found
    return torch.where(there, value, x)


@_of(
    "aten.index_put.default",
    where=lambda indices, values, accumulate, **_: len(indices) == 1
    and indices[0].dtype == torch.bool
    and values.numel() == 1
    and not accumulate,
)
def _put_where(x: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    mask = indices[0]
    mask = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    return torch.where(mask, values.reshape(()), x)


@_of("aten.repeat_interleave.self_int")
def _repeat_interleave(x: Tensor, repeats: int, dim: int | None = None, **_: Any) -> Tensor:
    x, dim = (x.flatten(), 0) if dim is None else (x, dim % x.dim())
    sizes = list(x.shape)
    y = x.unsqueeze(dim + 1).expand(*sizes[: dim + 1], repeats, *sizes[dim + 1 :])
    return y.reshape(*sizes[:dim], sizes[dim] * repeats, *sizes[dim + 1 :])


def _triangle(keeps: Callable[[Tensor, Tensor], Tensor]) -> Formula:
    def computed(x: Tensor, diagonal: int = 0) -> Tensor:
        rows, columns = torch.arange(x.shape[-2]).unsqueeze(1), torch.arange(x.shape[-1])
        return x.masked_fill(~keeps(columns - rows, diagonal), 0)

    return computed


_of("aten.tril.default")(_triangle(torch.le))
_of("aten.triu.default")(_triangle(torch.ge))


@_of("aten.diagonal.default")
def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    x = x.movedim((dim1, dim2), (0, 1))
    first, second = max(-offset, 0), max(offset, 0)
    places = torch.arange(min(x.shape[0] - first, x.shape[1] - second))
    return torch.ops.aten.index.Tensor(x, [places + first, places + second]).movedim(0, -1)


def _is_by_edges(mode: str, **_: Any) -> bool:
    return mode in ("reflect", "replicate", "circular")


@_of("aten.pad.default", where=_is_by_edges)
def _pad(x: Tensor, pad: Sequence[int], mode: str, value: float | None = None) -> Tensor:
    """Parts of x before and behind it."""
    for place, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = x.dim() - 1 - place
        size = x.shape[axis]
        if mode == "reflect":
            parts = x.narrow(axis, 1, before).flip(axis), x, x.narrow(axis, size - 1 - after, after).flip(axis)
        elif mode == "circular":
            parts = x.narrow(axis, size - before, before), x, x.narrow(axis, 0, after)
        else:
            parts = [x.narrow(axis, 0, 1)] * before + [x] + [x.narrow(axis, size - 1, 1)] * after
        x = torch.cat([part for part in parts if part.shape[axis] > 0], axis)
    return x


@_of("aten.im2col.default")
def _unfold(x: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    kernel, dilation, padding, stride = (_several(given, 2) for given in (kernel_size, dilation, padding, stride))
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    count = [(x.shape[2 + s] - dilation[s] * (kernel[s] - 1) - 1) // stride[s] + 1 for s in range(2)]
    parts = []
    for place in itertools.product(*map(range, kernel)):
        (top, left), part = (place[s] * dilation[s] for s in range(2)), x
        part = part[:, :, top : top + (count[0] - 1) * stride[0] + 1 : stride[0]]
        parts.append(part[:, :, :, left : left + (count[1] - 1) * stride[1] + 1 : stride[1]])
    return torch.stack(parts, 2).flatten(1, 2).flatten(2)


@_of("aten.unfold.default")
def _windows(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    axis = dimension % x.dim()
    count = (x.shape[axis] - size) // step + 1
    places = (torch.arange(count) * step).unsqueeze(1) + torch.arange(size)
    y = torch.ops.aten.index.Tensor(x.movedim(axis, 0), [places.reshape(-1)]).unflatten(0, (count, size))
    return y.movedim(1, -1).movedim(0, axis)


# --- Sums and functions.


@_of("aten.cumsum.default", where=lambda self, **_: self.is_floating_point())
def _cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A product with a triangle of ones: n times as many products as there are elements along the dimension."""
    if x.dim() == 0:
        return x
    size = x.shape[dim]
    rows, columns = torch.arange(size).unsqueeze(1), torch.arange(size)
    return (x.movedim(dim, -1) @ (rows <= columns).to(x.dtype)).movedim(-1, dim)


@_of("aten.amin.default")
def _amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return -(-x).amax(dim, keepdim)


def _largest(sign: int) -> Formula:
    def computed(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        x = x * sign if sign < 0 else x
        most = x.amax(dim, keepdim)
        return -most if sign < 0 else most, x.argmax(dim, keepdim)

    return computed


_of("aten.max.dim")(_largest(1))
_of("aten.min.dim")(_largest(-1))
_of("aten.argmin.default")(lambda x, dim=None, keepdim=False: (-x).argmax(dim, keepdim))
_of("aten.max.default")(lambda x: x.amax())
_of("aten.min.default")(lambda x: -(-x).amax())
_of("aten.std.correction")(lambda x, dim=None, correction=1, keepdim=False: x.var(dim, correction=correction, keepdim=keepdim).sqrt())
_of("aten.std.default")(lambda x, unbiased=True: x.var(unbiased=unbiased).sqrt())
_of("aten.std.dim")(lambda x, dim, unbiased=True, keepdim=False: x.var(dim, unbiased=unbiased, keepdim=keepdim).sqrt())


@_of("aten.var_mean.correction")
def _var_mean(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dim = list(range(x.dim())) if dim is None else dim
    return x.var(dim, correction=correction, keepdim=keepdim), x.mean(dim, keepdim=keepdim)


@_of("aten.std_mean.correction")
def _std_mean(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    variance, mean = _var_mean(x, dim, correction, keepdim)
    return variance.sqrt(), mean


def _any(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return (x != 0).float().amax(dim, keepdim) > 0


_of("aten.any.default", "aten.any.dim", "aten.any.dims")(_any)
_of("aten.all.default", "aten.all.dim", "aten.all.dims")(lambda x, dim=(), keepdim=False: ~_any(x == 0, dim, keepdim))


def _is_no_length(ord: Any, **_: Any) -> bool:
    return ord not in (2, None)


@_of("aten.linalg_vector_norm.default", where=_is_no_length)
def _norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    dim = list(range(x.dim())) if dim is None else dim
    if abs(ord) == math.inf:
        return x.abs().amax(dim, keepdim) if ord > 0 else -(-x.abs()).amax(dim, keepdim)
    if ord == 1:
        return x.abs().sum(dim, keepdim)
    return x.abs().pow(ord).sum(dim, keepdim).pow(1 / ord)


@_of("aten.norm.Scalar", "aten.norm.ScalarOpt_dim")
def _any_norm(x: Tensor, p: float | None = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim, keepdim)


_of("aten.softplus.default", where=lambda beta, **_: beta != 1)(lambda x, beta=1, threshold=20: F.softplus(x * beta) / beta)
_of("aten.sign.default", "aten.sgn.default")(lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype))
@_of("aten.erf.default")
def _erf(x: Tensor) -> Tensor:
    """2·Φ(x·√2) − 1, of GELUs' z·Φ(z); around 0 by its series."""
    z = x * math.sqrt(2)
    is_small = z.abs() < 0.1
    away = torch.where(is_small, 1.0, z)
    square = x * x
    near = x * (2 / math.sqrt(math.pi)) * (1 - square / 3 + square * square / 10 - square * square * square / 42)
    return torch.where(is_small, near, (F.gelu(away) + F.gelu(-away)) / away)


_of("aten.log2.default")(lambda x: x.log() / math.log(2))
_of("aten.log10.default")(lambda x: x.log() / math.log(10))
_of("aten.exp2.default")(lambda x: (x * math.log(2)).exp())
_of("aten.pow.Scalar")(lambda base, exponent: (exponent * math.log(base)).exp())
_of("aten.pow.Tensor_Tensor")(lambda base, exponent: (base.log() * exponent).exp())
_of("aten.tan.default")(lambda x: x.sin() / x.cos())


# --- Losses.


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
    at = (target.unsqueeze(axis) == numbers) & counts
    of_target = (at.to(likelihood.dtype) * weights).sum(axis)
    each = -torch.where(at, likelihood * weights, 0.0).sum(axis)
    if smoothing:
        spread = -(likelihood * weights * counts.to(likelihood.dtype)).sum(axis)
        each = each * (1 - smoothing) + spread * (smoothing / classes)
    if reduction == 0:
        return each
    return each.sum() / of_target.sum() if reduction == 1 else each.sum()


@_of("aten.cross_entropy_loss.default", where=_is_weighed)
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


@_of(
    "aten.nll_loss_nd.default",
    where=lambda weight, reduction, made_by, **_: weight is not None or reduction != 1 or made_by != "aten.log_softmax.int",
)
def _nll(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100) -> Tensor:
    return _of_classes(x, target, weight, reduction, ignore_index)


@_of("aten.binary_cross_entropy.default")
def _binary(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    each = -(target * x.log().clamp(min=-100) + (1 - target) * (1 - x).log().clamp(min=-100))
    return _reduced(each if weight is None else each * weight, reduction)


@_of(
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


@_of("aten.soft_margin_loss.default")
def _soft_margin(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _reduced(F.softplus(-target * x), reduction)


# --- Layers.


def _bags(arguments: dict[str, Any]) -> Formula | None:
    """Bags of one size, as a matrix of indices has them."""
    indices, offsets = arguments["indices"], arguments["offsets"]
    is_plain = arguments["per_sample_weights"] is None and not arguments["scale_grad_by_freq"] and arguments["padding_idx"] in (None, -1)
    if not is_plain or isinstance(offsets, FakeTensor) or arguments["include_last_offset"]:
        return None
    each = indices.numel() // max(len(offsets), 1)
    if not torch.equal(offsets, torch.arange(len(offsets), dtype=offsets.dtype) * each):
        return None
    by = ("sum", "mean", "amax")[arguments["mode"]]
    sparse = arguments["sparse"]

    def computed(weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None, None, None]:
        rows = F.embedding(indices, weight, sparse=sparse).unflatten(0, (-1, each))
        return getattr(rows, by)(1), None, None, None

    return computed


_MAKERS["aten.embedding_bag.padding_idx"] = _bags


@_of("aten._weight_norm.default")
def _weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    """Salimans and Kingma 2016."""
    others = [axis for axis in range(direction.dim()) if axis != dim % direction.dim() or dim == -1]
    return direction * (length / torch.linalg.vector_norm(direction, 2, others, keepdim=True))
