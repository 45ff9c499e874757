"""SIGKILL at every failpoint of the kernel: each message has one effect, each fact is in Kafka, in order."""

import asyncio
import os
import signal
import sys

import pytest

from tests.integration.kernel.conftest import costs_of, new_key, until

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
)


class Victim:
    """The counting service as a process of its own."""

    def __init__(self, env: dict[str, str], log) -> None:
        self._env = env
        self._log = log

    async def start(self, failpoints: str = "") -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.kernel.counting",
            env=os.environ | self._env | {"FAILPOINTS": failpoints},
            stderr=self._log,
        )


async def test_a_kill_at_any_failpoint_loses_and_doubles_nothing(tracker_env, writer, db, login, tmp_path):
    key = new_key()
    with (tmp_path / "victim.log").open("wb") as log:
        victim = Victim(tracker_env, log)
        sent = []
        for name in FAILPOINTS:
            process = await victim.start(f"{name}=kill")
            sent.append(await writer.good(key))
            assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL, f"{name} was never passed"
        process = await victim.start()
        try:
            await until(lambda: _all_published(db, key, len(sent)), "every fact published")
        finally:
            process.terminate()
            # The HTTP server passes the signal on once everything is stopped.
            assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGTERM
    effects = [
        row["event_id"] for row in await db.fetch("SELECT event_id FROM effect WHERE aggregate_id = $1", key)
    ]
    assert effects == sent
    published = await costs_of(login, key)
    distinct = list(dict.fromkeys((each.envelope.sequence, each.envelope.id) for each in published))
    assert [sequence for sequence, _ in distinct] == list(range(1, len(sent) + 1))
    assert len(published) > len(sent), "the kill between send and mark must have sent a fact twice"


async def _all_published(db, key: str, count: int) -> bool:
    return await db.fetchval(
        "SELECT count(*) = $2 AND count(published_at) = $2 FROM outbox WHERE aggregate_id = $1", key, count
    )
