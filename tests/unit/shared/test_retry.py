"""Who waits for what is away asks ever more seldom, in step with nobody, and not for ever."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from shared import retry
from shared.retry import RetryPolicy, retry_until_available

QUICK = RetryPolicy(limit=timedelta(seconds=60), shortest=timedelta(0), longest=timedelta(0))


def test_a_pause_is_as_long_as_the_absence_so_far_within_bounds():
    retry_policy = RetryPolicy()
    for seconds, longest in ((0.0, 0.5), (3.0, 3.0), (90_000.0, 30.0)):
        pauses = {retry_policy.pause(timedelta(seconds=seconds)).total_seconds() for _ in range(50)}
        assert longest / 2 <= min(pauses) <= max(pauses) <= longest
        assert len(pauses) > 1


def is_connection_error(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


async def test_what_comes_back_gives_its_answer():
    answers = iter([ConnectionError("away"), ConnectionError("away"), "here"])

    async def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await retry_until_available(call, is_away=is_connection_error, retry_policy=QUICK) == "here"


async def test_another_error_is_the_callers_at_once():
    async def call() -> None:
        raise KeyError("no such object")

    with pytest.raises(KeyError):
        await retry_until_available(call, is_away=is_connection_error, retry_policy=QUICK)


async def test_patience_has_an_end(monkeypatch):
    clock = iter(range(1000, 2000))
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    async def call() -> None:
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        await retry_until_available(call, is_away=is_connection_error, retry_policy=QUICK)
    assert next(clock) - 1000 == 61, "the reading of 60 seconds is the last one"
