"""Timers fire once and after failures again; tasks survive crashes and apply only under their lease."""

import asyncio
from datetime import datetime, timedelta

import asyncpg
import pytest
from pydantic import BaseModel

from shared.errors import Rejected
from shared.messaging.unit import Task, Unit
from shared.service import Service
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import new_key
from tests.waiting import until

pytestmark = pytest.mark.stack


class Reminder(BaseModel):
    name: str


class Chore(Task, frozen=True):
    name: str

    @property
    def key(self) -> str:
        return self.name


class Diary:
    """What handlers did, and how often they were asked to fail first."""

    def __init__(self) -> None:
        self.reminded: list[str] = []
        self.times: list[datetime] = []
        self.worked: list[str] = []
        self.done: list[str] = []
        self.failed: list[str] = []
        self.failures_left = 0
        self.unlucky = ""
        self.go_on = asyncio.Event()
        self.go_on.set()

    def _maybe_fail(self) -> None:
        if self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("asked to fail")

    async def remind(self, reminder: Reminder, unit: Unit) -> None:
        self.times.append(unit.now)
        if reminder.name == self.unlucky:
            raise asyncpg.LockNotAvailableError("another one has it")
        self._maybe_fail()
        self.reminded.append(reminder.name)

    async def work(self, chore: Chore) -> str:
        self.worked.append(chore.name)
        if chore.name.startswith("hopeless"):
            raise Rejected("cannot be done")
        self._maybe_fail()
        await self.go_on.wait()
        return chore.name

    async def finish(self, chore: Chore, result: str, unit: Unit) -> None:
        await unit.conn.execute("INSERT INTO parent VALUES ($1)", result)
        self.done.append(result)

    async def give_up(self, chore: Chore, error: Exception, unit: Unit) -> None:
        self.failed.append(f"{chore.name}: {error}")


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
async def service(tracker_env, monkeypatch, diary):
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    service = counting.build()
    _register(service, diary)
    async with service.running():
        yield service
        await service.database.execute(
            "DELETE FROM timer"
        )  # the next test's handler would be asked to run them


TAKE = "SELECT FROM timer WHERE payload ->> 'name' = $1 FOR UPDATE"
IS_POSTPONED = "SELECT attempts > 0 FROM timer WHERE payload ->> 'name' = $1"
IS_GONE = "SELECT NOT EXISTS (SELECT FROM timer WHERE payload ->> 'name' = $1)"


def _register(service: Service, diary: Diary) -> None:
    service.on_timer(Reminder, diary.remind)
    service.on_task(Chore, work=diary.work, done=diary.finish, failed=diary.give_up, attempts=3)


async def truth(value: object) -> object:
    return value


async def test_a_timer_fires_once_at_its_time(service, diary):
    name = new_key()
    async with service.unit() as unit:
        await unit.set_timer(Reminder(name=name), at=unit.now + timedelta(hours=1))
        await unit.set_timer(Reminder(name=f"{name}-now"), at=unit.now)
    await until(lambda: truth(diary.reminded), "the timer that is due")
    assert diary.reminded == [f"{name}-now"]
    assert (
        await service.database.fetchval("SELECT count(*) FROM timer WHERE payload ->> 'name' = $1", name) == 1
    )


async def test_a_handler_gets_no_earlier_time_than_that_of_its_timer(service, diary, monkeypatch):
    at = service.database.now()
    monkeypatch.setattr(service.database, "now", lambda: at - timedelta(seconds=1))
    async with service.unit() as unit:
        await unit.set_timer(Reminder(name=new_key()), at=at)
    await until(lambda: truth(diary.times), "the timer that is due")
    assert diary.times == [at]


async def test_a_timer_whose_handler_fails_comes_again(service, diary):
    diary.failures_left = 1
    name = new_key()
    async with service.unit() as unit:
        await unit.set_timer(Reminder(name=name), at=unit.now)
    await until(lambda: truth(diary.reminded), "the timer after its failure")
    await until(lambda: service.database.fetchval(IS_GONE, name), "the commit of its handler")
    assert diary.reminded == [name]


async def test_a_timer_whose_handler_never_gets_its_lock_holds_up_no_other(service, diary):
    diary.unlucky, name = new_key(), new_key()
    async with service.unit() as unit:
        await unit.set_timer(Reminder(name=diary.unlucky), at=unit.now - timedelta(seconds=1))
        await unit.set_timer(Reminder(name=name), at=unit.now)
    await until(lambda: truth(diary.reminded), "the timer behind it")
    assert diary.reminded == [name]


async def test_a_timer_that_fails_postpones_no_timer_of_another_process(service, diary):
    others, diary.unlucky = new_key(), new_key()
    async with service.unit() as unit:
        await unit.set_timer(Reminder(name=others), at=unit.now + timedelta(seconds=1))
    async with service.database.transaction() as other_process:
        await other_process.execute(TAKE, others)
        async with service.unit() as unit:
            await unit.set_timer(Reminder(name=diary.unlucky), at=unit.now + timedelta(seconds=1))
        await until(lambda: service.database.fetchval(IS_POSTPONED, diary.unlucky), "the timer that failed")
        assert not await service.database.fetchval(IS_POSTPONED, others)


async def test_a_task_is_retried_then_done_once(service, diary):
    diary.failures_left = 2
    name = new_key()
    async with service.unit() as unit:
        await unit.start_task(Chore(name=name))
        await unit.start_task(Chore(name=name))
    await until(lambda: truth(diary.done), "the task")
    assert (diary.worked, diary.done, diary.failed) == ([name] * 3, [name], [])


async def test_a_task_gives_up_after_its_attempts_and_at_once_when_rejected(service, diary):
    diary.failures_left = 3
    name = new_key()
    async with service.unit() as unit:
        await unit.start_task(Chore(name=name))
    await until(lambda: truth(diary.failed), "the task to give up")
    assert diary.failed == [f"{name}: asked to fail"]
    async with service.unit() as unit:
        await unit.start_task(Chore(name=f"hopeless-{name}"))
    await until(lambda: truth(len(diary.failed) == 2), "the hopeless task")
    assert diary.worked.count(f"hopeless-{name}") == 1


async def test_what_is_done_after_the_lease_was_lost_is_dropped(service, diary):
    diary.go_on.clear()
    name = new_key()
    async with service.unit() as unit:
        await unit.start_task(Chore(name=name))
    await until(lambda: truth(diary.worked), "the task to begin")
    await service.database.execute(
        "UPDATE task SET lease_token = lease_token + 1, lease_owner = 'another', "
        "lease_expires_at = clock_timestamp() + interval '1 hour' WHERE key = $1",
        name,
    )
    diary.go_on.set()

    other = new_key()
    async with service.unit() as unit:
        await unit.start_task(Chore(name=other))
    await until(lambda: truth(diary.done), "the next task of the only worker")
    assert diary.done == [other]
    assert await service.database.fetchval("SELECT lease_owner FROM task WHERE key = $1", name) == "another"
    await service.database.execute("DELETE FROM task WHERE key = $1", name)


async def test_a_task_that_is_cancelled_stops(service, diary, monkeypatch):
    monkeypatch.setattr(service._tasks, "_renew", timedelta(seconds=0.1))
    name, behind = new_key(), new_key()
    diary.go_on.clear()
    async with service.unit() as unit:
        await unit.start_task(Chore(name=name))
    await until(lambda: truth(name in diary.worked), "the task to begin")
    async with service.unit() as unit:
        await unit.cancel_task(Chore, name)
        await unit.start_task(Chore(name=behind))
    await until(lambda: truth(behind in diary.worked), "the place of the cancelled one to be free")
    diary.go_on.set()
    await until(lambda: truth(behind in diary.done), "the next one to be done")
    assert name not in [*diary.done, *diary.failed]


async def test_a_restarted_process_takes_its_tasks_up_at_once(service, diary, tracker_env):
    diary.go_on.clear()
    name = new_key()
    async with service.unit() as unit:
        await unit.start_task(Chore(name=name))
    await until(lambda: truth(diary.worked), "the task to begin")
    await service._tasks._database.execute("UPDATE task SET lease_owner = 'tracker-0' WHERE key = $1", name)
    successor, second = counting.build(), Diary()
    _register(successor, second)
    await successor.database.open()
    tasks = asyncio.create_task(successor._tasks.run())
    await until(lambda: truth(second.done), "the successor to finish the task")
    tasks.cancel()
    await asyncio.gather(tasks, return_exceptions=True)
    await successor.database.close()
    diary.go_on.set()
    assert second.done == [name]
