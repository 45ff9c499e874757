"""`retune` as a person runs it, on a real stack: topics, parked messages and nodes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.envelope import Envelope, to_headers
from schemas.job import JobScheduled
from schemas.node import NodePreempted, NodesProvisioned, NodesReleased
from schemas.training import RunnerStarted
from shared.clock import utc_now
from shared.messaging.kafka import kafka_producer
from shared.processes.identity import signal_marked
from tests.integration.attempts import FAKE_CHILD, TENANT, Attempts
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

POOLS = """
[pools.test]
capacity_type = "spot"
device = "cpu"
nodes = 2
devices_per_node = 1
price_per_device_hour = 0.10
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


async def retune(stack: Stack, *arguments: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.app", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | stack.operator_env(),
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@pytest.fixture(scope="module")
async def attempts(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Attempts]:
    folder = tmp_path_factory.mktemp("provisioner")
    (folder / "pools.toml").write_text(POOLS)
    child = json.dumps([sys.executable, str(FAKE_CHILD), json.dumps({"steps": 10_000, "hold_at": 3})])
    given = (stack.state.root / "runner.env").read_text()
    (folder / "runner.env").write_text(f"{given}RUNNER_CHILD_ARGV='{child}'\n")
    env = {
        "PROVISIONER_POOLS_FILE": str(folder / "pools.toml"),
        "PROVISIONER_NODES_DIR": str(folder / "nodes"),
        "PROVISIONER_RUNNER_ENV_FILE": str(folder / "runner.env"),
    }
    services = {"provisioner": env, "tracker": {}, "gateway": {}}
    for name, own in services.items():
        await stack.start(name, env=own)
    for name in services:
        await stack.wait_healthy(name)
    async with Attempts.on(stack, pool="test") as attempts:
        yield attempts
    for name in services:
        await stack.stop(name)


@pytest.fixture
async def provisioned(attempts: Attempts) -> AsyncIterator[tuple[JobScheduled, str]]:
    """An attempt, and the id of its node."""
    scheduled = await attempts.schedule()
    fact = await attempts.until(scheduled.job_id, NodesProvisioned)
    yield scheduled, fact.nodes[0].node_id
    if not attempts.heard(scheduled.job_id, NodesReleased):
        await attempts.stop(scheduled, seconds=0)
        await attempts.until(scheduled.job_id, NodesReleased)


class TestNodes:
    async def test_capacity_that_is_set_is_listed(self, attempts: Attempts):
        result = await retune(attempts.stack, "nodes", "set-capacity", "test", "3")
        assert (result.code, result.out) == (0, "test: 3 nodes, 3 wholly free\n"), result.err

        async def listed() -> list[Any]:
            pools = (await retune(attempts.stack, "--json", "nodes", "pools")).value
            return [pool for pool in pools if (pool["pool"], pool["nodes"], pool["free"]) == ("test", 3, 3)]

        assert (await until(listed, "the pool with its new capacity"))[0]["capacity_type"] == "spot"
        refused = await retune(attempts.stack, "nodes", "set-capacity", "gone", "3")
        assert (refused.code, refused.out, refused.err.split(":")[0]) == (1, "", "unknown_pool")

    async def test_a_drained_node_gets_its_notice_and_leaves_the_pool(self, attempts: Attempts, provisioned):
        scheduled, node = provisioned
        result = await retune(attempts.stack, "nodes", "drain", node, "--grace", "20")
        assert (result.code, result.out) == (0, f"{node} is drained\n"), result.err
        preempted = await attempts.until(scheduled.job_id, NodePreempted)
        assert (preempted.node_id, preempted.source) == (node, "drain")
        refused = await retune(attempts.stack, "nodes", "drain", "n-gone")
        assert (refused.code, refused.err.split(":")[0]) == (1, "unknown_node")

    async def test_a_machine_is_cordoned_listed_and_has_a_history(self, attempts: Attempts, provisioned):
        scheduled, node = provisioned
        [allocated] = (await attempts.until(scheduled.job_id, NodesProvisioned)).nodes
        stack, machine = attempts.stack, str(allocated.machine)
        result = await retune(stack, "nodes", "cordon", "test", machine, "--reason", "dusty")
        assert (result.code, result.out) == (0, f"{machine} of test takes no more work\n"), result.err
        rows = (await retune(stack, "--json", "nodes", "list")).value
        [row] = [row for row in rows if (row["pool"], row["machine"]) == ("test", machine)]
        assert (row["state"], row["jobs"], row["reason"]) == ("cordoned", [scheduled.job_id], "dusty")
        refused = await retune(stack, "nodes", "cordon", "test", "n1")
        assert (refused.code, refused.err.split(":")[0]) == (1, "unknown_machine")
        uncordoned = await retune(stack, "nodes", "uncordon", "test", machine)
        assert uncordoned.out == f"{machine} of test takes work again\n", uncordoned.err
        refused = await retune(stack, "nodes", "uncordon", "test", machine)
        assert (refused.code, refused.err.split(":")[0]) == (1, "not_cordoned")

        await attempts.until(scheduled.job_id, RunnerStarted)
        signal_marked(f"RUNNER_NODE_ID={node}", signal.SIGKILL)
        await attempts.until(scheduled.job_id, NodesReleased)
        [failure, *_] = (await retune(stack, "--json", "nodes", "history", "--pool", "test")).value
        assert (failure["machine"], failure["job_id"]) == (machine, scheduled.job_id)
        assert failure["kind"] == "node_lost"
        assert node in (await retune(stack, "nodes", "history", "--machine", machine)).out
        assert (await retune(stack, "--json", "nodes", "history", "--machine", "7")).value == []


class TestEvents:
    async def test_a_timeline_is_the_jobs_story_over_all_topics(self, attempts: Attempts, provisioned):
        scheduled, _ = provisioned
        events = (await retune(attempts.stack, "--json", "events", "timeline", scheduled.job_id)).value
        types = [(event["topic"], event["type"]) for event in events]
        assert types[:2] == [
            ("job.events", "retune.JobScheduled.v1"),
            ("node.events", "retune.NodesProvisioned.v1"),
        ]
        assert {event["key"] for event in events} == {scheduled.job_id}
        shown = (await retune(attempts.stack, "events", "timeline", scheduled.job_id)).out
        assert shown.splitlines()[1].split()[1:4] == ["job.events", "JobScheduled", "attempt=1"]

    async def test_a_tail_from_the_start_ends_with_the_newest(self, attempts: Attempts, provisioned):
        scheduled, _ = provisioned
        tail = await retune(
            attempts.stack, "--json", "events", "tail", "--from-start", "--topic", "node.events"
        )
        assert tail.code == 0, tail.err
        events = [json.loads(line) for line in tail.out.splitlines()]
        assert {event["topic"] for event in events} == {"node.events"}
        assert scheduled.job_id in {event["key"] for event in events}


class Story:
    """One job's node.events, written by hand: the first is good, the third comes without the second."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.job_id = f"ftjob-{uuid4().hex[:8]}"

    async def write(self, *sequences: int) -> None:
        fact = NodesReleased(job_id=self.job_id, tenant=TENANT, attempt=1, nodes=())
        password = self.stack.kafka_password("provisioner")
        async with kafka_producer(
            self.stack.kafka_bootstrap, "provisioner", password, client_id="story"
        ) as producer:
            for sequence in sequences:
                envelope = Envelope(
                    id=uuid4().hex,
                    type=fact.type,
                    version=1,
                    source="/retune/provisioner",
                    time=utc_now(),
                    key=fact.key,
                    sequence=sequence,
                )
                await producer.send_and_wait(
                    "node.events",
                    value=fact.model_dump_json().encode(),
                    key=fact.key.encode(),
                    headers=to_headers(envelope),
                )

    async def parked(self) -> list[Any]:
        listed = (await retune(self.stack, "--json", "parked", "list", "--service", "tracker")).value
        return [each for each in listed if each["aggregate_id"] == self.job_id]

    async def act(self, what: str, parked_id: int, *options: str) -> Ended:
        return await retune(self.stack, "parked", what, "tracker", str(parked_id), *options)


class TestParked:
    @pytest.fixture
    async def story(self, attempts: Attempts) -> tuple[Story, Any]:
        """With what is parked of it."""
        story = Story(attempts.stack)
        await story.write(1, 3)
        (gap,) = await until(story.parked, "the message after the gap parked")
        return story, gap

    async def test_a_message_is_listed_shown_and_dropped(self, story):
        story, gap = story
        assert (gap["reason"], gap["detail"]) == ("gap", "found sequence 3, expected 2")
        shown = await story.act("show", gap["parked_id"])
        assert shown.code == 0, shown.err
        assert json.loads(shown.out.splitlines()[-1])["job_id"] == story.job_id
        dropped = await story.act("drop", gap["parked_id"], "--reason", "the second is lost")
        assert (dropped.code, dropped.out) == (0, f"tracker {gap['parked_id']}: dropped\n"), dropped.err
        assert await story.parked() == []
        again = await story.act("drop", gap["parked_id"], "--reason", "again")
        assert (again.code, f"no open parked message {gap['parked_id']}" in again.err) == (1, True)

    async def test_a_replay_that_fails_again_says_why_and_one_that_does_not_is_resolved(self, story):
        story, gap = story
        failed = await story.act("replay", gap["parked_id"])
        assert (failed.code, failed.out) == (1, "")
        expected = f"tracker {gap['parked_id']}: still parked: gap: found sequence 3, expected 2"
        assert failed.err.strip() == expected
        assert [each["parked_id"] for each in await story.parked()] == [gap["parked_id"]]

        await self.fix(story)
        replayed = await story.act("replay", gap["parked_id"])
        assert (replayed.code, replayed.out) == (0, f"tracker {gap['parked_id']}: replayed\n"), replayed.err
        assert await story.parked() == []

    async def fix(self, story: Story) -> None:
        """The cause is gone: the second message counts as read. A gap alone would be closed automatically."""
        conn = await asyncpg.connect(story.stack.postgres_dsn("tracker"))
        async with conn.transaction():
            await conn.execute("UPDATE parked SET reason = 'failed' WHERE aggregate_id = $1", story.job_id)
            await conn.execute("UPDATE position SET sequence = 2 WHERE aggregate_id = $1", story.job_id)
        await conn.close()


async def test_a_stack_without_kafka_is_unreachable(stack: Stack):
    env = {"RETUNE_KAFKA_BOOTSTRAP": "127.0.0.1:9"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.app", "events", "timeline", "ftjob-1"),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | stack.operator_env() | env,
    )
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode == 3
    (line,) = err.decode().splitlines()
    assert line.startswith("Kafka at 127.0.0.1:9 does not serve us (KafkaConnectionError: ")
