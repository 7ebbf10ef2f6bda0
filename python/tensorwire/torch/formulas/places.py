"""Elements by their places."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from tensorwire.torch.formulas._makers import MAKERS, Formula, of


def within(places: Tensor, size: int) -> Tensor:
    """Returns places along a dimension as they are. A step in which one is outside fails and says which."""
    return torch.ops.aten.index.Tensor(torch.arange(size), [places.reshape(-1)]).reshape(places.shape)


def _index(arguments: dict[str, Any]) -> Formula | None:
    """Rows of the tensor with the dimensions that are named first and as one."""
    found = [index for index in arguments["indices"] if index is not None]
    if len(arguments["indices"]) == 1 or any(index.dtype not in (torch.int64, torch.int32) for index in found):
        return None
    # what the data say is counted from the first
    of_data = [isinstance(index, FakeTensor) for index in found]
    from_last = [not known and bool((index < 0).any()) for known, index in zip(of_data, found, strict=True)]

    def computed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        rest = [axis for axis in range(x.dim()) if axis not in axes]
        places = None
        for axis, turns, may_be_outside in zip(axes, from_last, of_data, strict=True):
            at = torch.remainder(indices[axis], x.shape[axis]) if turns else indices[axis]
            # the first is outside where the row is
            at = within(at, x.shape[axis]) if may_be_outside and places is not None else at
            places = at if places is None else places * x.shape[axis] + at
        rows = x.permute(*axes, *rest).reshape(-1, *[x.shape[axis] for axis in rest])
        y = torch.ops.aten.index.Tensor(rows, [places])
        if axes != list(range(axes[0], axes[-1] + 1)):
            return y
        named, left = list(range(places.dim())), list(range(places.dim(), y.dim()))
        return y.permute(*left[: axes[0]], *named, *left[axes[0] :])

    return computed


MAKERS["aten.index.Tensor"] = _index


@of("aten.index_select.default")
def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    dim = dim % x.dim()
    return torch.ops.aten.index.Tensor(x.movedim(dim, 0), [index]).movedim(0, dim)


@of("aten.gather.default")
def _gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """Each element by itself."""
    dim = dim % x.dim()
    for axis in range(x.dim()):
        if axis != dim:
            x = x.narrow(axis, 0, index.shape[axis])
    x, index = x.movedim(dim, -1), index.movedim(dim, -1)
    rows, size = math.prod(x.shape[:-1]), x.shape[-1]
    places = within(index, size).reshape(rows, -1) + (torch.arange(rows) * size).unsqueeze(1)
    y = torch.ops.aten.index.Tensor(x.reshape(-1), [places.reshape(-1)])
    return y.reshape(index.shape).movedim(-1, dim)


@of("aten.one_hot.default")
def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    return (x.unsqueeze(-1) == torch.arange(num_classes)).long()


@of(
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


@of(
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


@of("aten.repeat_interleave.self_int")
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


of("aten.tril.default")(_triangle(torch.le))
of("aten.triu.default")(_triangle(torch.ge))


@of("aten.diagonal.default")
def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    x = x.movedim((dim1, dim2), (0, 1))
    first, second = max(-offset, 0), max(offset, 0)
    places = torch.arange(min(x.shape[0] - first, x.shape[1] - second))
    return torch.ops.aten.index.Tensor(x, [places + first, places + second]).movedim(0, -1)


@of("aten.unfold.default")
def _windows(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    axis = dimension % x.dim()
    count = (x.shape[axis] - size) // step + 1
    places = (torch.arange(count) * step).unsqueeze(1) + torch.arange(size)
    y = torch.ops.aten.index.Tensor(x.movedim(axis, 0), [places.reshape(-1)]).unflatten(0, (count, size))
    return y.movedim(1, -1).movedim(0, axis)
