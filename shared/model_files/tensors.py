"""Read the headers of safetensors files, and check that all values are finite.

safetensors' own reader refuses gaps, overlaps, missing and trailing bytes, and sizes that do not follow from shapes.
The bounds, and the refusal of names that appear twice, are added here.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from shared.errors import Rejected

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 1024 * 1024
MAX_TENSORS = 5_000
MAX_DIMENSIONS = 8
CHUNK_BYTES = 64 * 1024 * 1024

# An exponent of all ones is infinity or not-a-number; bits need no arithmetic and no bfloat16.
_EXPONENTS: Mapping[str, np.unsignedinteger[Any]] = {
    "F32": np.uint32(0x7F80_0000),
    "F16": np.uint16(0x7C00),
    "BF16": np.uint16(0x7F80),
}
TRAINED_DTYPES = frozenset(_EXPONENTS)
"""Types of the values that our own training writes."""
BASE_DTYPES = TRAINED_DTYPES | {"F64", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8", "BOOL"}

_ENTRY = {"dtype", "shape", "data_offsets"}

Shapes = Mapping[str, Sequence[int]]
"""Shapes of a base model's tensors, by name."""


class BadModel(Rejected):
    """Files that no loader may open; the sentence names the file, what it holds and what was expected."""


class NotFinite(BadModel):
    """A weight is infinite or not a number."""


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def shapes_of(tensors: Iterable[Tensor]) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in tensors}


def read_tensors(path: Path, *, dtypes: frozenset[str]) -> tuple[Tensor, ...]:
    """Return the tensors of a safetensors file in the order of their bytes; no value is read. Raises BadModel."""
    entries = _header_entries(path)
    if not 1 <= len(entries) <= MAX_TENSORS:
        raise BadModel(f"{path.name}: {len(entries)} tensors, expected 1 to {MAX_TENSORS}")
    for name, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != _ENTRY:
            raise BadModel(
                f"{path.name}: tensor {name[:120]!r}: expected exactly {', '.join(sorted(_ENTRY))}"
            )
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            tensors = tuple(
                Tensor(name, each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()
            )
    except SafetensorError as error:
        raise BadModel(f"{path.name}: {error}") from error
    for tensor in tensors:
        if tensor.dtype not in dtypes or len(tensor.shape) > MAX_DIMENSIONS:
            raise BadModel(
                f"{path.name}: tensor {tensor.name[:120]!r} is {tensor.dtype}{list(tensor.shape)}, expected at most"
                f" {MAX_DIMENSIONS} dimensions of {', '.join(sorted(dtypes))}"
            )
    return tensors


def byte_ranges(path: Path) -> dict[str, tuple[int, int]]:
    """Return where each tensor's bytes begin and end in a safetensors file that was checked."""
    with path.open("rb") as file:
        begin = LENGTH_BYTES + int.from_bytes(file.read(LENGTH_BYTES), "little")
    entries = _header_entries(path)
    return {
        name: (begin + entry["data_offsets"][0], begin + entry["data_offsets"][1])
        for name, entry in entries.items()
    }


def _header_entries(path: Path) -> dict[str, Any]:
    """Return what the header says of each tensor. Raises BadModel, for names that appear twice too."""
    size = path.stat().st_size
    limit = max(0, min(MAX_HEADER_BYTES, size - LENGTH_BYTES))
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 2 <= length <= limit:
            raise BadModel(
                f"{path.name}: header of {length} bytes in a file of {size} bytes, expected 2 to {limit}"
            )
        text = file.read(length)
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{path.name}: header is not JSON with unique names: {error}") from error
    if not isinstance(header, dict):
        raise BadModel(f"{path.name}: header is a {type(header).__name__}, expected an object")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name appears twice")
    return fields


def require_finite(directory: Path) -> None:
    """Raise NotFinite where a trained weight is infinite or not a number; BadModel."""
    for path in sorted(directory.glob("*.safetensors")):
        tensors = read_tensors(path, dtypes=TRAINED_DTYPES)
        with path.open("rb") as file:
            file.seek(LENGTH_BYTES + int.from_bytes(file.read(LENGTH_BYTES), "little"))
            for tensor in tensors:
                if not _is_next_finite(file, tensor):
                    raise NotFinite(f"{path.name}: tensor {tensor.name!r} holds a value that is not finite")


def _is_next_finite(file: BinaryIO, tensor: Tensor) -> bool:
    exponent = _EXPONENTS[tensor.dtype]
    remaining = tensor.numel * exponent.itemsize
    while remaining:
        bits = np.frombuffer(file.read(min(CHUNK_BYTES, remaining)), dtype=exponent.dtype)
        if np.any((bits & exponent) == exponent):
            return False
        remaining -= bits.nbytes
    return True
