"""How far the group is behind, and whether it moves: liveness is progress, not an open socket."""

import asyncio
import time
from collections import defaultdict
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from schemas.topics import LISTENS
from shared.messaging.kafka import sasl
from shared.settings import ServiceSettings
from shared.telemetry.metrics import LAG

STALLED_AFTER_SECONDS = 60.0
POLL_SECONDS = 0.2


class Lag:
    """Compares the group's committed offsets with the ends of the topics that the service listens to."""

    def __init__(self, settings: ServiceSettings, *, group: str) -> None:
        self._settings = settings
        self._group = group
        self._topics = [topic.name for topic in LISTENS[group]]
        self._moved_at: dict[str, float] = defaultdict(time.monotonic)
        self._ends: Any = None
        self._admin: Any = None

    def progressed(self, topic: str) -> None:
        self._moved_at[topic] = time.monotonic()

    async def measure(self) -> list[str]:
        """Set the lag metrics; the topics with records to read and no progress for a minute."""
        ends = await self._end_offsets(self._topics)
        committed = await self._committed()
        stalled = []
        for topic in self._topics:
            behind = sum(end - committed.get(tp, 0) for tp, end in ends.items() if tp.topic == topic)
            LAG.labels(self._group, topic).set(max(0, behind))
            if behind <= 0:
                self.progressed(topic)
            elif time.monotonic() - self._moved_at[topic] > STALLED_AFTER_SECONDS:
                stalled.append(topic)
        return stalled

    async def caught_up(self, topic: str) -> None:
        """Return once every record that the topic has now is committed by the group."""
        ends = await self._end_offsets([topic])
        while True:
            committed = await self._committed()
            if all(committed.get(partition, 0) >= end for partition, end in ends.items()):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        if self._ends is not None:
            await self._ends.stop()
        if self._admin is not None:
            await self._admin.close()

    async def _end_offsets(self, topics: list[str]) -> dict[TopicPartition, int]:
        if self._ends is None:
            self._ends = AIOKafkaConsumer(
                bootstrap_servers=self._settings.kafka_bootstrap, enable_auto_commit=False, **self._sasl()
            )
            await self._ends.start()
        partitions = []
        for topic in topics:
            known = self._ends.partitions_for_topic(topic) or await self._partitions(topic)
            partitions += [TopicPartition(topic, number) for number in known]
        found: dict[TopicPartition, int] = await self._ends.end_offsets(partitions)
        return found

    async def _partitions(self, topic: str) -> set[int]:
        metadata = await self._ends._client.fetch_all_metadata()  # noqa: SLF001  no public call fetches a topic's
        return metadata.partitions_for_topic(topic) or set()

    async def _committed(self) -> dict[TopicPartition, int]:
        if self._admin is None:
            self._admin = AIOKafkaAdminClient(
                bootstrap_servers=self._settings.kafka_bootstrap, **self._sasl()
            )
            await self._admin.start()
        found = await self._admin.list_consumer_group_offsets(self._group)
        return {partition: entry.offset for partition, entry in found.items() if entry.offset >= 0}

    def _sasl(self) -> dict[str, Any]:
        settings = self._settings
        return sasl(
            settings.kafka_username,
            settings.kafka_password.get_secret_value(),
            security_protocol=settings.kafka_security_protocol,
        )
