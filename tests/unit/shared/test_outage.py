"""An absent Postgres is waited for without a limit; what alone is never done in time is not."""

from datetime import timedelta
from types import SimpleNamespace

import asyncpg
import pytest

from shared.postgres import outage
from shared.postgres.database import is_unavailable, may_be_its_own
from shared.postgres.outage import Overdue, retry_through_outage
from shared.retry import RetryPolicy

QUICK = RetryPolicy(limit=timedelta(seconds=60), shortest=timedelta(0), longest=timedelta(0))
AWAY = ConnectionRefusedError("nobody listens")
LOCKED = asyncpg.LockNotAvailableError("the lock of another")


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> SimpleNamespace:
    """Each look at it takes a second."""
    clock = SimpleNamespace(now=0.0)

    def monotonic() -> float:
        clock.now += 1.0
        return clock.now

    monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=monotonic))
    return clock


class Postgres:
    def __init__(self, *writes: bool) -> None:
        """What it says to whoever asks whether it takes writes; the last of it again and again."""
        self._writes = list(writes)

    async def takes_writes(self) -> bool:
        return self._writes.pop(0) if len(self._writes) > 1 else self._writes[0]


def failing(*errors: tuple[Exception, int]):
    """Fails so many times with each, then answers."""
    trouble = iter([error for error, times in errors for _ in range(times)])

    async def call() -> str:
        for error in trouble:
            raise error
        return "done"

    return call


@pytest.mark.parametrize("error", [AWAY, asyncpg.DiskFullError("full"), asyncpg.AdminShutdownError("stop")])
async def test_what_is_away_is_waited_for_however_long(clock, error):
    done = await retry_through_outage(failing((error, 5000)), Postgres(True), retry_policy=QUICK)
    assert (done, clock.now > 3600) == ("done", True)


@pytest.mark.parametrize("error", [LOCKED, TimeoutError("silent"), asyncpg.QueryCanceledError("slow")])
async def test_so_is_one_that_takes_no_writes_from_anybody(clock, error):
    done = await retry_through_outage(failing((error, 5000)), Postgres(False), retry_policy=QUICK)
    assert (done, clock.now > 3600) == ("done", True)


@pytest.mark.parametrize(
    "error",
    [
        LOCKED,
        TimeoutError("silent"),
        asyncpg.QueryCanceledError("slow"),
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.InterfaceError("connection is closed"),
    ],
)
async def test_what_alone_is_not_done_in_time_is_overdue_after_a_minute(clock, error):
    with pytest.raises(Overdue, match=f"not done within 6[01] s: {type(error).__name__}"):
        await retry_through_outage(failing((error, 10**6)), Postgres(True), retry_policy=QUICK)


async def test_the_minute_begins_again_behind_an_absence(clock):
    call = failing((LOCKED, 20), (AWAY, 1), (LOCKED, 20))
    assert await retry_through_outage(call, Postgres(True), retry_policy=QUICK) == "done"
    assert clock.now > 60


async def test_and_where_postgres_took_no_writes_in_between():
    postgres = Postgres(*[True] * 20, False, *[True] * 19)
    assert await retry_through_outage(failing((LOCKED, 40)), postgres, retry_policy=QUICK) == "done"


async def test_another_error_is_the_callers_at_once():
    with pytest.raises(KeyError):
        await retry_through_outage(
            failing((KeyError("a fault of ours"), 1)), Postgres(True), retry_policy=QUICK
        )


def test_what_may_be_one_statements_own_is_waited_for_too():
    for error in (LOCKED, TimeoutError(), asyncpg.QueryCanceledError()):
        assert may_be_its_own(error)
        assert is_unavailable(error)
    for error in (AWAY, asyncpg.DiskFullError(), asyncpg.TooManyConnectionsError()):
        assert not may_be_its_own(error)
        assert is_unavailable(error)
