"""`retune audit verify` against an intruder with every right but the signing key."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from tests.chaos.scale import note, seed
from tests.integration.auditing import Audited, record
from tests.integration.test_retune import retune
from tests.unit.auditor.records import seeded
from tests.unit.ops.audit_world import TAMPERS

pytestmark = pytest.mark.stack

RECORDS = 30
REWRITING = ("edit", "delete", "swap", "truncated tail")
"""What can be done to a log by making it again."""


@pytest.fixture(scope="module")
async def audited(stack: Stack) -> AsyncIterator[Audited]:
    async with Audited.on(stack) as audited:
        yield audited


async def test_a_topic_made_again_with_the_same_times_is_found_out(audited: Audited):
    untouched, *topics = [await audited.new_topic() for _ in range(1 + len(REWRITING))]
    for topic in (untouched, *topics):
        await audited.write(topic, map(record, range(RECORDS)))
    number = await audited.signed(dict.fromkeys((untouched, *topics), RECORDS))
    assert (await audited.examine(untouched, *topics)).findings == []

    expected, changed = {}, {}
    for topic, way in zip(topics, REWRITING, strict=True):
        rng, _ = seeded(way)
        changed[topic], expected[topic] = TAMPERS[way](rng, await audited.read(topic), RECORDS)
    await audited.make_again(changed)

    findings = (await audited.examine(untouched, *topics, until=number)).findings
    assert {each.partition.topic for each in findings} == set(topics)
    for topic, offsets in expected.items():
        ranges = [each.offsets for each in findings if each.partition.topic == topic]
        assert any(offsets & set(each) for each in ranges), f"{topic} {ranges}; CHAOS_SEED={seed()}"
    note("topic made again", topics=len(topics))
    ended = await retune(audited.stack, "--json", "audit", "verify", "--until", str(number))
    assert (ended.code, "the topics or the statements are not what they were" in ended.err) == (1, True)
    assert {each["topic"] for each in json.loads(ended.out)["findings"]} == set(topics)


async def test_records_deleted_before_their_time_are_distinguished_from_retention(audited: Audited):
    topic = await audited.new_topic()
    young = [record(number) for number in range(20)]
    await audited.write(topic, young)
    await audited.signed({topic: 20})
    async with administrator(site(audited.stack.state)) as admin:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=7)})
    (finding,) = (await audited.examine(topic)).findings
    assert (finding.what, finding.offsets) == ("deleted", range(7))

    old = await audited.new_topic()
    month = 40 * 24 * 3600 * 1000
    await audited.write(old, (replace(each, timestamp_ms=each.timestamp_ms - month) for each in young))
    await audited.signed({old: 20})
    async with administrator(site(audited.stack.state)) as admin:
        await admin.delete_records({TopicPartition(old, 0): RecordsToDelete(before_offset=7)})
    assert (await audited.examine(old)).findings == []


async def test_a_statement_that_is_replaced_or_taken_away_is_found_out(audited: Audited):
    topic = await audited.new_topic()
    await audited.write(topic, map(record, range(5)))
    last = await audited.signed({topic: 5})
    await audited.stack.stop("auditor")
    statements = await audited.statements()
    assert len(statements) > last - 1 > 3
    keys = [key for key, _ in statements]
    newest = await audited.noted()
    assert len(keys) - newest in (0, 1), "it may have ended between a statement and its note of it"

    async def statement_findings() -> list[Any]:
        findings = (await audited.examine(topic)).findings
        return [(each.detail, *(each.between or ())) for each in findings if each.what == "statement"]

    assert await statement_findings() == []
    middle = await audited.objects.get_bytes(keys[2])
    await audited.objects.delete([keys[2]])
    assert await statement_findings() == [("missing are 3–3", 2, 4)]
    await audited.objects.put_bytes(keys[2], await audited.objects.get_bytes(keys[1]))
    (first, *more) = await statement_findings()
    assert first == ("found the statement 2 in the place of 3", 2, 3)
    assert [numbers for _, *numbers in more] == [[3, 4]]
    await audited.objects.delete([keys[2]])
    await audited.objects.put_bytes(keys[2], middle.replace(b'"signature":"', b'"signature":"A'))
    assert (await statement_findings())[0][1:] == (2, 3)
    await audited.objects.delete([keys[2], *keys[newest - 1 :]])
    await audited.objects.put_bytes(keys[2], middle)
    detail = f"missing are {newest}–{newest}, of which the auditor says that they are there"
    assert await statement_findings() == [(detail, newest - 1, newest)]
