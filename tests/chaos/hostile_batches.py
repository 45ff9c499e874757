"""Whole batches as a tenant's client, or a damaged disk, may put them into a topic; and what becomes of each offset."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

from deploy.local.stack import Stack
from shared.messaging.batches import MAX_BATCH_BYTES
from shared.messaging.kafka import sasl
from shared.partition import Partition
from tests.unit.shared.record_batches import CHECKED, CRC, NAMES, RECORDS_AT, a_batch, resealed

BOMB_BYTES = 2 * MAX_BATCH_BYTES
Record = dict[str, Any]
Make = Callable[[list[Record]], bytes]


def compressed(codec: int) -> Make:
    return lambda good: a_batch(good, codec=codec)


def bomb(codec: int) -> Make:
    return lambda good: a_batch([*good, {"value": bytes(BOMB_BYTES)}], codec=codec)


def with_strange_header(good: list[Record]) -> bytes:
    spoilt = [good[0] | {"headers": [*good[0]["headers"], ("XXXX", b"1")]}, *good[1:]]
    return resealed(a_batch(spoilt).replace(b"XXXX", b"\xff\xfeA\xff"))


def with_huge_headers(good: list[Record]) -> bytes:
    many = [(f"x-{number}", b"") for number in range(60_000)]
    return a_batch([good[0] | {"headers": many}, good[0] | {"headers": [("x", b"y" * 400_000)]}])


def with_surrogates(good: list[Record]) -> bytes:
    spoilt = good[0]["value"].replace(b'"acme"', b'"\\ud800"')
    assert spoilt != good[0]["value"]
    return a_batch([good[0] | {"value": spoilt}], codec=4)


READABLE: dict[str, Make] = {
    **{name: compressed(codec) for codec, name in NAMES.items()},
    "strange_header": with_strange_header,
}
"""All records of these are good ones, and are applied."""

HOSTILE: dict[str, tuple[Make, str]] = {
    **{f"{name}_bomb": (bomb(codec), "unreadable_batch") for codec, name in NAMES.items()},
    "huge_headers": (with_huge_headers, "bad_envelope"),
    "lone_surrogate": (with_surrogates, "bad_payload"),
}
"""How to make it of good records, and the reason for which all that is in it is parked."""

SPOIL: dict[str, Callable[[bytes], bytes]] = {
    "damaged": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "malformed": lambda raw: _rechecked(raw[:RECORDS_AT] + b"\x7f" * (len(raw) - RECORDS_AT)),
    "no_codec": lambda raw: _rechecked(raw[:22] + b"\x07" + raw[23:]),
    "no_zstd": lambda raw: _rechecked(raw[:22] + b"\x04" + raw[23:]),
}
"""What no broker takes from a producer, and may have on its disk all the same."""


def _rechecked(raw: bytes) -> bytes:
    """With the checksum that belongs to it."""
    return raw[: CRC.start] + struct.pack(">I", calc_crc32c(raw[CHECKED])) + raw[CRC.stop :]


@dataclass
class Batches:
    """Writes batches to partitions, as one user; remembers which offsets should be parked, and why."""

    stack: Stack
    producer: AIOKafkaProducer
    expected: dict[tuple[str, int, int], str] = field(default_factory=dict)

    async def send(self, partition: Partition, raw: bytes) -> int:
        """The offset of the first record."""
        await self.producer.partitions_for(partition.topic)
        batch = self.producer.create_batch()
        assert batch.append(key=b"k", value=b"v", timestamp=None) is not None
        batch.close()
        batch._buffer = bytearray(raw)
        sent = await (await self.producer.send_batch(batch, partition.topic, partition=partition.partition))
        return int(sent.offset)

    async def hostile(self, partition: Partition, name: str, good: list[Record]) -> None:
        make, reason = HOSTILE[name]
        raw = make(good)
        first = await self.send(partition, raw)
        self._expect(partition, first, struct.unpack_from(">i", raw, 23)[0] + 1, reason)

    async def on_disk(self, partition: Partition, name: str, good: list[Record]) -> None:
        """Sends a batch that the broker takes, and spoils it where it lies."""
        first = await self.send(partition, a_batch(good))
        log = self._segment(partition)
        data = log.read_bytes()
        start = _find(data, first)
        size = 12 + struct.unpack_from(">i", data, start + 8)[0]
        spoilt = SPOIL[name](data[start : start + size])
        assert len(spoilt) == size
        with log.open("r+b") as file:
            file.seek(start)
            file.write(spoilt)
        self._expect(partition, first, len(good), "unreadable_batch")

    def _segment(self, partition: Partition) -> Path:
        folder = self.stack.state.root / "kafka" / "data" / f"{partition.topic}-{partition.partition}"
        return max(folder.glob("*.log"))

    def _expect(self, partition: Partition, first: int, number: int, reason: str) -> None:
        for offset in range(first, first + number):
            self.expected[partition.topic, partition.partition, offset] = reason


def _find(data: bytes, offset: int) -> int:
    """Where the batch begins whose first record has this offset."""
    position = 0
    while struct.unpack_from(">q", data, position)[0] != offset:
        position += 12 + int(struct.unpack_from(">i", data, position + 8)[0])
    return position


def writer(stack: Stack, user: str) -> AIOKafkaProducer:
    login = sasl(user, stack.kafka_password(user))
    return AIOKafkaProducer(bootstrap_servers=stack.kafka_bootstrap, **login)
