"""`retune replay` on real topics: counted, kept in a file byte by byte, sent again without effect."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deploy.local.stack import Stack
from ops.replay.targets import record_of
from schemas.job import CancelJob
from shared.messaging.login import Login
from shared.messaging.partitions import PartitionReader
from shared.storage.testing import FakeObjectStore
from tests.integration.auditing import Audited, record
from tests.integration.test_retune import Ended, retune
from tests.integration.voices import Voices, voices

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
async def voice(stack: Stack) -> AsyncIterator[Voices]:
    async with voices(stack) as voice:
        yield voice


@pytest.fixture
async def topics(stack: Stack) -> AsyncIterator[Audited]:
    topics = Audited(stack, FakeObjectStore())
    yield topics
    await topics.drop()


async def replay(stack: Stack, *arguments: str) -> Ended:
    return await retune(stack, "--json", "replay", *arguments)


def rows(ended: Ended) -> list[tuple[Any, ...]]:
    return [(row["topic"], row["type"], row["records"]) for row in ended.value]


async def ends_of(stack: Stack, topic: str) -> dict[Any, range]:
    login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
    async with PartitionReader(login) as reader:
        return await reader.ranges(await reader.partitions(topic.__eq__))


async def test_records_are_kept_with_every_byte(stack: Stack, topics: Audited, tmp_path: Path):
    topic = await topics.new_topic()
    hostile = [record(0), record(1, value=b"\xff\x00\n"), record(2)]
    await topics.write(topic, hostile)
    file = tmp_path / "kept.jsonl"
    ended = await replay(stack, "--topic", topic, "--to", str(file))
    assert rows(ended) == [(topic, "unreadable (bad_envelope)", 3)]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record_of(line) for line in lines] == await topics.read(topic)
    assert all("unreadable" in line for line in lines)
    again = await replay(stack, "--topic", topic, "--to", str(file))
    assert (again.code, "File exists" in again.err) == (1, True)
    part = await replay(stack, "--topic", topic, "--from", "1", "--until", "2", "--to", "-")
    (line,) = part.out.splitlines()
    assert record_of(json.loads(line)).value == b"\xff\x00\n"


async def test_commands_are_sent_again_with_their_ids_and_events_are_not(stack: Stack, voice: Voices):
    job = f"ftjob-{uuid4().hex[:8]}"
    command = CancelJob(job_id=job, tenant="demo", reason="user")
    event_id = await voice.say(
        "gateway", command, CancelJob(job_id=f"{job}-other", tenant="demo", reason="user")
    )
    before = await ends_of(stack, "job.commands")

    counted = await replay(stack, "--topic", "job.commands", "--from", "15m", "--job", job)
    assert rows(counted) == [("job.commands", "CancelJob", 1)]
    assert await ends_of(stack, "job.commands") == before

    sent = await replay(
        stack, "--topic", "job.commands", "--from", "15m", "--job", job, "--to", "job.commands"
    )
    assert rows(sent) == [("job.commands", "CancelJob", 1)]
    twice = await replay(stack, "--topic", "job.commands", "--from", "15m", "--job", job, "--to", "-")
    first, second = (record_of(json.loads(line)) for line in twice.out.splitlines())
    assert (first.key, first.headers, first.value) == (second.key, second.headers, second.value)
    assert first.partition == second.partition
    assert event_id != dict(first.headers)["ce_id"].decode()  # of the other job

    refused = await replay(stack, "--topic", "job.events", "--to", "job.events")
    assert (refused.code, refused.out) == (1, "")
    assert "job.events is written by scheduler alone" in " ".join(refused.err.split())
    assert "retune relay republish --service scheduler --topic job.events" in " ".join(refused.err.split())
    foreign = await replay(stack, "--topic", "job.events", "--to", "job.commands")
    assert (foreign.code, "types have one topic each" in " ".join(foreign.err.split())) == (1, True)
