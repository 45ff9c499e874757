"""An auditor of its own past, and topics of tenants that nobody else uses."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import asyncpg
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from deploy.bootstrap.kafka import administrator
from deploy.bootstrap.site import KAFKA_SUPER_USER
from deploy.local.site import site
from deploy.local.stack import Stack
from ops.audit.verification import LAST_NUMBER, Examined, examine
from ops.connection import find_connection
from schemas import layout
from schemas.audit import SignedStatement, Statement
from shared.clock import utc_now
from shared.messaging.kafka import kafka_producer
from shared.messaging.login import Login
from shared.messaging.partitions import READING_MS, PartitionReader
from shared.postgres.migrate import migrate
from shared.record import Record
from shared.storage.objects import ObjectStore
from shared.storage.s3 import S3ObjectStore
from tests.waiting import until

BEGAN_MS = int(utc_now().timestamp() * 1000) - 3_600_000
QUICK = {"AUDITOR_SIGN_EVERY": "PT0.3S", "AUDITOR_READ_EVERY": "PT0.1S", "AUDITOR_LOOK_EVERY": "PT0.3S"}


@dataclass
class Audited:
    stack: Stack
    objects: ObjectStore
    """With every right."""
    topics: list[str] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def on(cls, stack: Stack) -> AsyncIterator["Audited"]:
        root = stack.s3_credentials("root")
        objects = S3ObjectStore(stack.s3_endpoint, root.access_key, root.secret_key, bucket=stack.s3_bucket)
        audited = cls(stack, objects)
        await audited.forget()
        await migrate("auditor", stack.postgres_dsn("auditor"))
        await audited.postgres("DELETE FROM chain", "DELETE FROM statement")
        await audited.start()
        try:
            yield audited
        finally:
            await stack.stop("auditor")
            await audited.drop()

    async def forget(self) -> None:
        await self.objects.delete([head.key for head in await self.objects.list_objects(layout.AUDIT)])

    async def drop(self) -> None:
        async with administrator(site(self.stack.state)) as admin:
            await admin.delete_topics(self.topics)

    async def start(self) -> None:
        await self.stack.start("auditor", env=QUICK)
        await self.stack.wait_healthy("auditor")

    async def new_topic(self) -> str:
        name = f"tenant.audited-{uuid4().hex[:6]}.commands"
        self.topics.append(name)
        await self.make_topic(name)
        return name

    async def make_topic(self, name: str) -> None:
        async with administrator(site(self.stack.state)) as admin:

            async def is_created() -> bool:
                # Kafka looks for old records whenever it likes; here only tests delete.
                topic = NewTopic(name, 1, 1, topic_configs={"retention.ms": "-1"})
                response = await admin.create_topics([topic])
                return all(code == 0 for _, code, *_ in response.topic_errors)

            await until(is_created, f"{name} made")

    async def make_again(self, topics: Mapping[str, Iterable[Record]]) -> None:
        """What whoever has an administrator's rights can do."""
        async with administrator(site(self.stack.state)) as admin:
            await admin.delete_topics(list(topics))
        await asyncio.gather(*map(self.make_topic, topics))
        for name, records in topics.items():
            await self.write(name, records)

    async def write(self, name: str, records: Iterable[Record]) -> None:
        password = self.stack.kafka_password(KAFKA_SUPER_USER)
        bootstrap = self.stack.kafka_bootstrap
        async with kafka_producer(bootstrap, KAFKA_SUPER_USER, password, client_id="intruder") as producer:
            acks = [await self._send(producer, name, record) for record in records]
            await asyncio.gather(*acks)

    async def _send(self, producer: AIOKafkaProducer, name: str, record: Record) -> Any:
        return await producer.send(
            name,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            timestamp_ms=record.timestamp_ms,
            partition=0,
        )

    async def read(self, name: str) -> list[Record]:
        login = Login(self.stack.kafka_bootstrap, "admin", self.stack.kafka_password("admin"))
        async with PartitionReader(login, idle_ms=READING_MS) as reader:
            (topic_partition,) = await reader.partitions(name.__eq__)
            there = (await reader.ranges([topic_partition]))[topic_partition]
            reader.assign({topic_partition: there.start})
            records: list[Record] = []
            while await reader.position(topic_partition) < there.stop:
                records += await reader.fetch()
        return records

    async def examine(self, *topics: str, until: int | None = None) -> Examined:
        """What `retune audit verify` finds, without the start of a process."""
        return await examine(find_connection(self.stack.operator_env()), frozenset(topics), None, until)

    async def statements(self) -> list[tuple[str, Statement]]:
        keys = sorted(head.key for head in await self.objects.list_objects(layout.AUDIT))
        documents = await asyncio.gather(*(self.objects.get_bytes(key) for key in keys))
        return list(zip(keys, map(_statement, documents), strict=True))

    async def signed(self, ends: dict[str, int]) -> int:
        """Wait for a statement that covers these topics up to these offsets; its number."""

        known: dict[str, int] = {}
        read: list[str] = []

        async def covered() -> int:
            for head in sorted(await self.objects.list_objects(layout.AUDIT), key=lambda head: head.key):
                if head.key in read:
                    continue
                statement = _statement(await self.objects.get_bytes(head.key))
                known.update({each.topic: each.next_offset for each in statement.partitions})
                read.append(head.key)
            is_covered = all(known.get(topic, -1) >= end for topic, end in ends.items())
            return statement_number(read[-1]) if read and is_covered else 0

        number: int = await until(covered, f"a statement that covers {ends}")
        return number

    async def noted(self) -> int:
        """The last statement of which the auditor has noted that it is there."""
        connection = await asyncpg.connect(self.stack.postgres_dsn("auditor"))
        number: int = await connection.fetchval(LAST_NUMBER)
        await connection.close()
        return number

    async def postgres(self, *queries: str) -> None:
        """All at once, as a database is set back: between two of them the auditor could make a statement."""
        connection = await asyncpg.connect(self.stack.postgres_dsn("auditor"))
        async with connection.transaction():
            for query in queries:
                await connection.execute(query)
        await connection.close()


def statement_number(key: str) -> int:
    return int(key.removeprefix(layout.AUDIT).removesuffix(".json"))


def _statement(document: bytes) -> Statement:
    return Statement.model_validate_json(SignedStatement.model_validate_json(document).statement)


def record(number: int, *, value: bytes | None = None) -> Record:
    text = json.dumps({"number": number}).encode() if value is None else value
    headers: Sequence[Any] = (("ce_id", b"%d" % number), ("empty", b""))
    return Record("", 0, number, b"key-%d" % (number % 3), tuple(headers), text, BEGAN_MS + number)
