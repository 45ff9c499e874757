"""One waits for a Kafka that is away, and not for one that answers and does nothing."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from shared.messaging import kafka_health
from shared.messaging.kafka_health import (
    ClientUnresponsive,
    await_through_outage,
    started,
    wait_until_available,
)
from shared.tls import Tls
from tests.waiting import PATIENCE_SECONDS

WINDOW_SECONDS = 0.01
SETTINGS = SimpleNamespace(
    kafka_bootstrap="127.0.0.1:1", kafka_username="admin", kafka_password=SecretStr("x"), tls=Tls()
)


def answering(*answers: bool) -> Callable[[], Awaitable[bool]]:
    """One answer after the other; asked more often it fails."""
    left = iter(answers)

    async def answer() -> bool:
        return next(left)

    return answer


async def test_what_ends_in_time_needs_no_question():
    async def work() -> int:
        return 7

    assert await await_through_outage(work(), answering(), seconds=WINDOW_SECONDS) == 7


async def test_while_kafka_is_away_one_waits():
    is_back = asyncio.Event()
    asked = 0

    async def answers() -> bool:
        nonlocal asked
        asked += 1
        if asked == 5:
            is_back.set()
        return False

    assert await await_through_outage(is_back.wait(), answers, seconds=WINDOW_SECONDS)
    assert asked == 5


async def test_a_kafka_that_has_just_come_back_is_given_time():
    is_back = asyncio.Event()

    async def answers() -> bool:
        asyncio.get_running_loop().call_soon(is_back.set)
        return True

    assert await await_through_outage(is_back.wait(), answers, seconds=WINDOW_SECONDS)


async def test_a_kafka_that_answers_and_does_nothing_is_an_error_and_the_work_is_given_up():
    work = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(ClientUnresponsive, match="Kafka answers"):
        await await_through_outage(work, answering(False, True), seconds=WINDOW_SECONDS)
    await asyncio.wait({work})
    assert work.cancelled()


async def test_an_error_of_the_work_is_its_own():
    async def work() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await await_through_outage(work(), answering(), seconds=WINDOW_SECONDS)


async def test_it_is_there_with_the_first_yes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shared.messaging.kafka_health.POLL_SECONDS", 0.0)
    await wait_until_available(answering(False, False, True))


async def test_what_is_given_up_has_ended_before_anybody_continues():
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(WINDOW_SECONDS)
            ended.append(True)

    waiting = asyncio.create_task(await_through_outage(work(), answering(), seconds=30))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert ended == [True]


async def test_a_client_that_never_starts_is_given_up_and_stopped(monkeypatch):
    class Deaf:
        is_stopped = False

        async def start(self) -> None:
            await asyncio.Event().wait()

        async def stop(self) -> None:
            self.is_stopped = True

    monkeypatch.setattr(kafka_health, "START_TIMEOUT_SECONDS", WINDOW_SECONDS)
    client = Deaf()
    with pytest.raises(ClientUnresponsive, match="Kafka answers"):
        async with started(client, answering(False, True)):
            pytest.fail("it never starts")
    assert client.is_stopped


async def test_a_client_that_never_stops_is_given_up(monkeypatch):
    class Busy:
        async def start(self) -> None: ...

        async def stop(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(kafka_health, "STOP_SECONDS", WINDOW_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with started(Busy()):
            pass


async def test_who_is_cancelled_while_asking_leaves_no_connection_open(monkeypatch):
    class Silent:
        is_asked = asyncio.Event()
        is_closed = False

        async def send(self, _request: object) -> None:
            self.is_asked.set()
            await asyncio.Event().wait()

        def close(self) -> None:
            self.is_closed = True

    async def connect(*_: object, **__: object) -> Silent:
        return connection

    connection = Silent()
    monkeypatch.setattr(kafka_health, "create_conn", connect)
    monkeypatch.setattr(kafka_health, "ANSWER_SECONDS", WINDOW_SECONDS)
    assert await kafka_health.kafka_answers(SETTINGS) is False
    assert connection.is_asked.is_set()
    assert connection.is_closed


async def test_a_broker_that_is_not_trusted_is_named_with_the_setting(monkeypatch):
    async def connect(*_: object, **__: object) -> None:
        raise ssl.SSLCertVerificationError("unable to get local issuer certificate")

    monkeypatch.setattr(kafka_health, "create_conn", connect)
    with capture_logs() as logs:
        assert await kafka_health.kafka_answers(SETTINGS) is False
    assert [(each["broker"], each["setting"]) for each in logs] == [("127.0.0.1:1", "RETUNE_CA_FILE")]
