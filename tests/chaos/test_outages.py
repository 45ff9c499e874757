"""Kafka and Postgres die, go away, cut the line and fall silent under load: each fact has exactly one effect."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from deploy.local.network import answers_ok
from deploy.local.stack import Stack
from shared.messaging.login import Login
from shared.postgres.database import Database
from tests.chaos import pipeline
from tests.chaos.fronts import Fronts
from tests.chaos.proxies import POSTGRES_PARSED_OUTBOX, POSTGRES_SAID_COMMIT
from tests.chaos.scale import note, scaled, seed
from tests.chaos.traffic import Load, traffic
from tests.chaos.without_postgres import deaths_of, postgres_down, until_missed
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 12 * 3600))]

AWAY_SECONDS = scaled(20, 35, 3600)
FLAPS = scaled(10, 25, 500)

SILENCE_SECONDS = 2.0
SERVICES = ("provisioner", "tracker")


@pytest.fixture(scope="module")
async def pair(stack: Stack, lines: Fronts) -> AsyncIterator[Stack]:
    """Both services talk to Kafka and Postgres through the proxies alone."""
    await pipeline.migrated(stack, *SERVICES)
    for service in SERVICES:
        env = {"TIMING_POSTGRES_SILENCE": f"PT{SILENCE_SECONDS}S", "TIMING_HANDLER_BUDGET": "PT1S"}
        await pipeline.start(stack, service, env={**lines.env(service), **env})
    for service in SERVICES:
        await stack.wait_healthy(service)
    yield stack
    lines.kafka.heal()
    lines.postgres.heal()
    for service in SERVICES:
        await stack.stop(service)


@pytest.fixture
async def load(pair: Stack, db: asyncpg.Pool, login: Login) -> AsyncIterator[Load]:
    async with traffic(pair, db, login) as load:
        yield load


async def test_a_broker_that_is_killed_under_load(pair: Stack, load: Load):
    async with load.nothing_lost_or_doubled():
        for _ in range(scaled(3, 5, 500)):
            await pair.kill("kafka")
            pair._supervisor.child("kafka").restarts = 0
            await pair.wait_healthy("kafka")
            began = time.monotonic()
            await load.books.until_effects(load.random.randint(1, 40))
            note("broker killed", seconds_to_recover=time.monotonic() - began)
    assert load.writers.unknown == 0, "writers need no Kafka"


async def test_a_broker_that_is_away(pair: Stack, lines: Fronts, load: Load):
    async with load.nothing_lost_or_doubled():
        lines.kafka.refuse()
        began, committed = time.monotonic(), load.writers.committed
        await pair.kill("provisioner")
        await until(lambda: answers_ok(pair.state.port("provisioner"), "/metrics"), "HTTP without Kafka")
        deaths = deaths_of(pair, *SERVICES)

        async def time_is_up() -> bool:
            return time.monotonic() - began > AWAY_SECONDS

        await until(time_is_up, "the end of the outage", seconds=2 * AWAY_SECONDS)
        written = load.writers.committed - committed
        lines.kafka.heal()
        began = time.monotonic()
        await load.books.until_effects(1)
        first = time.monotonic() - began
        await load.books.until_effects(written)
        note(
            "broker away",
            facts_meanwhile=written,
            seconds_to_first=first,
            seconds_to_drained=time.monotonic() - began,
        )
    assert load.writers.unknown == 0
    assert written > 0.5 * load.writers.per_second * AWAY_SECONDS, "the outbox takes what Kafka does not"
    assert deaths_of(pair, *SERVICES) == deaths, "a process must outlive Kafka's absence"


async def test_a_process_that_is_to_stop_while_the_broker_is_away(pair: Stack, lines: Fronts, load: Load):
    """The relay has given records to its client that nobody acknowledges."""
    async with load.nothing_lost_or_doubled():
        for _ in range(scaled(1, 1, 50)):
            lines.kafka.refuse()
            committed = load.writers.committed

            async def are_written(committed: int = committed) -> bool:
                return load.writers.committed > committed + 50

            await until(are_written, "facts that the relay cannot send")
            began = time.monotonic()
            for service in SERVICES:
                await pair.kill(service, signal.SIGTERM)
            note("stopped while the broker is away", seconds=time.monotonic() - began)
            lines.kafka.heal()
            await load.books.until_effects(20)


async def test_a_line_to_the_broker_that_flaps(pair: Stack, lines: Fronts, load: Load):
    """Each time it goes away while clients are in the middle of connecting, asking and sending."""
    deaths = deaths_of(pair, *SERVICES)
    async with load.nothing_lost_or_doubled():
        for _ in range(FLAPS):
            refused = lines.kafka.connections + load.random.randint(1, 30)
            lines.kafka.refuse()
            await until(lambda refused=refused: _are_opened(lines, refused), "clients to try")
            lines.kafka.heal()
            await load.books.until_effects(load.random.randint(1, 20))
    assert deaths_of(pair, *SERVICES) == deaths, f"no client must die of it; repeat with CHAOS_SEED={seed()}"
    note("line that flaps", absences=FLAPS)


async def _are_opened(lines: Fronts, connections: int) -> bool:
    return lines.kafka.connections >= connections


async def test_postgres_that_is_restarted(pair: Stack, load: Load):
    deaths = deaths_of(pair, *SERVICES)
    async with load.nothing_lost_or_doubled():
        for number in range(scaled(2, 3, 200)):
            await pair.kill("postgres", (signal.SIGKILL, signal.SIGINT)[number % 2])
            pair._supervisor.child("postgres").restarts = 0
            await pair.wait_healthy("postgres")
            began = time.monotonic()
            await load.books.until_effects(load.random.randint(1, 40))
            note("Postgres restarted", seconds_to_recover=time.monotonic() - began)
    assert deaths_of(pair, *SERVICES) == deaths, "a process must outlive a death of Postgres"


async def test_postgres_that_is_away(pair: Stack, load: Load):
    """Also for a process that begins meanwhile."""
    async with load.nothing_lost_or_doubled():
        async with postgres_down(pair):
            await pair.kill("provisioner")
            await until(lambda: answers_ok(pair.state.port("provisioner"), "/livez"), "HTTP without Postgres")
            deaths = deaths_of(pair, *SERVICES)
            await until_missed(pair, *SERVICES, for_seconds=scaled(10, 20, 600))
        began = time.monotonic()
        await load.books.until_effects(20)
        note("Postgres away", seconds=scaled(10, 20, 600), seconds_to_recover=time.monotonic() - began)
    assert deaths_of(pair, *SERVICES) == deaths


async def test_a_line_that_is_cut_in_place_of_the_answer_to_commit(
    pair: Stack, lines: Fronts, load: Load, login: Login
):
    async with load.nothing_lost_or_doubled():
        before = lines.postgres.cuts
        for number in range(1, scaled(5, 10, 200) + 1):
            lines.postgres.cut_at(POSTGRES_SAID_COMMIT)

            async def is_cut(number: int = number) -> bool:
                return lines.postgres.cuts == before + number

            await until(is_cut, "a commit to be cut")
            await load.books.until_effects(load.random.randint(1, 20))
        note("COMMIT cut", cuts=lines.postgres.cuts - before)


async def test_a_line_that_falls_silent_is_noticed(pair: Stack, lines: Fronts, load: Load):
    async with load.nothing_lost_or_doubled():
        for _ in range(scaled(2, 3, 200)):
            lines.postgres.freeze()
            began = time.monotonic()
            await load.books.until_effects(load.random.randint(20, 40))
            seconds = time.monotonic() - began
            note("line silent", seconds_to_recover=seconds)
            lines.postgres.heal()
            # The line itself, then what the dead connection has locked. Linux alone takes a quarter of an hour.
            assert seconds < 2 * SILENCE_SECONDS + 60, f"repeat with CHAOS_SEED={seed()}"


async def test_a_line_that_falls_silent_while_a_transaction_holds_locks(
    pair: Stack, lines: Fronts, load: Load, login: Login
):
    async with load.nothing_lost_or_doubled():
        before = lines.postgres.freezes
        for number in range(1, scaled(2, 3, 200) + 1):
            lines.postgres.reset()
            lines.postgres.freeze_at(POSTGRES_PARSED_OUTBOX)

            async def is_frozen(number: int = number) -> bool:
                return lines.postgres.freezes == before + number

            await until(is_frozen, "a transaction to be left alone")
            began = time.monotonic()
            await load.books.until_effects(load.random.randint(20, 40))
            note("locks left alone", seconds_to_recover=time.monotonic() - began)
            lines.postgres.heal()


async def test_connections_that_idle_on_a_silent_line_cost_one_wait_together(pair: Stack, lines: Fronts):
    dsn = lines.env("provisioner")["PROVISIONER_POSTGRES_DSN"]
    database = Database(dsn, application="idler", silence=timedelta(seconds=SILENCE_SECONDS))
    await database.open()
    busy = [database.fetchval("SELECT pg_sleep(0.2)") for _ in range(8)]
    await asyncio.gather(*busy)
    assert database.pool.get_idle_size() == 8
    lines.postgres.freeze()
    with pytest.raises(TimeoutError):
        await database.fetchval("SELECT 1")
    answers = [database.fetchval("SELECT 1") for _ in range(8)]
    assert await asyncio.gather(*answers) == [1] * 8
    await database.close()


async def test_a_server_that_falls_silent_and_comes_back(
    pair: Stack, lines: Fronts, load: Load, login: Login
):
    async with load.nothing_lost_or_doubled():
        for line in (lines.postgres, lines.kafka):
            line.stall()
            asyncio.get_running_loop().call_later(1.5 * SILENCE_SECONDS, line.heal)
            await load.books.until_effects(20)
