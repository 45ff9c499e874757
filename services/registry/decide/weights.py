"""Whether a safetensors file is what it says, judged by its header alone, before any loader opens it.

A file is: 8 bytes little-endian length n, n bytes JSON header, the tensors' bytes. Nothing here is executed
or allocated by what the file says: the header is bounded, and every number in it is checked.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import Rejected

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 1024 * 1024
MAX_TENSORS = 5_000

ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
BASE_DTYPES = frozenset(ITEM_BYTES)
TRAINED_DTYPES = frozenset({"F32", "F16", "BF16"})
"""What our own training writes."""


class BadWeights(Rejected):
    """The file is not a safetensors file that we accept; the sentence says what was found and expected."""


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """First byte within the file."""
    end: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def header_length(first_bytes: bytes, *, file_bytes: int) -> int:
    """Bytes of the JSON header, from the first 8 bytes of a file. Raises BadWeights."""
    if len(first_bytes) < LENGTH_BYTES:
        raise BadWeights(f"file of {file_bytes} bytes: expected at least {LENGTH_BYTES}")
    length = int.from_bytes(first_bytes[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise BadWeights(f"header of {length} bytes: expected at most {MAX_HEADER_BYTES}")
    if LENGTH_BYTES + length > file_bytes:
        raise BadWeights(f"header of {length} bytes in a file of {file_bytes}")
    return length


def parse_header(header: bytes, *, file_bytes: int, dtypes: frozenset[str]) -> tuple[Tensor, ...]:
    """The tensors in the order of their bytes, without gap or overlap. Raises BadWeights."""
    entries = _load(header)
    entries.pop("__metadata__", None)
    if len(entries) > MAX_TENSORS:
        raise BadWeights(f"{len(entries)} tensors: expected at most {MAX_TENSORS}")
    start = LENGTH_BYTES + len(header)
    tensors = sorted(
        (_tensor(name, entry, start, dtypes) for name, entry in entries.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    _require_contiguous(tensors, start=start, file_bytes=file_bytes)
    return tuple(tensors)


def _load(header: bytes) -> dict[str, Any]:
    try:
        document = json.loads(header.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadWeights(f"header is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadWeights(f"header is a JSON {type(document).__name__}, expected an object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise BadWeights("header names something twice")
    return entries


def _no_constant(text: str) -> float:
    raise BadWeights(f"header holds {text}")


def _tensor(name: str, entry: Any, start: int, dtypes: frozenset[str]) -> Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadWeights(f"tensor {name!r}: expected exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise BadWeights(f"tensor {name!r} has dtype {dtype!r}, expected one of {', '.join(sorted(dtypes))}")
    if not _are_counts(shape) or len(shape) > 8:
        raise BadWeights(f"tensor {name!r} has shape {str(shape)[:80]}, expected at most 8 whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise BadWeights(f"tensor {name!r} has offsets {str(offsets)[:80]}, expected begin and end")
    begin, end = offsets
    expected = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != expected:
        raise BadWeights(f"tensor {name!r} takes {end - begin} bytes, its shape needs {expected}")
    return Tensor(name, dtype, tuple(shape), start + begin, start + end)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _require_contiguous(tensors: list[Tensor], *, start: int, file_bytes: int) -> None:
    position = start
    for tensor in tensors:
        if tensor.begin != position:
            raise BadWeights(f"tensor {tensor.name!r} begins at byte {tensor.begin}, expected {position}")
        position = tensor.end
    if position != file_bytes:
        raise BadWeights(f"tensors end at byte {position} of a file of {file_bytes}")
