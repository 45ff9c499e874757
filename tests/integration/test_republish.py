"""A broker that lost a log, on a stack of its own: the outboxes bring it back, and no state changes."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import FailureClass
from schemas.node import AllocatedNode, NodesReleased
from shared.messaging.delivery import Delivery
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from tests.builders import NOON
from tests.integration.test_retune import Ended, Story, retune
from tests.integration.test_scheduler import SUBMITTED, Play
from tests.integration.voices import Voices, ear, voices
from tests.unit.scheduler import incoming
from tests.waiting import until

pytestmark = pytest.mark.stack

SERVICES = ("scheduler", "tracker")
NODE = AllocatedNode(
    node_id="n-0", index=0, price_per_hour="0.1", allocated_at=NOON, released_at=NOON + timedelta(minutes=6)
)
REQUEUED = ("JobRequeued", "JobScheduled")


@dataclass
class World:
    stack: Stack
    voice: Voices
    play: Play

    async def query(self, sql: str) -> list[Any]:
        connection = await asyncpg.connect(self.stack.postgres_dsn("operator"))
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    async def has_read(self, service: str, topic: str, key: str, number: int) -> bool:
        rows = await self.query(
            f"SELECT 1 FROM {service}.position"
            f" WHERE topic = '{topic}' AND aggregate_id = '{key}' AND sequence = {number}"
        )
        return bool(rows)

    async def outbox(self, topic: str) -> list[tuple[str, int, str]]:
        """What was published: key, number and event id, by key and number."""
        rows = [
            row
            for service in SERVICES
            for row in await self.query(
                f"SELECT topic, aggregate_id, sequence, event_id FROM {service}.outbox"
            )
        ]
        assert await self.all_sent()
        return sorted(
            (row["aggregate_id"], row["sequence"], row["event_id"]) for row in rows if row["topic"] == topic
        )

    async def topic(self, name: str) -> dict[str, list[tuple[int, str]]]:
        """Number and event id of each record of a story, in their order."""
        login = Login(self.stack.kafka_bootstrap, "admin", self.stack.kafka_password("admin"))
        stories = defaultdict(list)
        async with TopicReader(login, [name]) as reader:
            async for delivery in reader.to_the_end():
                assert isinstance(delivery, Delivery)
                stories[delivery.envelope.key].append((delivery.envelope.sequence, delivery.envelope.id))
        return stories

    async def state(self) -> dict[str, Counter]:
        """Every row of the two services but those in which the kernel keeps itself busy."""
        tables = await self.query(
            "SELECT table_schema AS schema, table_name AS name FROM information_schema.tables"
            " WHERE table_schema IN ('scheduler', 'tracker') AND table_name NOT IN ('lease', 'outbox', 'unpublished')"
        )
        counts = {}
        for table in tables:
            rows = await self.query(f"SELECT each::text FROM {table['schema']}.{table['name']} AS each")
            counts[f"{table['schema']}.{table['name']}"] = Counter(row["each"] for row in rows)
        return counts

    async def at_rest(self) -> bool:
        costs = await self.query("SELECT 1 FROM tracker.cost WHERE is_ended AND until IS NOT NULL")
        return bool(costs) and await self.all_sent()

    async def all_sent(self) -> bool:
        return not any([await self.query(f"SELECT 1 FROM {each}.unpublished") for each in SERVICES])


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One job in its third attempt, begun by the queue's loop after a back-off; one that runs, one that failed."""
    stack = Stack(tmp_path_factory.mktemp("own"), services=SERVICES)
    await stack.up()
    try:
        async with voices(stack) as voice, ear(stack, "job.events") as heard:
            play, running, failed = (Play(voice, heard) for _ in range(3))
            await play.scheduled()
            for attempt in (1, 2):
                await play.say("provisioner", incoming.provisioning_failed("broken", attempt=attempt))
                await play.until(*SUBMITTED, *REQUEUED * attempt)
            await running.running()
            await failed.running()
            await failed.say("trainer_agent", incoming.failed(FailureClass.USER), incoming.stopped())
            await failed.say("provisioner", NodesReleased(**incoming.JOB, attempt=1, nodes=(NODE,)))
            world = World(stack, voice, play)
            await until(world.at_rest, "everything published")
            yield world
    finally:
        await stack.down()


async def republish(world: World, *options: str) -> Ended:
    return await retune(
        world.stack, "--json", "relay", "republish", "--service", "all", "--since", "1h", *options
    )


async def test_a_lost_log_is_brought_back_and_nobody_is_disturbed(world: World):
    whole = await republish(world, "--dry-run")
    assert {(row["topic"], row["lost"]) for row in whole.value} == {("job.events", 0), ("cost.events", 0)}
    before, published = await world.state(), await world.outbox("job.events")

    await lose_log(world.stack, "job.events")
    lost = await republish(world, "--dry-run")
    assert (lost.code, f"{len(published)} records are lost" in lost.err) == (1, True)
    assert await world.topic("job.events") == {}

    repaired = await republish(world)
    assert repaired.code == 0, repaired.err
    stories = await world.topic("job.events")
    assert sorted((key, *each) for key, story in stories.items() for each in story) == published
    assert all(
        [number for number, _ in story] == list(range(1, len(story) + 1)) for story in stories.values()
    )
    assert all(row["lost"] == 0 for row in (await republish(world, "--dry-run")).value)

    # Whoever has read a fact that is new has read the repaired ones before it.
    started = incoming.started(attempt=3).model_copy(update={"job_id": world.play.job})
    event_id = await world.voice.say("trainer_agent", started)
    running = 1 + len(stories[world.play.job])
    await until(
        lambda: world.has_read("tracker", "job.events", world.play.job, running), "the tracker reads on"
    )
    parked = await retune(world.stack, "--json", "parked", "list")
    assert parked.value == []
    after, moved = await world.state(), (world.play.job, event_id)
    assert [row for name in before for row in changed(before[name], after[name], moved)] == []


def changed(before: Counter, after: Counter, moved: tuple[str, ...]) -> list[str]:
    """Rows that have nothing to do with what was said meanwhile."""
    rows = (before - after) + (after - before)
    return [row for row in rows if not any(word in row for word in moved)]


async def lose_log(stack: Stack, topic: str) -> None:
    """As a disk that comes back without its last writes."""
    await stack.stop("kafka")
    folders = list((stack.state.root / "kafka/data").glob(f"{topic}-*"))
    assert folders
    for file in (file for folder in folders for file in folder.iterdir()):
        if file.suffix in {".log", ".index", ".timeindex", ".snapshot"} or "checkpoint" in file.name:
            file.unlink()
    await stack.start("kafka")
    await stack.wait_healthy("kafka")


async def test_what_was_lost_before_it_was_read_fills_the_gap_when_it_comes_again(world: World):
    story = Story(world.stack)
    await story.write(1, 3)
    await until(story.parked, "the message after the gap parked")
    await story.write(2)

    await until(
        lambda: world.has_read("tracker", "node.events", story.job_id, 3),
        "the second message applied, and the third that follows automatically",
    )

    async def is_told() -> bool:
        return await story.parked() == []

    await until(is_told, "a fact that the third is parked no more")
