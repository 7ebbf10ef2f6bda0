"""Tensors as bytes: raw elements, and safetensors files. Needs neither NumPy nor the package safetensors."""

import ctypes
import io
import json
import os
from collections.abc import Mapping
from typing import BinaryIO

import torch

_NAMES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def laid(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with its elements one behind the other: itself, or a copy.

    They are what the tensor says: where PyTorch has put off to conjugate or to negate, its memory holds others."""
    return tensor.contiguous().resolve_conj().resolve_neg()


def raw(tensor: torch.Tensor) -> memoryview:
    """Returns the elements of a CPU tensor that is `laid`, without copying them."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr()))


def write(file: BinaryIO, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors as safetensors."""
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        part = laid(tensor.detach().cpu())
        start, end = end, end + part.numel() * part.element_size()
        header[name] = {"dtype": _NAMES[part.dtype], "shape": list(part.shape), "data_offsets": [start, end]}
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for part in parts:
        file.write(raw(part))


def dumped(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns tensors as safetensors."""
    file = io.BytesIO()
    write(file, tensors)
    return file.getvalue()


def read(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        body = bytearray(file.read())
    header.pop("__metadata__", None)
    return {name: _part(body, entry) for name, entry in header.items()}


def _part(body: bytearray, entry: dict) -> torch.Tensor:
    (start, end), dtype = entry["data_offsets"], _DTYPES[entry["dtype"]]
    if start == end:
        return torch.empty(entry["shape"], dtype=dtype)
    count = (end - start) // dtype.itemsize
    return torch.frombuffer(body, dtype=dtype, count=count, offset=start).reshape(entry["shape"]).clone()
