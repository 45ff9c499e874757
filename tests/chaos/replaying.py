"""Reading every topic again from its first record, onto services that live: what it changes."""

import asyncio
from collections.abc import Iterable
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
from tests.integration.kernel.conftest import until

QUIET = """
    SELECT NOT EXISTS (SELECT FROM {service}.unpublished)
       AND NOT EXISTS (SELECT FROM {service}.task) AND NOT EXISTS (SELECT FROM {service}.waiting)"""


@dataclass(frozen=True)
class Picture:
    """All that a replay must leave as it is."""

    rows: dict[str, str]
    """Digest by `service.table`, the kernel's tables left out."""
    records: dict[str, int]
    """Number of records by topic."""
    objects: dict[str, str]
    """ETag by key."""

    def changes(self, later: "Picture") -> list[str]:
        return [
            f"{name}: {before.get(name)} -> {after.get(name)}"
            for before, after in (
                (self.rows, later.rows),
                (self.records, later.records),
                (self.objects, later.objects),
            )
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]


@dataclass
class Replay:
    stack: Stack
    db: asyncpg.Pool
    login: Login
    services: tuple[str, ...]
    read: dict[str, int] = field(default_factory=dict)
    """How many records each service read again."""

    async def changes(self) -> list[str]:
        """Let one service after the other read all it hears again; what is different then."""
        before = await self.picture()
        for service in self.services:
            await self._read_again(service)
        return before.changes(await self.picture())

    async def picture(self) -> Picture:
        """Once nothing moves."""
        await self._quiet()
        rows = {
            f"{service}.{table}": digest
            for service in self.services
            for table, digest in (await state_of(self.db, service)).items()
        }
        return Picture(rows, await self._records(), await asyncio.to_thread(self._objects))

    async def _read_again(self, service: str) -> None:
        await self.stack.stop(service)
        await remove_members(self.stack, service, f"{service}-0")
        topics = [topic.name for topic in LISTENS[service]]
        self.read[service] = await read_again(self.stack, service, topics)
        await self.stack.start(service)
        await self.stack.wait_healthy(service)
        await caught_up(self.stack, service)

    async def _quiet(self) -> None:
        for _ in self.services:  # what one says the next may still have to hear
            for service in self.services:
                await caught_up(self.stack, service)

            async def is_quiet() -> bool:
                return all([await self.db.fetchval(QUIET.format(service=each)) for each in self.services])

            await until(is_quiet, "the services to come to rest")

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
        return {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}


def _topics(services: Iterable[str]) -> list[str]:
    """All that they hear, and what they would say because of it."""
    names = set(services)
    return [
        topic.name
        for topic in TOPICS
        if names & set(topic.writers) or any(topic in LISTENS[service] for service in names)
    ]
