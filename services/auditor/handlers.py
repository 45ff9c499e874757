"""Two loops: read on, and sign how far. What was read and the link there are written in one transaction."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from schemas import layout
from schemas.audit import Statement
from schemas.topics import is_audited
from services.auditor import decide, store
from services.auditor.settings import Settings
from shared.audit import heads
from shared.audit.chain import Chain, extend
from shared.audit.signing import BadSignature, SigningKey
from shared.errors import Conflict
from shared.log import get_logger
from shared.messaging.kafka_health import ClientUnresponsive
from shared.messaging.lag import Progress
from shared.messaging.partitions import PartitionReader
from shared.partition import Partition
from shared.record import Record
from shared.service import Service

log = get_logger(__name__)

BATCH_RECORDS = 2_000
BATCH_SECONDS = 60.0
"""Kafka is asked after this time whether it answers; a batch that takes as long again after an answer is given up."""


@dataclass
class Reading:
    """Reads every audited partition from where its chain ends."""

    service: Service
    reader: PartitionReader
    look_seconds: float
    chains: dict[Partition, Chain] = field(default_factory=dict)
    """Chains of the partitions that are assigned, as they are in Postgres."""
    looked_at: float = 0.0
    progress: Progress = field(default_factory=Progress)

    async def read_on(self) -> None:
        """Read until nothing more has come."""
        try:
            while await self.service.with_timeout(self._read_batch(), seconds=BATCH_SECONDS):
                pass
        except BaseException:
            self.chains = {}  # what Postgres has is the truth
            raise

    async def _read_batch(self) -> bool:
        if not self.chains or time.monotonic() - self.looked_at > self.look_seconds:
            await self._look()
        records = await self.reader.fetch(max_records=BATCH_RECORDS)
        await self._take(records)
        return bool(records)

    async def _look(self) -> None:
        """Find new partitions, and logs that lost what was read or not yet read."""
        topic_partitions = await self.reader.partitions(is_audited)
        there = await self.reader.ranges(topic_partitions)
        async with self.service.unit() as unit:
            plan = decide.plan(await store.get_chains(unit.conn), there)
            await store.begin_chains(unit.conn, plan.began)
        self.looked_at = time.monotonic()
        _report(plan, there)
        self._require_progress(plan.read, there)
        chains = {chain.topic_partition: _without_times(chain) for chain in plan.read}
        if chains != self.chains:
            self.reader.assign(
                {topic_partition: chain.next_offset for topic_partition, chain in chains.items()}
            )
        self.chains = chains

    def _require_progress(self, chains: Iterable[Chain], there: dict[Partition, range]) -> None:
        for chain in chains:
            offsets = {"position": chain.next_offset, "end": there[chain.topic_partition].stop}
            if self.progress.is_stalled(chain.topic_partition, **offsets, now=time.monotonic()):
                raise ClientUnresponsive(
                    f"records lie for a minute in {chain.topic_partition}, and Kafka's client hands over none"
                )

    async def _take(self, records: list[Record]) -> None:
        moved = {
            topic_partition: extend(self.chains[topic_partition], new_records)
            for topic_partition, new_records in _by_topic_partition(records).items()
        }
        async with self.service.unit() as unit:
            for topic_partition in sorted(moved):  # in the order in which signing locks them
                await store.advance(unit.conn, self.chains[topic_partition], moved[topic_partition])
        self.chains |= {topic_partition: _without_times(after) for topic_partition, after in moved.items()}


def _report(plan: decide.Plan, there: dict[Partition, range]) -> None:
    for chain in plan.missed:
        _log_loss("records were gone before they were read", chain, there)
    for chain in plan.cut:
        _log_loss("the log ends before what was read", chain, there)


def _without_times(chain: Chain) -> Chain:
    """Return the chain without its times, which are gathered in Postgres from one statement to the next."""
    return replace(chain, oldest_ms=None, newest_ms=None)


def _by_topic_partition(records: Iterable[Record]) -> dict[Partition, list[Record]]:
    records_by_partition: dict[Partition, list[Record]] = defaultdict(list)
    for record in records:
        records_by_partition[Partition(record.topic, record.partition)].append(record)
    return records_by_partition


def _log_loss(what: str, chain: Chain, there: dict[Partition, range]) -> None:
    topic_partition, offsets = chain.topic_partition, there[chain.topic_partition]
    log.error(
        what,
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        read_up_to=chain.next_offset,
        log_start=offsets.start,
        log_end=offsets.stop,
    )


@dataclass(frozen=True)
class Signing:
    """Signs in Postgres first, then puts the very same bytes to S3."""

    service: Service
    key: SigningKey

    async def sign(self) -> None:
        if await self._put_all():
            return  # S3 was away: how far was read then is said now, how far now in a minute
        async with self.service.unit() as unit:
            chains, last = await store.lock_chains(unit.conn), await store.last_statement(unit.conn)
            moved = None if decide.is_full_due(last) else await store.moved_topic_partitions(unit.conn)
            statement = decide.state(last, chains, moved, now=unit.now)
            document = self.key.sign(statement)
            await store.add_statement(unit.conn, _last(statement.number, document), document)
            await store.mark_signed(unit.conn, statement.partitions)
        await self._put_all()

    async def _put_all(self) -> bool:
        """Put every statement that S3 does not have yet. Return whether there was one."""
        async with self.service.unit() as unit:
            waiting = await store.statements_to_put(unit.conn)
        for number, document in waiting:
            try:
                await self.service.objects.put_bytes(layout.audit_statement(number), document)
            except Conflict:
                log.exception("S3 has another statement", number=number)
                await self._adopt_newest()
                break
            async with self.service.unit() as unit:
                await store.mark_put(unit.conn, number)
        return bool(waiting)

    async def adopt(self) -> None:
        """Continue from the newest statement in S3 where Postgres was set back behind it.

        Raises BadSignature where it is not ours.
        """
        async with self.service.unit() as unit:
            last = await store.last_statement(unit.conn)
        if await self._is_behind(last):
            await self._adopt_newest()

    async def _adopt_newest(self) -> None:
        document, statement = await self._newest()
        known = await self._heads_at(statement)
        async with self.service.unit() as unit:
            await store.replace_chains(unit.conn, known.values())
            await store.replace_statements(unit.conn, _last(statement.number, document), document)
        log.warning("continued from a statement that Postgres did not know", number=statement.number)

    async def _is_behind(self, last: decide.Last) -> bool:
        objects = self.service.objects
        same = await objects.head(layout.audit_statement(last.number)) if last.number else None
        next_one = await objects.head(layout.audit_statement(last.number + 1))
        return next_one is not None or (same is not None and same.sha256 != last.sha256)

    async def _newest(self) -> tuple[bytes, Statement]:
        keys = sorted(head.key for head in await self.service.objects.list_objects(layout.AUDIT))
        return await self._get(keys[-1])

    async def _heads_at(self, statement: Statement) -> heads.Heads:
        """Return where every chain ended when the statement was signed."""
        statements = [statement]
        while not statements[-1].is_full:
            _, before = await self._get(layout.audit_statement(statements[-1].number - 1))
            statements.append(before)
        known = heads.after(reversed(statements))
        if not heads.agrees(known, statement):
            raise BadSignature(f"statement {statement.number} is of other heads than those before it say")
        return known

    async def _get(self, key: str) -> tuple[bytes, Statement]:
        document = await self.service.objects.get_bytes(key)
        return document, self.key.public.open(document)


def _last(number: int, document: bytes) -> decide.Last:
    return decide.Last(number, hashlib.sha256(document).hexdigest())


def register(service: Service, settings: Settings, reader: PartitionReader) -> None:
    reading = Reading(service, reader, settings.look_every.total_seconds())
    signing = Signing(service, SigningKey.read_or_make(settings.signing_key_file))
    signing.key.publish(settings.public_key_file)
    service.on_lead(signing.adopt)
    service.on_start(reader.open)
    service.on_stop(reader.close)
    service.every(settings.read_every, reading.read_on, singleton=True)
    service.every(settings.sign_every, signing.sign, singleton=True)
