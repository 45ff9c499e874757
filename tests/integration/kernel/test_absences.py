"""A task fails by its own errors alone: what is away is waited for, and one that cannot end is set aside."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from aiokafka.errors import KafkaConnectionError

from shared.errors import StorageUnavailable
from shared.messaging import lease
from shared.messaging.tasks import FREE_OWN, RENEW, TaskKind, Tasks, unavailable_dependency
from shared.messaging.unit import Task, Unit
from shared.postgres.database import is_unavailable
from shared.retry import RetryPolicy
from shared.telemetry.metrics import TASKS_DUE, TASKS_SET_ASIDE, TASKS_WAITING
from tests.integration.kernel.conftest import new_key
from tests.integration.kernel.shaky import Shaky, database
from tests.waiting import until

__all__ = ["database"]

pytestmark = pytest.mark.stack


class Chore(Task, frozen=True):
    name: str

    @property
    def key(self) -> str:
        return self.name


class Chores:
    """Tasks of one kind whose work meets the given troubles first; what becomes of them is put down."""

    def __init__(self, database: Shaky, *troubles: Exception | None) -> None:
        self._database = database
        self._troubles = iter(troubles)
        self.worked: list[str] = []
        self.done: list[str] = []
        self.failed: list[str] = []
        self.waits_for: list[str] = []
        self.renews_seconds = 5.0
        self.seconds_of_work = 0.0
        self.cannot_fail = False
        self.trouble_at_end = ""
        """An attribute of the database that is set to 1 when the work is over."""

    async def _work(self, chore: Chore) -> str:
        self.worked.append(chore.name)
        await asyncio.sleep(self.seconds_of_work)
        if self.trouble_at_end:
            setattr(self._database, self.trouble_at_end, 1)
        if trouble := next(self._troubles, None):
            raise trouble
        return chore.name

    async def _finish(self, chore: Chore, result: str, unit: Unit) -> None:
        self.done.append(result)

    async def _give_up(self, chore: Chore, error: Exception, unit: Unit) -> None:
        if self.cannot_fail:
            raise LookupError("no such row")
        self.failed.append(f"{type(error).__name__}: {error}")

    async def _wait(self, chore: Chore, waits_for: str, unit: Unit) -> None:
        self.waits_for.append(waits_for)

    def kind(self, **changed: Any) -> TaskKind:
        known = {"attempts": 1, "concurrency": 1, "waits": self._wait, "retry_policy": AT_ONCE}
        return TaskKind(Chore, self._work, self._finish, self._give_up, **(known | changed))

    def tasks(self, *, ttl_seconds: float = 15.0) -> Tasks:
        return Tasks(
            self._database,
            service="tracker",
            owner=f"tracker-{uuid4().hex}",
            ttl=timedelta(seconds=ttl_seconds),
            renew=timedelta(seconds=self.renews_seconds),
            wake=lambda: None,
        )

    async def start(self) -> str:
        key = new_key()
        async with self._database.transaction() as conn:
            await Unit(conn, "tracker", datetime.now(UTC)).start_task(Chore(name=key))
        return key


AT_ONCE = RetryPolicy(shortest=timedelta(0), longest=timedelta(0))


@pytest.fixture(autouse=True)
async def no_chores(db) -> AsyncIterator[None]:
    yield
    await db.execute("DELETE FROM task WHERE kind = 'Chore'")


@pytest.mark.parametrize("trouble", ["in_doubt", "away"])
async def test_a_task_is_worked_on_once_though_postgres_is_away_when_it_ends(database, db, trouble):
    chores = Chores(database)
    key, tasks, kind = await chores.start(), chores.tasks(), chores.kind()
    chores.trouble_at_end = trouble
    assert await tasks._work_next(kind)
    assert (chores.worked, chores.done, chores.failed) == ([key], [key], [])
    assert not await tasks._work_next(kind)


class TestWhatATaskNeedsIsAway:
    @pytest.mark.parametrize(
        "trouble",
        [
            StorageUnavailable("GET x: no answer"),
            asyncpg.CannotConnectNowError("the database system is starting up"),
            ConnectionRefusedError("nobody listens"),
            KafkaConnectionError("no broker"),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_it_waits_and_continues_and_nothing_is_counted(self, database, db, trouble):
        chores = Chores(database, *[trouble] * 30)
        key, tasks, kind = await chores.start(), chores.tasks(), chores.kind()
        for _ in range(31):
            assert await tasks._work_next(kind)
        assert (chores.worked, chores.done, chores.failed) == ([key] * 31, [key], [])
        assert chores.waits_for == [f"{unavailable_dependency(trouble)}, which is away"]

    async def test_it_is_counted_as_waiting_meanwhile(self, database, db):
        chores = Chores(database, StorageUnavailable("GET x"), ValueError("its own"))
        key, tasks, kind = await chores.start(), chores.tasks(), chores.kind(attempts=3)
        tasks.on(kind)
        await tasks.measure()
        assert TASKS_DUE.labels("tracker", "Chore")._value.get() == 1
        await tasks._work_next(kind)
        await tasks.measure()
        assert TASKS_WAITING.labels("tracker", "Chore")._value.get() == 1
        assert TASKS_DUE.labels("tracker", "Chore")._value.get() == 0
        await tasks._work_next(kind)
        await tasks.measure()
        assert TASKS_WAITING.labels("tracker", "Chore")._value.get() == 0
        row = await db.fetchrow("SELECT failures, away_since, last_error FROM task WHERE key = $1", key)
        assert tuple(row) == (1, None, "ValueError: its own")

    async def test_it_fails_once_its_patience_is_over(self, database, db):
        chores = Chores(database, StorageUnavailable("GET x"), StorageUnavailable("GET x"))
        key, tasks, kind = await chores.start(), chores.tasks(), chores.kind()
        assert await tasks._work_next(kind)
        await db.execute("UPDATE task SET away_since = away_since - interval '24 hours' WHERE key = $1", key)
        assert await tasks._work_next(kind)
        assert chores.failed == ["StorageUnavailable: GET x"]

    async def test_a_process_that_ends_is_no_failure_of_its_task(self, database, db):
        chores = Chores(database, ValueError("its own"))
        key, kind = await chores.start(), chores.kind(attempts=2)
        for _ in range(5):
            crashed = chores.tasks()
            await crashed._claim(kind)
            await database.execute(FREE_OWN, crashed._owner)
        tasks = chores.tasks()
        assert await tasks._work_next(kind)
        assert chores.failed == []
        await db.execute("UPDATE task SET not_before = now() WHERE key = $1", key)
        assert await tasks._work_next(kind)
        assert chores.done == [key]


class TestALeaseThatIsNotRenewed:
    @pytest.fixture
    def chores(self, database, monkeypatch) -> Chores:
        chores = Chores(database)
        monkeypatch.setattr(lease, "RENEW_AGAIN_SECONDS", 0.05)
        chores.renews_seconds, chores.seconds_of_work = 0.05, 1.0
        return chores

    async def test_is_kept_while_it_runs(self, database, db, chores, monkeypatch):
        troubles = itertools.chain([asyncpg.AdminShutdownError("fast shutdown")] * 2, itertools.repeat(None))
        renews = failing(database, RENEW, troubles, monkeypatch)
        key = await chores.start()
        assert await chores.tasks()._work_next(chores.kind())
        assert (chores.worked, chores.done, chores.failed) == ([key], [key], [])
        assert len(renews) > 2

    async def test_is_over_at_its_end_and_nothing_is_counted(self, database, db, chores, monkeypatch):
        failing(database, RENEW, itertools.repeat(asyncpg.AdminShutdownError("fast shutdown")), monkeypatch)
        key, tasks = await chores.start(), chores.tasks(ttl_seconds=0.5)
        assert await tasks._work_next(chores.kind())
        assert (chores.worked, chores.done, chores.failed) == ([key], [], [])
        monkeypatch.undo()
        chores.seconds_of_work = 0.0
        await until(lambda: tasks._work_next(chores.kind()), "the end of the lease")
        assert (chores.done, chores.failed) == ([key], [])


def failing(database: Shaky, statement: str, troubles: Iterator[Exception | None], monkeypatch) -> list[str]:
    """Let the statement meet these troubles; each time it is put down in what is returned."""
    ask, asked = database.fetchval, []

    async def fetchval(query: str, *args: object) -> Any:
        if query == statement:
            asked.append(query)
            if trouble := next(troubles):
                raise trouble
        return await ask(query, *args)

    monkeypatch.setattr(database, "fetchval", fetchval)
    return asked


class TestATaskThatIsSetAside:
    async def test_cannot_be_read_and_others_continue(self, database, db):
        chores = Chores(database)
        bad, good = await chores.start(), await chores.start()
        await db.execute("UPDATE task SET payload = '{}' WHERE key = $1", bad)
        tasks, kind = chores.tasks(), chores.kind()
        tasks.on(kind)
        assert [await tasks._work_next(kind) for _ in range(3)] == [True, True, False]
        await tasks.measure()
        assert (chores.done, chores.failed) == ([good], [])
        assert TASKS_SET_ASIDE.labels("tracker", "Chore")._value.get() == 1
        assert "name" in await db.fetchval("SELECT last_error FROM task WHERE key = $1", bad)

    async def test_cannot_tell_that_it_failed(self, database, db):
        chores = Chores(database, ValueError("\0 of its own"))
        key, tasks, kind = await chores.start(), chores.tasks(), chores.kind()
        chores.cannot_fail = True
        assert [await tasks._work_next(kind) for _ in range(2)] == [True, False]
        row = await db.fetchrow("SELECT last_error, set_aside_at IS NULL FROM task WHERE key = $1", key)
        assert tuple(row) == ("LookupError: no such row", False)

    async def test_begins_again_when_it_is_asked_for_again(self, database, db):
        chores = Chores(database)
        key, tasks, kind = await chores.start(), chores.tasks(), chores.kind()
        await db.execute("UPDATE task SET payload = '{}' WHERE key = $1", key)
        assert await tasks._work_next(kind)
        async with database.transaction() as conn:
            await Unit(conn, "tracker", datetime.now(UTC)).start_task(Chore(name=key))
        assert await tasks._work_next(kind)
        assert chores.done == [key]

    async def test_is_tried_once_more_by_the_next_process(self, database, db):
        chores = Chores(database)
        key, tasks, kind = await chores.start(), chores.tasks(), chores.kind()
        await db.execute("UPDATE task SET set_aside_at = now(), failures = 1 WHERE key = $1", key)
        tasks.on(kind)
        running = asyncio.create_task(tasks.run())

        async def is_done() -> bool:
            return chores.done == [key]

        await until(is_done, "the task that was set aside")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_connection_whose_state_is_lost_is_thrown_away(database, monkeypatch):
    async with database.transaction() as conn:
        lost = conn.get_server_pid()

    async def lose_the_state() -> None:
        async with database.transaction() as conn:
            assert conn.get_server_pid() == lost
            raise asyncpg.InternalClientError(
                "cannot switch to state 12; another operation (2) is in progress"
            )

    with pytest.raises((asyncpg.InternalClientError, asyncpg.InterfaceError)) as raised:
        await lose_the_state()
    assert is_unavailable(raised.value)
    async with database.transaction() as conn:
        assert conn.get_server_pid() != lost
