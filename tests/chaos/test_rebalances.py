"""Members come and go while handlers run: what two of them work on at a time has one effect."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.node import NodesReleased
from shared.messaging.unit import Unit
from shared.service import Service
from shared.settings import Timing
from shared.telemetry.metrics import HANDLED
from tests.chaos import pipeline
from tests.chaos.groups import remove_members
from tests.chaos.scale import note, scaled, seed
from tests.chaos.source import Source
from tests.handlers import handle_the_rest
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, new_key
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 12 * 3600))]

KEYS = 30
LONGEST_HANDLER_SECONDS = 2.0
TIMING = Timing(heartbeat=timedelta(seconds=0.3))
"""A member hears of a rebalance by its next heartbeat, while its handler runs."""


class Members:
    """Services of one group in this process, each an instance of its own, with handlers that take their time."""

    def __init__(self, stack: Stack, random: Random) -> None:
        self._stack = stack
        self._random = random
        self.handled = 0

    @asynccontextmanager
    async def member(self, instance: int) -> AsyncIterator[Service]:
        env = self._stack.service_env("tracker")
        settings = counting.Settings(
            **{name.removeprefix("TRACKER_").lower(): value for name, value in env.items()}
            | {"instance": instance, "timing": TIMING}
        )
        service = Service("tracker", settings)
        service.on(NodesReleased, self._slowly)
        service.on_start(lambda: counting._create_effect(service))
        async with handle_the_rest(service).running():
            yield service

    async def _slowly(self, event: NodesReleased, unit: Unit) -> None:
        self.handled += 1
        await asyncio.sleep(LONGEST_HANDLER_SECONDS * self._random.random() ** 4)
        await counting.nodes_released(event, unit)


def deliveries_again() -> float:
    """Of what one member was working on, or had not committed yet, when it went to another."""
    return HANDLED.labels("tracker", NODE_EVENTS, "duplicate")._value.get()


def rebalances(service: Service) -> int:
    """How often the group was put together again since this member joined; every one has a new generation."""
    return service._broker.subscribers[0].consumer._coordinator.generation


@asynccontextmanager
async def _rebalanced(first: Service) -> AsyncIterator[None]:
    """What is done inside puts the group together again."""
    before = rebalances(first)
    yield

    async def is_new() -> bool:
        return rebalances(first) > before

    await until(is_new, "a rebalance")


async def _some_work(members: Members, source: Source, keys: list[str]) -> None:
    """Half of these facts are handled, so that the others are under way when the members change."""
    goal = members.handled + len(keys) // 2
    for key in keys:
        await source.good(key)

    async def is_reached() -> bool:
        return members.handled >= goal

    await until(is_reached, "some facts to be handled")


async def test_members_that_come_and_go_while_handlers_run(stack: Stack, db: asyncpg.Pool):
    await pipeline.migrated(stack, "tracker")
    random, keys = Random(seed()), [new_key() for _ in range(KEYS)]
    members, again = Members(stack, random), deliveries_again()
    repeat = f"repeat with CHAOS_SEED={seed()}"
    async with Source(stack) as source, members.member(0) as first:
        before, target = rebalances(first), scaled(10, 30, 1_000)
        instance = 0
        while (done := rebalances(first) - before) < target or deliveries_again() == again:
            assert done < 10 * target, f"no rebalance came while a handler ran; {repeat}"
            instance += 1
            async with _rebalanced(first), members.member(instance):
                await _some_work(members, source, random.choices(keys, k=6))
            async with _rebalanced(first):
                await remove_members(stack, "tracker", f"tracker-{instance}")
        outcome = await pipeline.Books(db, keys, source.sent).until_handled()
    assert outcome.faults() == [], repeat
    note("rebalances", rebalances=done, events=members.handled, again=deliveries_again() - again)
