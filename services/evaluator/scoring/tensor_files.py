"""Safetensors headers, read and checked by ourselves before any loader opens the file."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 1024 * 1024
MAX_TENSORS = 5_000
MAX_DIMENSIONS = 8
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Types of weights that a model may have, with their width."""


class MalformedModel(ValueError):
    """Files that no loader may open; the sentence names file, found and expected."""


@dataclass(frozen=True)
class TensorHeader:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    """Bytes from the end of the header."""


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Every tensor of the file. Raises MalformedModel unless the data is exactly what the header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        raw = _header_bytes(path.name, file.read(8), file.read(MAX_HEADER_BYTES), size)
    tensors = {
        name: _tensor(path.name, name, entry)
        for name, entry in _parsed(path.name, raw).items()
        if name != "__metadata__"
    }
    if not 1 <= len(tensors) <= MAX_TENSORS:
        raise MalformedModel(f"{path.name}: {len(tensors)} tensors, expected 1 to {MAX_TENSORS}")
    _check_layout(path.name, tensors, data_bytes=size - 8 - len(raw))
    return tensors


def _header_bytes(name: str, prefix: bytes, start: bytes, size: int) -> bytes:
    if len(prefix) < 8:
        raise MalformedModel(f"{name}: {size} bytes, expected a header length of 8 bytes")
    (length,) = struct.unpack("<Q", prefix)
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        limit = min(MAX_HEADER_BYTES, max(size - 8, 0))
        raise MalformedModel(f"{name}: header of {length} bytes, expected 2 to {limit}")
    return start[:length]


def _parsed(name: str, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_without_duplicates)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, KeyError) as error:
        raise MalformedModel(f"{name}: header is not JSON with unique names: {error}") from error
    if not isinstance(header, dict):
        raise MalformedModel(f"{name}: header is {type(header).__name__}, expected an object")
    return header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise KeyError("a name appears twice")
    return fields


def _tensor(file: str, name: str, entry: Any) -> TensorHeader:
    where = f"{file}: tensor {name[:120]!r}"
    if not isinstance(entry, Mapping) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise MalformedModel(f"{where}: expected dtype, shape and data_offsets alone")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise MalformedModel(f"{where}: dtype {str(dtype)[:40]!r}, expected one of {', '.join(BITS)}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise MalformedModel(
            f"{where}: shape {str(shape)[:80]}, expected up to {MAX_DIMENSIONS} whole numbers"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise MalformedModel(f"{where}: data_offsets {str(offsets)[:80]}, expected two whole numbers")
    begin, end = offsets
    if end - begin != (needed := math.prod(shape) * BITS[dtype] // 8):
        raise MalformedModel(f"{where}: {end - begin} bytes, expected {needed} for {dtype}{list(shape)}")
    return TensorHeader(dtype, tuple(shape), begin, end)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**48 for size in value)


def _check_layout(file: str, tensors: Mapping[str, TensorHeader], *, data_bytes: int) -> None:
    """No gap, no overlap, nothing behind the last tensor."""
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda entry: (entry[1].begin, entry[1].end)):
        if tensor.begin != position:
            raise MalformedModel(
                f"{file}: tensor {name[:120]!r} begins at {tensor.begin}, expected {position}"
            )
        position = tensor.end
    if position != data_bytes:
        raise MalformedModel(f"{file}: {data_bytes} bytes of data, expected {position}")
