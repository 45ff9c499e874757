"""A loop of a service continues whatever its last round met; only a fault of ours is told as one."""

import asyncio
from datetime import timedelta

import pytest
from aiokafka.errors import GroupCoordinatorNotAvailableError
from structlog.testing import capture_logs

from shared.loops import repeat
from shared.messaging.kafka_health import ClientUnresponsive
from tests.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("error", "event", "level"),
    [
        (ConnectionRefusedError("no Postgres"), "loop waits", "warning"),
        (GroupCoordinatorNotAvailableError("no Kafka"), "loop waits", "warning"),
        (KeyError("a fault of ours"), "loop failed", "error"),
    ],
)
async def test_what_is_away_is_waited_for_and_what_is_wrong_is_raised(error, event, level):
    rounds = []
    done = asyncio.Event()

    async def fail_once() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise error
        done.set()

    with capture_logs() as logs:
        loop = asyncio.create_task(repeat(timedelta(), fail_once))
        await asyncio.wait_for(done.wait(), 10)
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
    assert [(line["event"], line["log_level"]) for line in logs] == [(event, level)]


async def test_a_loop_does_not_continue_with_a_client_that_is_stuck():
    async def is_stuck() -> None:
        raise ClientUnresponsive("Kafka answers")

    with pytest.raises(ClientUnresponsive):
        await asyncio.wait_for(repeat(timedelta(), is_stuck), PATIENCE_SECONDS)
