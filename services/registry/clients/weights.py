"""Read safetensors files on disk: headers by our own parser, values only to see that they are finite."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from services.registry.decide.weights import LENGTH_BYTES, BadWeights, Tensor, header_length, parse_header

CHUNK_BYTES = 64 * 1024 * 1024

# An exponent of all ones is infinity or not-a-number; bits need no arithmetic and no bfloat16.
_EXPONENTS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}


def read_header(path: Path, *, dtypes: frozenset[str]) -> tuple[Tensor, ...]:
    """The tensors of a file, none of them read. Raises BadWeights, naming the file."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = header_length(file.read(LENGTH_BYTES), file_bytes=size)
            return parse_header(file.read(length), file_bytes=size, dtypes=dtypes)
    except BadWeights as error:
        raise BadWeights(f"{path.name}: {error}") from error


def require_finite(path: Path, tensors: Sequence[Tensor]) -> None:
    """Raises BadWeights where a floating-point value is infinite or not a number."""
    with path.open("rb") as file:
        for tensor in tensors:
            if tensor.dtype not in _EXPONENTS:
                continue
            file.seek(tensor.begin)
            remaining = tensor.end - tensor.begin
            while remaining:
                data = file.read(min(CHUNK_BYTES, remaining))
                if not _is_finite(data, tensor.dtype):
                    raise BadWeights(f"{path.name}: tensor {tensor.name!r} holds a value that is not finite")
                remaining -= len(data)


def _is_finite(data: bytes, dtype: str) -> bool:
    unsigned, exponent = _EXPONENTS[dtype]
    bits = np.frombuffer(data, dtype=np.dtype(unsigned))
    mask = bits.dtype.type(exponent)
    return not bool(np.any((bits & mask) == mask))
