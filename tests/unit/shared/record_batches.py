"""Record batches as producers make them, honest ones and others."""

import struct
from typing import Any

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

CRC, CHECKED, ATTRIBUTES, RECORDS_AT = slice(17, 21), slice(21, None), slice(21, 23), 61
LAST_OFFSET_DELTA, NUM_RECORDS = slice(23, 27), slice(57, 61)
FIRST_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID = slice(27, 35), slice(35, 43), slice(43, 51)

COMPRESS = {1: gzip_encode, 2: snappy_encode, 3: lz4_encode, 4: zstd_encode}
NAMES = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


def a_batch(records: list[dict[str, Any]], *, base_offset: int = 0, codec: int = 0) -> bytes:
    """`records`: keyword arguments key, value and headers, all of which may be left out."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for offset, record in enumerate(records):
        builder.append(offset, timestamp=1, **({"key": b"k", "value": b"v", "headers": []} | record))
    raw = bytearray(builder.build())
    if codec:
        raw[RECORDS_AT:] = COMPRESS[codec](bytes(raw[RECORDS_AT:]))
        raw[ATTRIBUTES] = struct.pack(">h", codec)
    return resealed(struct.pack(">q", base_offset) + raw[8:])


def resealed(raw: bytes) -> bytes:
    """The batch with its length and checksum as they must be."""
    batch = bytearray(raw)
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    batch[CRC] = struct.pack(">I", calc_crc32c(bytes(batch[CHECKED])))
    return bytes(batch)
