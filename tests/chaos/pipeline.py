"""Two services with the real kernel around them: the provisioner says what writers commit, the tracker counts it.

The whole way of a fact: outbox of the provisioner, relay, topic, inbox and effect of the tracker, its outbox, topic.
Run as a program it is one of the pair.
"""

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import asyncpg
from pydantic_settings import SettingsConfigDict

from deploy.local.environment import process_name
from deploy.local.network import answers_ok
from deploy.local.settings import REPOSITORY
from deploy.local.stack import Stack
from deploy.local.supervisor import Program
from schemas.node import NodesReleased
from schemas.topics import LISTENS
from shared.clock import utc_now
from shared.messaging.lag import Lag
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from shared.messaging.unit import Unit
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from shared.service import Service
from shared.settings import ServiceSettings
from tests.handlers import handle_the_rest
from tests.integration.kernel import counting
from tests.waiting import until

WRITTEN = """
    SELECT event_id, aggregate_id FROM provisioner.outbox
     WHERE aggregate_id = ANY($1) ORDER BY aggregate_id, sequence"""
EFFECTS = "SELECT event_id, aggregate_id FROM tracker.effect WHERE aggregate_id = ANY($1) ORDER BY number"
COUNT_WRITTEN = "SELECT count(*) FROM provisioner.outbox WHERE aggregate_id = ANY($1)"
COUNT_EFFECTS = "SELECT count(*) FROM tracker.effect WHERE aggregate_id = ANY($1)"
TOLD = """
    SELECT aggregate_id, count(*) AS rows, count(*) - count(unpublished.id) AS published
      FROM tracker.outbox LEFT JOIN tracker.unpublished USING (id)
     WHERE type = 'CostAccrued' AND aggregate_id = ANY($1) GROUP BY aggregate_id"""
PARKED = "SELECT aggregate_id, reason, detail FROM tracker.parked WHERE aggregate_id = ANY($1)"


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="PROVISIONER_", frozen=True)


def a_fact(key: str) -> NodesReleased:
    return NodesReleased(job_id=key, tenant="acme", attempt=1, nodes=())


async def migrated(stack: Stack, *services: str) -> None:
    for service in services:
        await migrate(service, stack.postgres_dsn(service))


async def start(stack: Stack, service: str, *, instance: int = 0, env: Mapping[str, str] = {}) -> None:
    """Start one of the pair as a process of its own; the supervisor starts it again when it dies."""
    name = process_name(service, instance)

    async def is_ready() -> bool:
        return await answers_ok(stack.state.port(name), "/healthz")

    settings = {**stack.service_env(service, instance), **env}
    command = (sys.executable, "-m", "tests.chaos.pipeline", service)
    stack._supervisor.start(Program(name, command, is_ready, env=settings, cwd=REPOSITORY))


def build(name: str) -> Service:
    if name == "provisioner":
        return handle_the_rest(Service("provisioner", Settings()))
    return counting.build()


async def caught_up(stack: Stack, service: str) -> None:
    """Return once the group has read all that its topics have now."""
    prefix = f"{service.upper()}_"
    env = {name.removeprefix(prefix).lower(): value for name, value in stack.service_env(service).items()}
    common = {name: value for name, value in env.items() if name in ServiceSettings.model_fields}
    lag = Lag(ServiceSettings(**common), group=service)
    try:
        for topic in LISTENS[service]:
            await lag.caught_up(topic.name)
    finally:
        await lag.close()


@dataclass
class Writers:
    """Commit facts to the outbox of the provisioner, as many times a second as asked for, whatever happens to the rest."""

    database: Database
    keys: list[str]
    random: Random
    per_second: float
    committed: int = 0
    unknown: int = 0
    """Commits that ended with an error; they may have taken place."""
    slowest_seconds: float = 0.0
    _running: list[asyncio.Task[None]] = field(default_factory=list)

    @asynccontextmanager
    async def at_work(self, writers: int = 4) -> AsyncIterator["Writers"]:
        pause = writers / self.per_second
        self._running = [asyncio.create_task(self._write(pause)) for _ in range(writers)]
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _write(self, pause: float) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0, 2 * pause))
            began = time.monotonic()
            try:
                async with self.database.transaction() as conn:
                    await Unit(conn, "provisioner", utc_now()).emit(a_fact(self.random.choice(self.keys)))
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self.unknown += 1
            else:
                self.committed += 1
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)


@dataclass(frozen=True)
class Outcome:
    """What became of the facts of some aggregates."""

    written: Mapping[str, list[str]]
    """Event ids per aggregate, in the order of their numbers."""
    effects: dict[str, list[str]]
    published: dict[str, int]
    parked: list[tuple[str, ...]]

    def faults(self) -> list[str]:
        """Every way in which it is not exactly one effect for each fact, in order."""
        wrong = [
            f"{key}: {len(ids)} facts, {len(self.effects.get(key, []))} effects"
            for key, ids in self.written.items()
            if self.effects.get(key, []) != ids
        ]
        untold = [
            f"{key}: {len(ids)} effects told {self.published.get(key, 0)} times"
            for key, ids in self.effects.items()
            if self.published.get(key, 0) != len(ids)
        ]
        return [*wrong, *untold, *(f"parked: {row}" for row in self.parked)]


class Books:
    """Reads what the pair has written down."""

    def __init__(
        self, db: asyncpg.Pool, keys: list[str], sent: Mapping[str, list[str]] | None = None
    ) -> None:
        """`sent`: the event ids per aggregate, where not the provisioner but the test itself says the facts."""
        self._db = db
        self._keys = keys
        self._sent = sent

    async def effects(self) -> int:
        return await self._db.fetchval(COUNT_EFFECTS, self._keys)

    async def until_effects(self, more: int) -> None:
        """Traffic flows: so many effects came on top of those of now."""
        before: list[int] = []

        async def reached() -> bool:
            before.append(await self.effects())
            return before[-1] - before[0] >= more

        await until(lambda: self._persistently(reached), f"{more} more effects")

    async def until_handled(self) -> Outcome:
        """Once every fact that was committed had its effect and was told, or nothing moves any more."""

        async def is_handled() -> Outcome | None:
            if await self.effects() < await self._count_written() and not await self._parked():
                return None
            outcome = await self._outcome()
            return outcome if outcome.parked or not outcome.faults() else None

        while True:
            before = await self.effects()
            try:
                return await until(lambda: self._persistently(is_handled), "every fact to have its effect")
            except AssertionError:
                if await self.effects() == before:
                    return await self._outcome()

    async def _count_written(self) -> int:
        if self._sent is not None:
            return sum(map(len, self._sent.values()))
        return await self._db.fetchval(COUNT_WRITTEN, self._keys)

    async def _parked(self) -> list[tuple[str, ...]]:
        return [tuple(row) for row in await self._db.fetch(PARKED, self._keys)]

    async def _outcome(self) -> Outcome:
        written = self._sent
        if written is None:
            written = _by_aggregate(await self._db.fetch(WRITTEN, self._keys))
        effects = _by_aggregate(await self._db.fetch(EFFECTS, self._keys))
        rows = await self._db.fetch(TOLD, self._keys)
        return Outcome(
            written,
            effects,
            {row["aggregate_id"]: row["published"] for row in rows if row["rows"] == row["published"]},
            await self._parked(),
        )

    async def _persistently(self, read: Callable[[], Awaitable[object]]) -> object:
        """None while Postgres is away, which is what some of these tests want."""
        try:
            return await read()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return None


def _by_aggregate(rows: list[asyncpg.Record]) -> dict[str, list[str]]:
    by_aggregate = defaultdict(list)
    for row in rows:
        by_aggregate[row["aggregate_id"]].append(row["event_id"])
    return dict(by_aggregate)


async def published_sequences(login: Login, keys: list[str]) -> dict[str, list[int]]:
    """The numbers of CostAccrued in Kafka per aggregate, each event once, in the order of the log."""
    job_ids, seen = set(keys), set()
    sequences: dict[str, list[int]] = defaultdict(list)
    async with TopicReader(login, ["cost.events"]) as reader:
        async for each in reader.to_the_end():
            if each.envelope.key in job_ids and each.envelope.id not in seen:
                seen.add(each.envelope.id)
                sequences[each.envelope.key].append(each.envelope.sequence)
    return dict(sequences)


if __name__ == "__main__":
    build(sys.argv[1]).run()
