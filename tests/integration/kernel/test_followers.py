"""Parked messages follow automatically once what was missing before them is there: in order, each once."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable

import pytest

from schemas.node import NodesReleased
from schemas.parked import DropParked, ReplayParked
from shared.messaging.consumer import Consumer
from shared.messaging.followers import Followers
from shared.messaging.reader import send
from shared.postgres.database import Database
from shared.record import Record
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, Writer, costs_of, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

offsets = itertools.count(2 * 10**9)
"""Beyond what any record of the log has."""


async def applied(db, key: str) -> list[str]:
    rows = await db.fetch("SELECT event_id FROM effect WHERE aggregate_id = $1 ORDER BY number", key)
    return [row["event_id"] for row in rows]


async def reasons(db, key: str) -> list[str]:
    rows = await db.fetch(
        "SELECT reason FROM parked WHERE aggregate_id = $1 AND state = 'parked' ORDER BY sequence, id", key
    )
    return [row["reason"] for row in rows]


async def replayed(db, key: str) -> list[int]:
    """Numbers of the event stream's parked messages of which a fact says that they were replayed."""
    ids = await db.fetch("SELECT id, sequence FROM parked WHERE aggregate_id = $1", key)
    numbers = {row["id"]: row["sequence"] for row in ids}
    facts = [
        json.loads(row["value"])
        for row in await db.fetch("SELECT value FROM outbox WHERE type = 'ParkedResolved' ORDER BY id")
    ]
    return [
        numbers[each["parked_id"]]
        for each in facts
        if each["parked_id"] in numbers and each["state"] == "replayed"
    ]


async def until_parked(db, key: str, expected: list[str]) -> None:
    async def are_parked() -> bool:
        return await reasons(db, key) == expected

    await until(are_parked, f"{expected} to be parked")


async def until_applied(db, key: str, expected: list[str]) -> None:
    async def are_applied() -> bool:
        return await applied(db, key) == expected

    await until(are_applied, f"{len(expected)} effects in order")


async def add_parent(service, key: str) -> None:
    async with service.unit() as unit:
        await unit.conn.execute("INSERT INTO parent VALUES ($1)", key)
        await unit.release(f"job:{key}")


class TestTheMissingNumberComes:
    async def test_late_in_the_log(self, service, writer: Writer, db, login):
        key = new_key()
        ids = {number: await writer.good(key, sequence=number) for number in (1, 3, 5, 4)}
        await until_parked(db, key, ["gap", "behind_parked", "behind_parked"])
        ids[2] = await writer.good(key, sequence=2)
        await until_applied(db, key, [ids[number] for number in range(1, 6)])

        async def are_told() -> bool:
            return len(await costs_of(login, key)) == 5

        await until(are_told, "what each of them emitted")
        assert await replayed(db, key) == [3, 4, 5]
        assert await reasons(db, key) == []

    async def test_and_waits_for_its_parent_first(self, service, writer: Writer, db):
        key = new_key()
        ids = {number: await writer.good(key, sequence=number) for number in (1, 3, 4)}
        await until_parked(db, key, ["gap", "behind_parked"])
        ids[2] = await writer.good(key, sequence=2, tenant="orphan")
        await until(
            lambda: db.fetchval("SELECT true FROM waiting WHERE aggregate_id = $1", key), "it to wait"
        )
        assert await applied(db, key) == [ids[1]]
        await add_parent(service, key)
        await until_applied(db, key, [ids[number] for number in range(1, 5)])

    async def test_from_an_operator_who_replays_it(self, service, writer: Writer, db, login):
        key = new_key()
        first = await writer.good(key, sequence=1)
        second = await writer.good(key, sequence=2, tenant="early")
        ids = {number: await writer.good(key, sequence=number) for number in (6, 5, 3, 4)}
        await until_parked(db, key, ["rejected", *["behind_parked"] * 4])
        await add_parent(service, key)
        await send(login, ReplayParked(service="tracker", parked_id=await id_of(db, key, 2)), writer="admin")
        await until_applied(db, key, [first, second, *(ids[number] for number in range(3, 7))])

    async def test_in_its_place_an_operator_drops_what_lies_there(self, service, writer: Writer, db, login):
        key = new_key()
        first = await writer.good(key, sequence=1)
        await writer.good(key, sequence=2, tenant="hopeless")
        third = await writer.good(key, sequence=3)
        await until_parked(db, key, ["rejected", "behind_parked"])
        command = DropParked(service="tracker", parked_id=await id_of(db, key, 2), reason="test")
        await send(login, command, writer="admin")
        await until_applied(db, key, [first, third])


async def id_of(db, key: str, number: int) -> int:
    return await db.fetchval("SELECT id FROM parked WHERE aggregate_id = $1 AND sequence = $2", key, number)


class TestFollowing:
    @pytest.fixture
    def consumer(self, database: Database) -> Consumer:
        consumer = Consumer("tracker", database, wake=lambda: None)
        consumer.on(NODE_EVENTS, NodesReleased, counting.nodes_released)
        return consumer

    @pytest.fixture
    async def followers(self, database: Database, consumer: Consumer, db) -> Followers:
        await db.execute("UPDATE parked SET state = 'dropped' WHERE state = 'parked'")
        return Followers("tracker", database, consumer, wake=lambda: None)

    @pytest.fixture
    def consume(self, consumer: Consumer, writer: Writer) -> Callable[..., Awaitable[str]]:
        async def consume(key: str, sequence: int, *, tenant: str = "acme", **changes: object) -> str:
            raw = writer.message(key, sequence=sequence, tenant=tenant)
            record = {"headers": tuple(raw["headers"]), "value": raw["value"], **changes}
            return await consumer.consume(Record(NODE_EVENTS, 0, next(offsets), key.encode(), **record))

        return consume

    async def test_waits_until_all_that_is_missing_is_there(self, followers, consume, db):
        key = new_key()
        outcomes = [await consume(key, number) for number in (1, 4, 3)]
        assert outcomes == ["applied", "parked", "parked"]
        assert not await followers._continue()
        await consume(key, 2)
        assert [await followers._continue() for _ in range(3)] == [True, True, False]
        assert len(await applied(db, key)) == 4
        assert await replayed(db, key) == [3, 4]

    async def test_ends_at_one_that_fails_and_does_not_try_it_again(self, followers, consume, db):
        key = new_key()
        for number, tenant in ((1, "acme"), (3, "hopeless"), (4, "acme"), (2, "acme")):
            await consume(key, number, tenant=tenant)
        assert not await followers._continue()
        assert await reasons(db, key) == ["rejected", "behind_parked"]
        await db.execute("UPDATE parked SET detail = 'not tried since' WHERE aggregate_id = $1", key)
        assert not await followers._continue()
        details = await db.fetch("SELECT detail FROM parked WHERE aggregate_id = $1", key)
        assert {row["detail"] for row in details} == {"not tried since"}
        assert await replayed(db, key) == []

    async def test_of_two_processes_has_one_effect(self, followers, consume, database, consumer, db):
        other = Followers("tracker", database, consumer, wake=lambda: None)
        keys = [new_key() for _ in range(5)]
        for key in keys:
            for number in (1, 3, 4, 2):
                await consume(key, number)
        for _ in range(3):
            await asyncio.gather(followers._continue(), other._continue())
        for key in keys:
            assert len(await applied(db, key)) == 4
            assert await replayed(db, key) == [3, 4]

    async def test_passes_over_no_gap_where_a_message_without_a_number_was_dropped(
        self, followers, consume, db
    ):
        key = new_key()
        for number in (1, 3):
            await consume(key, number)
        assert await consume(key, 4, headers=()) == "parked"
        await consume(key, 5)
        assert await reasons(db, key) == ["gap", "behind_parked", "bad_envelope"]
        await db.execute(
            "UPDATE parked SET state = 'dropped' WHERE aggregate_id = $1 AND reason = 'bad_envelope'", key
        )
        await db.execute("DELETE FROM position WHERE aggregate_id = $1", key)
        assert not await followers._continue()
        assert len(await applied(db, key)) == 1

    async def test_continues_behind_a_message_without_a_number_that_was_dropped(self, followers, consume, db):
        key = new_key()
        assert await consume(key, 1, headers=()) == "parked"
        for number in (2, 3):
            await consume(key, number)
        assert not await followers._continue()
        await db.execute(
            "UPDATE parked SET state = 'dropped' WHERE aggregate_id = $1 AND reason = 'bad_envelope'", key
        )
        assert [await followers._continue() for _ in range(3)] == [True, True, False]
        assert len(await applied(db, key)) == 2
