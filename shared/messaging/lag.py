"""Measures how far the group is behind and whether it moves: liveness is progress, not an open socket."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from schemas.topics import LISTENS, Topic, listens_to_tenants
from shared.messaging.kafka import TENANT_COMMANDS, sasl
from shared.messaging.topic_ids import Committed, TopicIds, topic_ids
from shared.settings import ServiceSettings
from shared.telemetry.metrics import LAG

STALLED_AFTER_SECONDS = 60.0
UNSEEN_SECONDS = 30.0
"""A longer gap between two looks, from an outage of Kafka or a stopped process, restarts the time of no progress."""
LONGEST_GAP = timedelta(seconds=15)
"""Limit between two answers of Kafka, which is asked every five seconds; beyond it, Kafka was unavailable."""
POLL_SECONDS = 0.2
ANSWER_MILLISECONDS = 10_000
"""How long the ends of a topic are asked for that somebody deletes meanwhile."""
START_SECONDS = 4.0
"""How long a cancelled start of a client may still take; its caller waits one second longer than this."""


class Progress:
    """Tracks since when each partition makes no progress although there are records to read."""

    def __init__(self) -> None:
        self._stands: dict[tuple[str, int], tuple[int, float, float]] = {}
        """Maps a partition to its position, when that began, and when it was last seen."""

    def is_stalled(self, partition: tuple[str, int], *, position: int, end: int, now: float) -> bool:
        """Return whether the partition has stalled; `now` is in seconds on a monotonic clock."""
        last, since, seen = self._stands.get(partition, (position, now, now))
        if position != last or position >= end or now - seen > UNSEEN_SECONDS:
            since = now
        self._stands[partition] = (position, since, now)
        return now - since > STALLED_AFTER_SECONDS


class Contact:
    """Tracks since when Kafka has answered this process without a gap."""

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._last: datetime | None = None

    def answered(self, now: datetime) -> None:
        if self._last is None or now - self._last > LONGEST_GAP:
            self._since = now
        self._last = now

    def since(self, now: datetime) -> datetime:
        """Return the first answer without a gap since, or `now` if there is none or the last is too old."""
        if self._since is None or self._last is None or now - self._last > LONGEST_GAP:
            return now
        return self._since


class Lag:
    """Compares the group's committed offsets with the ends of the topics that the service listens to."""

    def __init__(self, settings: ServiceSettings, *, group: str) -> None:
        self._settings = settings
        self._group = group
        self._topics = [topic.name for topic in LISTENS[group]]
        self._tenant_topics = listens_to_tenants(group)
        self._progress = Progress()
        self._connecting = asyncio.Lock()
        self._ends: Any = None
        self._admin: Any = None
        self.ids = TopicIds()
        self.missing: list[str] = []
        """Topics that did not exist at the last measurement."""

    async def measure(self) -> list[TopicPartition]:
        """Set the lag metrics and return the partitions with records to read and no progress for a minute."""
        consumer, metadata = await self._consumer(), await self._metadata()
        self.missing = [topic for topic in self._topics if not metadata.partitions_for_topic(topic)]
        partitions = _partitions(metadata, self._listened(metadata))
        ends = await consumer.end_offsets(partitions)
        positions = await self._positions(partitions)
        behind: Counter[str] = Counter()
        stalled = []
        for each in partitions:
            behind[each.topic] += max(0, ends[each] - positions[each])
            if self._progress.is_stalled(
                each, position=positions[each], end=ends[each], now=time.monotonic()
            ):
                stalled.append(each)
        for topic, records in behind.items():
            LAG.labels(self._group, topic).set(records)
        return stalled

    async def caught_up(self, topic: str) -> None:
        """Return once every record that the topic has now is committed by the group."""
        await self._caught_up(_partitions(await self._metadata(), [topic]))

    async def caught_up_everywhere(self) -> None:
        """Return once every record that the group's topics have now is committed by it."""
        metadata = await self._metadata()
        await self._caught_up(_partitions(metadata, self._listened(metadata)))

    async def _caught_up(self, partitions: list[TopicPartition]) -> None:
        ends = await (await self._consumer()).end_offsets(partitions)
        while True:
            positions = await self._positions(list(ends))
            if all(positions[partition] >= end for partition, end in ends.items()):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def wrong_topics(self, topics: Iterable[Topic]) -> list[str]:
        """Return the problems of topics that are missing or unlike the contract, as far as this user may see them."""
        self.ids.learn(await topic_ids(await self.administrator()), (), {})
        return list(differences(topics, await self._metadata()))

    async def administrator(self) -> Any:
        """Return an admin client with the rights of the service, which close() closes."""
        async with self._connecting:
            if self._admin is None:
                self._admin = await self._started(AIOKafkaAdminClient, AIOKafkaAdminClient.close)
        return self._admin

    async def close(self) -> None:
        if self._ends is not None:
            await self._ends.stop()
        if self._admin is not None:
            await self._admin.close()

    def _listened(self, metadata: Any) -> list[str]:
        if not self._tenant_topics:
            return self._topics
        return [*self._topics, *filter(re.compile(TENANT_COMMANDS).fullmatch, metadata.topics())]

    async def _consumer(self) -> Any:
        async with self._connecting:
            if self._ends is None:
                self._ends = await self._started(
                    AIOKafkaConsumer,
                    AIOKafkaConsumer.stop,
                    enable_auto_commit=False,
                    request_timeout_ms=ANSWER_MILLISECONDS,
                )
        return self._ends

    async def _metadata(self) -> Any:
        consumer = await self._consumer()
        return await consumer._client.fetch_all_metadata()  # noqa: SLF001  no public call fetches a topic's

    async def _positions(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where each partition is read next: at its first record if nothing valid or existing is committed."""
        first = await (await self._consumer()).beginning_offsets(partitions)
        admin = await self.administrator()
        committed: Committed = await admin.list_consumer_group_offsets(self._group)
        self.ids.learn(await topic_ids(admin), partitions, committed)
        return {
            each: max(first[each], committed[each].offset)
            if each in committed and not self.ids.is_of_another(each, committed)
            else first[each]
            for each in partitions
        }

    async def _started(
        self, kind: Callable[..., Any], ending: Callable[[Any], Awaitable[None]], **options: Any
    ) -> Any:
        settings = self._settings
        login = sasl(
            settings.kafka_username,
            settings.kafka_password.get_secret_value(),
            ca_file=settings.tls.ca_file,
        )
        client = kind(bootstrap_servers=settings.kafka_bootstrap, **options, **login)
        starting = asyncio.ensure_future(client.start())
        try:
            await asyncio.shield(starting)
        except BaseException:
            # A start that fails leaves the client open, and one that is cancelled a connection of its bootstrap.
            if (await asyncio.wait({starting}, timeout=START_SECONDS))[0]:
                await ending(client)
            raise
        return client


class Metadata(Protocol):
    def partitions_for_topic(self, topic: str) -> Collection[int] | None: ...


def differences(topics: Iterable[Topic], metadata: Metadata) -> Iterator[str]:
    for topic in topics:
        num_partitions = len(metadata.partitions_for_topic(topic.name) or ())
        if num_partitions != topic.partitions:
            count = f"found {num_partitions} partitions, expected {topic.partitions}"
            problem = count if num_partitions else "it is missing"
            yield f"topic {topic.name}: {problem}; `python -m deploy.bootstrap` (or `retune up`) sets it up"


def _partitions(metadata: Any, topics: Iterable[str]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in topics
        for number in metadata.partitions_for_topic(topic) or ()
    ]
