"""Attention of any rank, bags of words, and weights by length and direction."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensor

from tensorwire.torch.formulas._makers import MAKERS, Formula, of


def _is_of_other_rank(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> bool:
    ranks = {query.dim(), key.dim(), value.dim()}
    return len(ranks) == 1 and query.dim() >= 3 and query.dim() != 4


@of("aten.scaled_dot_product_attention.default", where=_is_of_other_rank)
def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any) -> Tensor:
    """All but the last three dimensions as one."""
    of = query.shape[:-3]
    query, key, value = (part.reshape(-1, *part.shape[-3:]) for part in (query, key, value))
    if attn_mask is not None and attn_mask.dim() > 3:
        attn_mask = attn_mask.expand(*of, *attn_mask.shape[-3:]).reshape(-1, *attn_mask.shape[-3:])
    y = F.scaled_dot_product_attention(query, key, value, attn_mask, *rest, **named)
    return y.reshape(*of, *y.shape[-3:])


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


MAKERS["aten.embedding_bag.padding_idx"] = _bags


@of("aten._weight_norm.default")
def _weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    """Salimans and Kingma 2016."""
    others = [axis for axis in range(direction.dim()) if axis != dim % direction.dim() or dim == -1]
    return direction * (length / torch.linalg.vector_norm(direction, 2, others, keepdim=True))
