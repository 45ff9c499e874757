"""What comes again after the inbox was pruned: numbers hold facts back, the state it made holds commands back."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import Message
from schemas.topics import TENANT_COMMAND_TYPES, Topic
from shared.clock import utc_now
from shared.service import Service
from tests.chaos.consumers import HEARD, consumers, record_of, sample
from tests.chaos.scale import note
from tests.chaos.snapshots import state_of

pytestmark = pytest.mark.stack

NUMBERED = [
    (service, topic, message)
    for service, topic in HEARD
    if topic.is_event_stream
    for message in topic.messages
]
UNNUMBERED = [
    (service, topic, message)
    for service, topic in HEARD
    if not topic.is_event_stream
    for message in topic.messages
]
COMMANDS = [each for each in UNNUMBERED if each[1].is_commands]
REFUSED_WITH = """
    SELECT convert_from(value, 'UTF8')::jsonb ->> 'code' FROM {service}.outbox
     WHERE type = 'CommandRefused' AND headers ->> 'ce_causationid' = $1"""
COUNTS = frozenset({"commands_of_day"})
"""Tables that count what comes, whatever becomes of it."""


@pytest.fixture(scope="module")
async def services(stack: Stack) -> AsyncIterator[dict[str, Service]]:
    async with consumers(stack) as services:
        yield services


async def twice(
    service: Service, topic: Topic, message: type[Message], db: asyncpg.Pool
) -> tuple[str, str, list[str]]:
    """The outcome of a message, that of the same one once the inbox has forgotten it, and the tables changed by it."""
    record = record_of(topic, sample(message))
    first = await service._consumer.consume(record)
    await service.database.execute("DELETE FROM inbox")
    before = await state_of(db, service.name)
    again = await service._consumer.consume(record)
    after = await state_of(db, service.name)
    changed = [table for table in before if before[table] != after[table]]
    return first, again, [table for table in changed if table not in COUNTS]


async def test_no_fact_has_a_second_effect(services: dict[str, Service], db: asyncpg.Pool):
    outcomes = Counter[str]()
    for service, topic, message in NUMBERED:
        first, again, changed = await twice(services[service], topic, message, db)
        where = f"{service}: {message.type} on {topic.name} was {first}, then {again}"
        assert changed == [], where
        # Without the inbox the same event cannot be distinguished from another one with its number.
        if first in ("applied", "ignored"):
            assert again == {"applied": "parked", "ignored": "duplicate"}[first], where
        outcomes[first] += 1
    assert outcomes["applied"] > 100, outcomes  # else little was shown
    note("facts after pruning", **outcomes)


async def test_no_command_or_report_changes_a_row_the_second_time(
    services: dict[str, Service], db: asyncpg.Pool
):
    outcomes = {
        f"{service}: {message.type} on {topic.name}": await twice(services[service], topic, message, db)
        for service, topic, message in UNNUMBERED
    }
    assert {where: what for where, what in outcomes.items() if what[2]} == {}
    counts = Counter(first for first, _, _ in outcomes.values())
    assert counts["applied"] > 30, counts
    note("commands and reports after pruning", **counts)


async def test_an_old_command_that_is_read_again_is_refused_whatever_has_come_in_between(
    services: dict[str, Service], db: asyncpg.Pool
):
    """As after an offset reset: none of these was ever seen by the service as it is now."""
    codes = Counter[str]()
    for service, topic, message in COMMANDS:
        event_id = uuid4().hex
        record = record_of(topic, sample(message), event_id=event_id)
        written = utc_now() - timedelta(days=topic.retention_days, minutes=1)
        before = await state_of(db, service)
        old = replace(record, timestamp_ms=int(written.timestamp() * 1000))
        assert await services[service]._consumer.consume(old) in ("refused", "ignored")
        after = await state_of(db, service)
        where = f"{service}: {message.type} on {topic.name}"
        assert [table for table in before if before[table] != after[table]] == [], where
        codes[await db.fetchval(REFUSED_WITH.format(service=service), event_id)] += 1
    assert codes["expired"] > len(TENANT_COMMAND_TYPES)
    assert codes.keys() <= {"expired", None}
    note("old commands", **{"refused as expired": codes["expired"]})
