"""SIGKILL at every failpoint of the kernel: each message has one effect, each fact is in Kafka, in order."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schemas.parked import ReplayParked
from shared.messaging.reader import send
from tests.integration.kernel.conftest import costs_of, new_key, until
from tests.integration.kernel.counting import job_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

FAILPOINTS = (
    "consume.decoded",
    "tx.begun",
    "inbox.inserted",
    "outbox.inserted",
    "state.written",
    "db.commit.before",
    "db.commit.after",
    "offset.commit.before",
    "offset.commit.after",
    "relay.read",
    "relay.sent",
    "relay.marked",
    "gc.deleted",
    "lease.acquired",
    "lease.renewed",
    "lease.lost",
)
RENEW_OFTEN = {"TIMING_LEASE_RENEW": "PT0.1S"}
TAKE_LEASE_AWAY = """
    UPDATE lease SET owner = 'another', epoch = epoch + 1, expires_at = clock_timestamp() + interval '1 second'
     WHERE name = 'relay' AND epoch > $1 RETURNING true"""
FIND_EPOCH = "SELECT epoch FROM lease WHERE name = 'relay'"
ADD_OLD_ROW = """
    INSERT INTO inbox VALUES ('tracker', 'dataset.events', $1, '', clock_timestamp() - interval '31 days')"""


class Victim:
    """The counting service as a process of its own."""

    def __init__(self, env: dict[str, str], log) -> None:
        self._env = env
        self._log = log

    async def _start(self, failpoints: str = "") -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.kernel.counting",
            env=os.environ | self._env | RENEW_OFTEN | {"FAILPOINTS": failpoints},
            stderr=self._log,
        )

    @asynccontextmanager
    async def killed_at(self, name: str) -> AsyncIterator[None]:
        """What is done inside makes the process pass this place, where it dies."""
        process = await self._start(f"{name}=kill")
        try:
            yield
            assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL, f"{name} was never passed"
        finally:
            if process.returncode is None:
                process.kill()

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        process = await self._start()
        try:
            yield
        finally:
            process.terminate()
            # The HTTP server passes the signal on once everything is stopped.
            assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGTERM


@pytest.fixture
def victim(tracker_env, tmp_path):
    with (tmp_path / "victim.log").open("wb") as log:
        yield Victim(tracker_env, log)


async def test_a_kill_at_any_failpoint_loses_and_doubles_nothing(victim, writer, db, login):
    key = new_key()
    await db.execute(ADD_OLD_ROW, key)
    sent, epochs = [], []
    for name in FAILPOINTS:
        async with victim.killed_at(name):
            sent.append(await writer.good(key))
            if name == "lease.lost":
                await until(lambda: db.fetchval(TAKE_LEASE_AWAY, epochs[-1]), "the victim's lease")
        epochs.append(await db.fetchval(FIND_EPOCH))
    async with victim.alive():
        await until(lambda: _all_published(db, key, len(sent)), "every fact published")
    assert await _effects(db, key) == sent
    assert await db.fetchval("SELECT count(*) FROM inbox WHERE event_id = $1", key) == 0
    assert await db.fetchval(FIND_EPOCH) > epochs[-1] > epochs[-2]
    published = await costs_of(login, key)
    distinct = list(dict.fromkeys((each.envelope.sequence, each.envelope.id) for each in published))
    assert [sequence for sequence, _ in distinct] == list(range(1, len(sent) + 1))
    assert len(published) > len(sent), "the kill between send and mark must have sent a fact twice"


async def test_a_kill_while_parking_parks_once(victim, writer, db):
    key = new_key()
    async with victim.killed_at("park.inserted"):
        await writer.good(key, tenant="hopeless")
    assert await _parked(db, key) == []
    async with victim.alive():
        await until(lambda: _told(db, "MessageParked", key), "the fact that it is parked")
    assert [row["state"] for row in await _parked(db, key)] == ["parked"]
    assert await _told(db, "MessageParked", key) == 1


async def test_a_kill_during_a_replay_applies_the_message_once(victim, writer, db, login):
    key = new_key()
    async with victim.killed_at("dlq.replayed"):
        event_id = await writer.good(key, tenant="early")
        [row] = await until(lambda: _parked(db, key), "the message parked")
        await db.execute("INSERT INTO parent VALUES ($1)", key)
        await send(login, ReplayParked(service="tracker", parked_id=row["id"]), writer="admin")
    assert await _told(db, "ParkedSettled", row["id"]) == 0
    async with victim.alive():
        await until(lambda: _told(db, "ParkedSettled", row["id"]), "the fact that it is settled")
    assert await _effects(db, key) == [event_id]
    assert [row["state"] for row in await _parked(db, key)] == ["replayed"]
    assert await _told(db, "ParkedSettled", row["id"]) == 1
    assert await db.fetchval("SELECT count(*) FROM task WHERE kind = 'ReplayTask'") == 0


async def _effects(db, key: str) -> list[str]:
    rows = await db.fetch("SELECT event_id FROM effect WHERE aggregate_id = $1", key)
    return [row["event_id"] for row in rows]


async def _parked(db, key: str) -> list:
    return await db.fetch("SELECT id, state FROM parked WHERE aggregate_id = $1", key)


async def _told(db, kind: str, about: object) -> int:
    """How many facts of this kind are in Kafka about a story or a parked row."""
    rows = await db.fetch("SELECT value FROM outbox WHERE type = $1 AND published_at IS NOT NULL", kind)
    facts = [json.loads(row["value"]) for row in rows]
    return sum(about in (fact.get("aggregate_id"), fact["parked_id"]) for fact in facts)


async def _all_published(db, key: str, count: int) -> bool:
    return await db.fetchval(
        "SELECT count(*) = $2 AND count(published_at) = $2 FROM outbox WHERE aggregate_id = $1",
        job_of(key),
        count,
    )
