"""Sizes, edges and windows of images, and volumes by images. A side that changes its size is a product with a matrix of
shares, [new, old]."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorwire.torch.formulas._makers import MAKERS, Formula, Maker, of, several


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


of("aten.upsample_linear1d.vec")(_interpolated(_linear_shares, 1))
of("aten.upsample_bilinear2d.vec")(_interpolated(_linear_shares, 2))
of("aten.upsample_trilinear3d.vec")(_interpolated(_linear_shares, 3))
of("aten.upsample_bicubic2d.vec")(_interpolated(_cubic_shares, 2))


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


of("aten.upsample_nearest1d.vec")(_nearest(1, False))
of("aten.upsample_nearest2d.vec", where=_is_uneven)(_nearest(2, False))
of("aten.upsample_nearest3d.vec")(_nearest(3, False))
of("aten._upsample_nearest_exact1d.vec")(_nearest(1, True))
of("aten._upsample_nearest_exact2d.vec")(_nearest(2, True))


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


of("aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool3d.default")(_adaptive_mean)
of(
    "aten.adaptive_avg_pool2d.default",
    where=lambda self, output_size, **_: any(old % new for old, new in zip(self.shape[-2:], output_size, strict=True)),
)(_adaptive_mean)


#: Most elements that a window of a pooling may have.
_WINDOW = 256


def _adaptive_max(pool: Callable[..., Tensor]) -> Maker:
    def made(arguments: dict[str, Any]) -> Formula | None:
        old, new = arguments["self"].shape[2:], arguments["output_size"]
        if any(size % to for size, to in zip(old, new, strict=True)):
            return None
        window = [size // to for size, to in zip(old, new, strict=True)]
        # whoever asks where the largest were is refused
        if math.prod(window) <= _WINDOW:
            return lambda x, output_size: (pool(x, window), None)
        parts = [size for pair in zip(new, window, strict=True) for size in pair]
        return lambda x, output_size: (x.reshape(*x.shape[:2], *parts).amax(list(range(3, 3 + len(parts), 2))), None)

    return made


MAKERS["aten.adaptive_max_pool1d.default"] = _adaptive_max(F.max_pool1d)
MAKERS["aten.adaptive_max_pool2d.default"] = _adaptive_max(F.max_pool2d)
MAKERS["aten.adaptive_max_pool3d.default"] = _adaptive_max(F.max_pool3d)




def _is_by_edges(mode: str, **_: Any) -> bool:
    return mode in ("reflect", "replicate", "circular")


@of("aten.pad.default", where=_is_by_edges)
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


@of("aten.im2col.default")
def _unfold(x: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    kernel, dilation, padding, stride = (several(given, 2) for given in (kernel_size, dilation, padding, stride))
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    count = [(x.shape[2 + s] - dilation[s] * (kernel[s] - 1) - 1) // stride[s] + 1 for s in range(2)]
    parts = []
    for place in itertools.product(*map(range, kernel)):
        (top, left), part = (place[s] * dilation[s] for s in range(2)), x
        part = part[:, :, top : top + (count[0] - 1) * stride[0] + 1 : stride[0]]
        parts.append(part[:, :, :, left : left + (count[1] - 1) * stride[1] + 1 : stride[1]])
    return torch.stack(parts, 2).flatten(1, 2).flatten(2)


@of("aten.col2im.default", where=lambda self, **_: self.dim() == 3)
def _fold(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """A transposed convolution by kernels that are 1 at one place each."""
    kernel, dilation, padding, stride = (several(given, 2) for given in (kernel_size, dilation, padding, stride))
    reach = [dilation[s] * (kernel[s] - 1) + 1 - 2 * padding[s] for s in range(2)]
    count = [(output_size[s] - reach[s]) // stride[s] + 1 for s in range(2)]
    more = [output_size[s] - reach[s] - (count[s] - 1) * stride[s] for s in range(2)]
    places = math.prod(kernel)
    channels = x.shape[1] // places
    weight = torch.eye(places, dtype=x.dtype).reshape(places, 1, *kernel).repeat(channels, 1, 1, 1)
    return F.conv_transpose2d(x.unflatten(2, count), weight, None, stride, padding, more, channels, dilation)




# --- Three dimensions, by images of two.


@of("aten.conv3d.default")
def _conv3d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """Frames that one place of the kernel sees are channels of one image: each frame is copied as often as the kernel is deep."""
    stride, padding, dilation = (several(given, 3) for given in (stride, padding, dilation))
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


@of("aten.conv_transpose3d.input")
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
    stride, padding, more, dilation = (several(given, 3) for given in (stride, padding, output_padding, dilation))
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


@of("aten.max_pool3d.default", where=lambda dilation, ceil_mode, **_: several(dilation, 3) == [1, 1, 1] and not ceil_mode)
def _max_pool3d(x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, *_: Any) -> Tensor:
    windows = [several(given, 3) for given in (kernel_size, stride or kernel_size, padding)]
    return _by_frames(x, F.max_pool2d, windows)


@of(
    "aten.avg_pool3d.default",
    where=lambda ceil_mode, divisor_override, **_: not ceil_mode and divisor_override is None,
)
def _avg_pool3d(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *_: Any
) -> Tensor:
    windows = [several(given, 3) for given in (kernel_size, stride or kernel_size, padding)]
    return _by_frames(x, lambda y, *window: F.avg_pool2d(y, *window, False, count_include_pad), windows)
