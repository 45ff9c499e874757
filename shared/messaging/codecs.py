"""Decompression of record batches with a limit that holds before memory is taken, for every codec of Kafka."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
FIRST_RATIO = 16
"""Size of the first lz4 or zstd buffer, per compressed byte; few batches need the second, as large as the limit."""
LEAST_BUFFER_BYTES = 64 * 1024

XERIAL = b"\x82SNAPPY\x00"
"""Prefix of a stream of snappy blocks, which Java's clients write; other clients write one block."""
XERIAL_HEADER_BYTES = 16
GZIP_MEMBERS = 16 + zlib.MAX_WBITS


class Undecodable(ValueError):
    """The bytes cannot be decompressed, or not within the limit."""


def decompress(codec: int, data: bytes, *, limit: int) -> bytes:
    """Return the decompressed data, at most `limit` bytes. Raises Undecodable and no other error."""
    decode = CODECS.get(codec)
    if decode is None:
        raise Undecodable(f"found compression codec {codec}, expected one of {sorted(CODECS)}")
    try:
        return decode(data, limit)
    except Undecodable:
        raise
    # cramjam's own errors have no common class but this one, and a fault of its Rust code is a BaseException.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise Undecodable(f"codec {codec}: {type(error).__name__}: {error}") from error


def _gunzip(data: bytes, limit: int) -> bytes:
    """Decompress one or more gzip members that follow one another."""
    parts, left = [], limit
    while data:
        member = zlib.decompressobj(GZIP_MEMBERS)
        parts.append(member.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(limit)
        if not member.eof:
            raise Undecodable("gzip: the data ends within a member")
        data = member.unused_data
    return b"".join(parts)


def _unsnap(data: bytes, limit: int) -> bytes:
    if not data.startswith(XERIAL):
        return _unsnap_block(data, limit)
    parts, position, left = [], XERIAL_HEADER_BYTES, limit
    while position < len(data):
        size = struct.unpack_from(">i", data, position)[0]
        block = data[position + 4 : position + 4 + size]
        if size < 0 or len(block) != size:
            raise Undecodable(f"snappy: found a block of {size} bytes, {len(data) - position - 4} are left")
        parts.append(_unsnap_block(block, left))
        left -= len(parts[-1])
        position += 4 + size
    return b"".join(parts)


def _unsnap_block(block: bytes, limit: int) -> bytes:
    """Decompress a block: its first bytes give the size of the result, and cramjam takes no more memory than that."""
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))


def _into_buffer(codec: Any) -> Callable[[bytes, int], bytes]:
    """Return the decoder of lz4 or zstd, for which cramjam stops at the end of the buffer that it is given."""

    def decode(data: bytes, limit: int) -> bytes:
        first = min(limit, max(LEAST_BUFFER_BYTES, FIRST_RATIO * len(data)))
        try:
            return _filled(codec, data, first)
        except cramjam.DecompressionError:
            if first == limit:
                raise
        return _filled(codec, data, limit)

    return decode


def _filled(codec: Any, data: bytes, size: int) -> bytes:
    buffer = bytearray(size)
    written = codec.decompress_into(data, buffer)
    return bytes(memoryview(buffer)[:written])


def _too_large(limit: int) -> Undecodable:
    return Undecodable(f"becomes more than {limit} bytes")


CODECS: dict[int, Callable[[bytes, int], bytes]] = {
    GZIP: _gunzip,
    SNAPPY: _unsnap,
    LZ4: _into_buffer(cramjam.lz4),
    ZSTD: _into_buffer(cramjam.zstd),
}
