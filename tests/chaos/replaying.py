"""Reading every topic again from its first record, onto services that live: what it changes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import asyncpg
import boto3

from deploy.bootstrap.site import REGION, S3_ROOT
from deploy.local.stack import Stack
from schemas.topics import LISTENS, TOPICS
from shared.messaging.login import Login
from shared.messaging.partitions import PartitionReader
from tests.chaos.groups import read_again, remove_members
from tests.chaos.pipeline import caught_up
from tests.chaos.snapshots import state_of
from tests.waiting import until

STATEMENTS = "audit/"
Start = Callable[[str], Awaitable[None]]

QUIET = """
    SELECT NOT EXISTS (SELECT FROM {service}.unpublished)
       AND NOT EXISTS (SELECT FROM {service}.task) AND NOT EXISTS (SELECT FROM {service}.waiting)"""
EMITTED = "SELECT topic, type, count(*) FROM {service}.outbox GROUP BY topic, type"


@dataclass(frozen=True)
class Picture:
    """All that a replay must leave as it is."""

    rows: dict[str, str]
    """Digest by `service.table`, the kernel's tables left out."""
    events: dict[str, int]
    """Number of what the services have emitted by `topic type`."""
    records: dict[str, int]
    """Number of records by topic."""
    objects: dict[str, str]
    """ETag by key, without the auditor's statements, which it makes as time passes."""

    def changes(self, later: "Picture") -> dict[str, str]:
        return {
            name: f"{before.get(name)} -> {after.get(name)}"
            for before, after in (
                (self.rows, later.rows),
                (self.events, later.events),
                (self.records, later.records),
                (self.objects, later.objects),
            )
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        }


@dataclass
class Replay:
    stack: Stack
    db: asyncpg.Pool
    login: Login
    services: tuple[str, ...]
    start: Start
    """Starts a service that was stopped, as it was before."""
    read: dict[str, int] = field(default_factory=dict)
    """How many records each service read again."""

    async def changes(self, *, without_inbox: bool = False) -> dict[str, str]:
        """Let all services at once read all they hear again; by name what is different then.

        without_inbox: after their inboxes have forgotten everything.
        """
        before = await self.picture()
        await asyncio.gather(*map(self.stack.stop, self.services))
        if without_inbox:
            await self._forget()
        for service in self.services:
            await remove_members(self.stack, service, f"{service}-0")
            topics = [topic.name for topic in LISTENS[service]]
            self.read[service] = await read_again(self.stack, service, topics)
        await asyncio.gather(*map(self.start, self.services))
        await asyncio.gather(*map(self.stack.wait_healthy, self.services))
        return before.changes(await self.picture())

    async def picture(self) -> Picture:
        """Once nothing moves."""
        await self._quiet()
        rows = {
            f"{service}.{table}": digest
            for service in self.services
            for table, digest in (await state_of(self.db, service)).items()
        }
        objects = await asyncio.to_thread(self._objects)
        return Picture(rows, await self._events(), await self._records(), objects)

    async def _forget(self) -> None:
        conn = await asyncpg.connect(self.stack.postgres_dsn("postgres"))
        try:
            for service in self.services:
                await conn.execute(f"DELETE FROM {service}.inbox")
        finally:
            await conn.close()

    async def _quiet(self) -> None:
        """Messages of one service may still be on their way to the next."""

        async def is_quiet() -> bool:
            return all([await self.db.fetchval(QUIET.format(service=each)) for each in self.services])

        records = None
        while records != (records := await self._records()):
            await asyncio.gather(*(caught_up(self.stack, service) for service in self.services))
            await until(is_quiet, "the services to come to rest")

    async def _events(self) -> dict[str, int]:
        counts = Counter[str]()
        for service in self.services:
            for row in await self.db.fetch(EMITTED.format(service=service)):
                counts[f"{row['topic']} {row['type']}"] += row["count"]
        return dict(counts)

    async def _records(self) -> dict[str, int]:
        names = _topics(self.services)
        async with PartitionReader(self.login) as reader:
            ranges = await reader.ranges(await reader.partitions(names.__contains__))
        return {
            name: sum(there.stop for partition, there in ranges.items() if partition.topic == name)
            for name in names
        }

    def _objects(self) -> dict[str, str]:
        key = self.stack.s3_credentials(S3_ROOT)
        client = boto3.client(
            "s3",
            endpoint_url=self.stack.s3_endpoint,
            aws_access_key_id=key.access_key,
            aws_secret_access_key=key.secret_key,
            region_name=REGION,
        )
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.stack.s3_bucket)
        objects = {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}
        return {key: etag for key, etag in objects.items() if not key.startswith(STATEMENTS)}


def _topics(services: Iterable[str]) -> list[str]:
    """All that they hear, and what they would say because of it."""
    names = set(services)
    return [
        topic.name
        for topic in TOPICS
        if names & set(topic.writers) or any(topic in LISTENS[service] for service in names)
    ]
