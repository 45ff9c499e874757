"""What becomes of a message whose handler fails, refuses or waits for what never comes, and of one when Postgres is away."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import asyncpg
import pytest

from schemas.base import CommandRefused, Message
from schemas.envelope import Envelope, to_headers
from schemas.job import CancelJob
from schemas.node import NodesReleased
from schemas.parked import DropParked
from shared.errors import ParentUnknown, Refused
from shared.messaging import consumer as consumer_module
from shared.messaging import inbox
from shared.messaging.consumer import MAX_ATTEMPTS, TRIES_AT_ONCE, Consumer, TooManyParked
from shared.messaging.inbox import Entry
from shared.messaging.unit import Unit
from shared.messaging.waiting import WaitingMessages
from shared.postgres import outage
from shared.postgres.database import Database
from shared.record import Record
from shared.retry import RetryPolicy
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, new_key
from tests.integration.kernel.shaky import database
from tests.waiting import until

__all__ = ["database"]

pytestmark = pytest.mark.stack

offsets = itertools.count(10**9)
"""Beyond what any record of the log has."""


@pytest.fixture
def consumer(database) -> Consumer:
    consumer = Consumer("tracker", database, wake=lambda: None)
    consumer.on(NODE_EVENTS, NodesReleased, counting.nodes_released)
    return consumer


@pytest.fixture
def pauses(monkeypatch) -> list[int]:
    """Instead of pausing, the number of failures so far is put down."""
    taken: list[int] = []

    def no_pause(failures: int) -> float:
        taken.append(failures)
        return 0.0

    monkeypatch.setattr(consumer_module, "_backoff", no_pause)
    return taken


@pytest.fixture
def impatient(monkeypatch) -> RetryPolicy:
    """Asks Postgres again without a pause, for as long as usual."""
    retry_policy = RetryPolicy(
        limit=consumer_module.POSTGRES.limit, shortest=timedelta(0), longest=timedelta(0)
    )
    monkeypatch.setattr(consumer_module, "POSTGRES", retry_policy)
    return retry_policy


@pytest.fixture
def record(writer) -> Callable[..., Record]:
    def build(key: str, **changed: object) -> Record:
        raw = writer.message(key, **changed)
        return Record(NODE_EVENTS, 0, next(offsets), raw["key"], tuple(raw["headers"]), raw["value"])

    return build


async def parked(db, key: str) -> list[tuple]:
    rows = await db.fetch(
        "SELECT reason, detail, blocks FROM parked WHERE aggregate_id = $1 ORDER BY id", key
    )
    return [tuple(row) for row in rows]


async def effects(db, key: str) -> int:
    return await db.fetchval("SELECT count(*) FROM effect WHERE aggregate_id = $1", key)


async def test_a_handler_that_crashes_is_tried_again_then_its_message_is_parked(
    database, consumer, record, db, pauses
):
    key = new_key()
    assert await consumer.consume(record(key, tenant="broken")) == "waiting"
    assert await consumer.consume(record(key)) == "waiting"
    waiters = WaitingMessages(database, consumer, service="tracker")
    for _ in range(4):
        await waiters._try_heads()
    assert pauses == list(range(TRIES_AT_ONCE, MAX_ATTEMPTS, TRIES_AT_ONCE))
    assert await parked(db, key) == [
        ("failed", f"RuntimeError: {key} has no parent", True),
        ("behind_parked", f"an earlier message of {key} is parked", True),
    ]
    assert await effects(db, key) == 0
    assert await db.fetchval("SELECT count(*) FROM position WHERE aggregate_id = $1", key) == 0


async def test_a_handler_that_recovers_has_one_effect(database, record, db, pauses):
    failures = iter([RuntimeError("once"), RuntimeError("twice")])

    async def recovering(event: NodesReleased, unit: Unit) -> None:
        await counting.nodes_released(event, unit)
        for failure in failures:
            raise failure

    consumer = Consumer("tracker", database, wake=lambda: None)
    consumer.on(NODE_EVENTS, NodesReleased, recovering)
    key = new_key()
    assert await consumer.consume(record(key)) == "waiting"
    assert await effects(db, key) == 0
    await WaitingMessages(database, consumer, service="tracker")._try_heads()
    assert pauses == [TRIES_AT_ONCE]
    assert await effects(db, key) == 1
    assert await parked(db, key) == []


async def test_a_fault_of_ours_stops_the_process_instead_of_parking_a_whole_topic(
    consumer, record, db, pauses, monkeypatch
):
    monkeypatch.setattr(consumer_module, "MAX_PARKED_IN_A_ROW", 2)
    monkeypatch.setattr(consumer_module, "MAX_ATTEMPTS", 1)
    for outcomes in (["parked", "parked", "applied"], ["parked", "parked"]):
        for outcome in outcomes:
            tenant = "broken" if outcome == "parked" else "acme"
            assert await consumer.consume(record(new_key(), tenant=tenant)) == outcome
    key = new_key()
    with pytest.raises(TooManyParked, match=f"3 messages in a row failed: RuntimeError: {key}"):
        await consumer.consume(record(key, tenant="broken"))
    assert await parked(db, key) == []


async def test_what_a_tenant_sends_ends_no_process(database, db, monkeypatch):
    monkeypatch.setattr(consumer_module, "MAX_PARKED_IN_A_ROW", 2)
    monkeypatch.setattr(consumer_module, "MAX_ATTEMPTS", 1)

    async def fail(command: CancelJob, unit: Unit) -> None:
        raise RuntimeError("a fault that only this command meets")

    consumer = Consumer("tracker", database, wake=lambda: None)
    consumer.on("tenant.*.commands", CancelJob, fail)
    for _ in range(5):
        _, record = a_command(CancelJob(job_id="ftjob-1", tenant="acme"), topic="tenant.acme.commands")
        assert await consumer.consume(record) == "parked"


async def test_a_command_does_not_overtake_the_one_before_it_that_failed_for_a_moment(database, db, pauses):
    handled: list[str] = []
    failures = iter([RuntimeError("once"), RuntimeError("twice")])

    async def note(command: DropParked, unit: Unit) -> None:
        for failure in failures:
            raise failure
        handled.append(command.reason)

    consumer = Consumer("tracker", database, wake=lambda: None)
    consumer.on("parked.commands", DropParked, note)
    for reason in ("first", "second"):
        _, record = a_command(DropParked(service="tracker", parked_id=1, reason=reason))
        assert await consumer.consume(record) == "waiting"
    waiters = WaitingMessages(database, consumer, service="tracker")
    for _ in range(2):
        await waiters._try_heads()
    assert handled == ["first", "second"]


async def test_a_fact_cannot_be_refused_so_it_is_parked(consumer, record, db, pauses):
    key = new_key()
    assert await consumer.consume(record(key, tenant="forbidden", event_id=key)) == "parked"
    assert pauses == []
    assert await parked(db, key) == [("rejected", f"forbidden: {key} must not be deleted", True)]
    assert await db.fetchval("SELECT count(*) FROM outbox WHERE headers ->> 'ce_causationid' = $1", key) == 0


class TestACommitInDoubt:
    async def test_has_one_effect(self, database, consumer, record, db, pauses):
        database.in_doubt = 1
        key = new_key()
        assert await consumer.consume(record(key)) == "duplicate"
        assert await effects(db, key) == 1

    async def test_refuses_a_command_once(self, database, consumer, db, pauses):
        async def refuse(command: DropParked, unit: Unit) -> None:
            raise Refused("not_now", "for no reason")

        consumer.on("parked.commands", DropParked, refuse)
        envelope, record = a_command(DropParked(service="tracker", parked_id=1, reason="test"))
        database.in_doubt = 1
        assert await consumer.consume(record) == "duplicate"
        query = "SELECT count(*) FROM outbox WHERE headers ->> 'ce_causationid' = $1"
        assert await db.fetchval(query, envelope.id) == 1

    async def test_parks_a_message_once(self, database, consumer, record, db, pauses):
        database.in_doubt = 1
        key = new_key()
        assert await consumer.consume(record(key, tenant="hopeless")) == "parked"
        assert len(await parked(db, key)) == 1


async def test_a_member_that_comes_late_does_not_set_a_story_back(db):
    heard, ignored = new_key(), new_key()
    for number in (7, 5):
        entry = Entry(NODE_EVENTS, f"{heard} {number}", b"", heard, number)
        passed_over = Entry(NODE_EVENTS, f"{ignored} {number}", None, ignored, number)
        assert await inbox.insert(db, "tracker", [entry, passed_over]) == 1
        assert await inbox.insert(db, "tracker", [replace(entry, sequence=9)]) == 0
    for key in (heard, ignored):
        assert await db.fetchval("SELECT sequence FROM position WHERE aggregate_id = $1", key) == 7


@pytest.mark.parametrize("value", [2**70, "\ud800"], ids=["beyond the column", "no text"])
async def test_a_value_that_no_column_takes_is_parked_at_once(database, record, db, pauses, value):
    async def store(event: NodesReleased, unit: Unit) -> None:
        column = "number" if isinstance(value, int) else "tenant"
        await unit.conn.execute(f"INSERT INTO effect ({column}) VALUES ($1)", value)

    consumer = Consumer("tracker", database, wake=lambda: None)
    consumer.on(NODE_EVENTS, NodesReleased, store)
    key = new_key()
    assert await consumer.consume(record(key)) == "parked"
    assert pauses == []
    assert [reason for reason, _, _ in await parked(db, key)] == ["rejected"]


class TestWaitingInVain:
    async def test_ends_though_the_message_failed_before(self, database, consumer, record, db, pauses):
        troubles = iter([RuntimeError("once"), RuntimeError("twice")])

        async def fail_then_wait(event: NodesReleased, unit: Unit) -> None:
            raise next(troubles, ParentUnknown(f"job:{event.key}", within=timedelta(0)))

        consumer._handlers[NODE_EVENTS, NodesReleased.type] = fail_then_wait
        key = new_key()
        assert await consumer.consume(record(key)) == "waiting"
        waiters = WaitingMessages(database, consumer, service="tracker")
        for _ in range(2):
            await waiters._try_heads()
        assert await parked(db, key) == [("parent_unknown", f"job:{key} is not known yet", True)]

    async def test_parks_a_fact(self, database, consumer, record, db):
        key = new_key()
        assert await consumer.consume(record(key, tenant="late")) == "waiting"
        await WaitingMessages(database, consumer, service="tracker")._try_heads()
        assert await parked(db, key) == [("parent_unknown", f"job:{key} is not known yet", True)]
        assert await db.fetchval("SELECT count(*) FROM waiting WHERE aggregate_id = $1", key) == 0

    async def test_refuses_a_command(self, database, consumer, db):
        async def needs_a_parent(command: DropParked, unit: Unit) -> None:
            raise ParentUnknown("job:none", within=timedelta(0))

        consumer.on("parked.commands", DropParked, needs_a_parent)
        envelope, record = a_command(DropParked(service="tracker", parked_id=1, reason="test"))
        assert await consumer.consume(record) == "waiting"
        await WaitingMessages(database, consumer, service="tracker")._try_heads()
        value = await db.fetchval(
            "SELECT value FROM outbox WHERE headers ->> 'ce_causationid' = $1", envelope.id
        )
        refused = CommandRefused.model_validate_json(value)
        assert (refused.command, refused.command_id, refused.code, refused.message) == (
            "DropParked",
            envelope.id,
            "unknown_parent",
            "job:none is not known after the time limit",
        )
        assert await db.fetchval("SELECT count(*) FROM waiting WHERE event_id = $1", envelope.id) == 0
        assert await parked(db, "tracker") == []


def a_command(command: Message, *, topic: str = "parked.commands") -> tuple[Envelope, Record]:
    envelope = Envelope(
        id=uuid4().hex,
        type=command.type,
        version=command.version,
        source="/retune/admin",
        time=datetime.now(UTC),
        key=command.key,
    )
    value = command.model_dump_json().encode()
    return envelope, Record(
        topic, 0, next(offsets), envelope.key.encode(), tuple(to_headers(envelope)), value
    )


class TestWithoutPostgres:
    @pytest.mark.parametrize(
        "trouble",
        [
            ConnectionRefusedError("nobody listens"),
            asyncpg.LockNotAvailableError("a dead client's lock"),
            asyncpg.QueryCanceledError("a slow disk"),
            asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_a_message_waits_and_nothing_is_parked(
        self, database, consumer, record, db, pauses, impatient, trouble
    ):
        database.trouble = trouble
        database.away = 3 * MAX_ATTEMPTS
        key = new_key()
        assert await consumer.consume(record(key)) == "applied"
        assert pauses == []
        assert await effects(db, key) == 1
        assert await parked(db, key) == []

    async def test_a_message_waits_however_long_it_is_away(
        self, database, consumer, record, db, monkeypatch, impatient
    ):
        clock = itertools.count(1000.0, 60.0)
        monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        database.away = 1000
        key = new_key()
        assert await consumer.consume(record(key)) == "applied"
        assert next(clock) - 1000.0 > timedelta(days=1).total_seconds()
        assert await parked(db, key) == []


class TestAMessageThatAloneIsNotDoneInTime:
    """Postgres answers, and takes what others write."""

    @pytest.fixture
    async def brief(self, tracker_env) -> AsyncIterator[Database]:
        """Two seconds are too long for a statement of it."""
        dsn, silence = tracker_env["TRACKER_POSTGRES_DSN"], timedelta(seconds=2)
        database = Database(dsn, application="test", silence=silence)
        await database.open()
        yield database
        await database.close()

    @pytest.fixture
    def hurried(self, monkeypatch) -> None:
        """A second in place of the minute."""
        monkeypatch.setattr(
            consumer_module, "POSTGRES", replace(consumer_module.POSTGRES, limit=timedelta(seconds=1))
        )

    async def test_waits_apart_is_tried_again_and_parked_while_others_continue(
        self, brief, record, db, hurried, monkeypatch
    ):
        async def handle(event: NodesReleased, unit: Unit) -> None:
            if event.tenant == "slow":
                await unit.conn.execute("SELECT pg_sleep(30)")
            await counting.nodes_released(event, unit)

        consumer = Consumer("tracker", brief, wake=lambda: None)
        consumer.on(NODE_EVENTS, NodesReleased, handle)
        slow, other = new_key(), new_key()
        assert await consumer.consume(record(slow, tenant="slow")) == "waiting"
        assert await consumer.consume(record(other)) == "applied"
        row = await db.fetchrow("SELECT failures, not_before FROM waiting WHERE aggregate_id = $1", slow)
        assert row["failures"] == 1
        monkeypatch.setattr(consumer_module, "MAX_ATTEMPTS", 3)
        monkeypatch.setattr(
            consumer_module, "POSTGRES", replace(consumer_module.POSTGRES, limit=timedelta(0))
        )
        waiters = WaitingMessages(brief, consumer, service="tracker")
        for _ in range(2):
            await db.execute(
                "UPDATE waiting SET not_before = clock_timestamp() WHERE aggregate_id = $1", slow
            )
            await waiters._try_heads()
        ((reason, detail, blocks),) = await parked(db, slow)
        assert (reason, blocks) == ("failed", True)
        assert detail.startswith("not done within ")

    async def test_rests_for_a_minute_after_each_try(self, database, consumer, record, db, impatient, pauses):
        database.trouble = asyncpg.LockNotAvailableError("a lock that is never free")
        key = new_key()
        await consumer.consume(record(key, tenant="broken"))
        (row,) = await db.fetch("SELECT id FROM waiting WHERE aggregate_id = $1", key)
        await db.execute("UPDATE waiting SET failures = 1 WHERE id = $1", row["id"])
        database.away = 1
        await WaitingMessages(database, consumer, service="tracker")._try_heads()
        query = "SELECT failures, not_before > clock_timestamp() + interval '50 s' AS rests FROM waiting WHERE id = $1"
        assert tuple(await db.fetchrow(query, row["id"])) == (2, True)

    async def test_a_lock_that_comes_free_is_waited_for(self, brief, record, db):
        async def handle(event: NodesReleased, unit: Unit) -> None:
            await unit.conn.execute("SELECT pg_advisory_xact_lock(44)")
            await counting.nodes_released(event, unit)

        consumer = Consumer("tracker", brief, wake=lambda: None)
        consumer.on(NODE_EVENTS, NodesReleased, handle)
        key = new_key()
        await db.execute("SELECT pg_advisory_lock(44)")
        consuming = asyncio.create_task(consumer.consume(record(key)))
        for _ in range(2):
            await until(lambda: is_waited_for(db), "somebody to wait for the lock")
            await until_not(lambda: is_waited_for(db), "that wait to end")
        await db.execute("SELECT pg_advisory_unlock(44)")
        assert await consuming == "applied"


async def is_waited_for(db) -> bool:
    return await db.fetchval(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
    )


async def until_not(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    async def ends() -> bool:
        return not await holds()

    await until(ends, what)
