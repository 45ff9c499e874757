"""Topic ids of committed positions: a topic that is deleted and made again has the same name and another id.

Each committed offset names the id: a position of a deleted topic would hide the first records of the new one. The
module calls a private method of the pinned aiokafka, whose own requests do not ask for ids;
tests/integration/kernel/test_topic_made_again.py checks it against the broker.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, ClassVar
from uuid import UUID

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaTimeoutError
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)
from aiokafka.structs import OffsetAndMetadata

from shared.log import get_logger
from shared.record import Record

log = get_logger(__name__)

Committed = Mapping[TopicPartition, OffsetAndMetadata]
FIRST_OFFSETS_SECONDS = 5.0


class TopicIds:
    """The ids that this process knows, and the partitions that must be read from their first record."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._existing: frozenset[str] = frozenset()
        """Topics that existed when learn() was last called."""
        self.strange: set[TopicPartition] = set()
        """Partitions whose positions belong to a deleted topic."""

    def learn(
        self, ids: Mapping[str, str], partitions: Iterable[TopicPartition], committed: Committed
    ) -> None:
        """Compare the current ids with the known ones and those that the committed offsets name, and store them."""
        for each in partitions:
            known = {self._ids.get(each.topic, ""), _id_of(committed.get(each))}
            if each.topic in ids and known - {"", ids[each.topic]}:
                self.strange.add(each)
        self._ids.update(ids)
        self._existing = frozenset(ids)

    def is_of_another(self, partition: TopicPartition, committed: Committed) -> bool:
        named = _id_of(committed.get(partition))
        return named not in ("", self._ids.get(partition.topic, ""))

    def offsets(self, records: Sequence[Record]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit once these records are handled, without partitions that must be read again."""
        return self.with_ids(
            {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}
        )

    def with_ids(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit as Kafka keeps them, without partitions that must be read again."""
        return {
            each: OffsetAndMetadata(offset, self._ids.get(each.topic, ""))
            for each, offset in offsets.items()
            if each not in self.strange
        }

    async def read_from_start(self, consumer: Any) -> None:
        """Seek to the first record of each assigned partition whose position belongs to a deleted topic."""
        self.strange &= consumer.assignment()
        if not (first := await self.first_offsets(consumer, set(self.strange))):
            return
        log.error(
            "topic was made again and is read from its first record",
            partitions=sorted(f"{each.topic}/{each.partition}" for each in first),
        )
        await consumer.commit(
            {each: OffsetAndMetadata(offset, self._ids[each.topic]) for each, offset in first.items()}
        )
        for each, offset in first.items():
            consumer.seek(each, offset)
        self.strange -= first.keys()

    async def first_offsets(
        self, consumer: Any, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record, without partitions of topics that are missing.

        Raises KafkaTimeoutError where a topic is deleted meanwhile, of which the client would ask without end.
        """
        if not (existing := [each for each in partitions if each.topic in self._existing]):
            return {}
        try:
            async with asyncio.timeout(FIRST_OFFSETS_SECONDS):
                first: dict[TopicPartition, int] = await consumer.beginning_offsets(existing)
                return first
        except TimeoutError as error:
            names = ", ".join(sorted({each.topic for each in existing}))
            raise KafkaTimeoutError(
                f"no first offsets of {names} within {FIRST_OFFSETS_SECONDS:g} s"
            ) from error


def _id_of(committed: OffsetAndMetadata | None) -> str:
    """Return the committed topic id, or "" if no offset was committed, or one without an id."""
    return committed.metadata if committed is not None and committed.offset >= 0 else ""


async def topic_ids(admin: AIOKafkaAdminClient) -> dict[str, str]:
    """Return the ids of all topics that this user may see, by name."""
    response = await admin._send_request(AllTopics())  # noqa: SLF001
    return {name: topic_id for error, name, topic_id, *_ in response.topics if error == 0}


class Uuid(AbstractType[str]):
    @classmethod
    def encode(cls, value: str) -> bytes:
        return UUID(value).bytes

    @classmethod
    def decode(cls, data: BytesIO) -> str:
        return str(UUID(bytes=data.read(16)))


class MetadataResponse_v12(Response):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MetadataRequest_v12(RequestStruct):  # noqa: N801 - aiokafka's way to name versions
    FLEXIBLE_VERSION: ClassVar[bool] = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = MetadataResponse_v12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class AllTopics(Request[MetadataRequest_v12]):
    API_KEY = 3

    def build(self, request_struct_class: type[MetadataRequest_v12]) -> MetadataRequest_v12:
        return request_struct_class(None, False, False, {})
