"""How a round that cannot be ended is told: by a warning where something is away, else as a fault of ours."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from services.serving_controller.clients.vllm import NoAnswer
from services.serving_controller.decide.pools import Policy
from services.serving_controller.handlers.rounds import Rounds
from services.serving_controller.model import Group
from shared.errors import StorageUnavailable
from tests.unit.serving_controller.builders import a_group


class Failing(Rounds):
    def __init__(self, error: Exception) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, policy=Policy(), unanswered=timedelta(0))
        self.error = error

    async def round(self, group: Group, replicas: tuple[Any, ...]) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "level", "event"),
    [
        (StorageUnavailable("GET x: 503"), "warning", "round is tried again"),
        (NoAnswer("no answer"), "warning", "round is tried again"),
        (asyncpg.ConnectionDoesNotExistError("closed"), "warning", "round is tried again"),
        (asyncpg.DeadlockDetectedError("deadlock"), "warning", "round is tried again"),
        (KeyError("x"), "error", "round failed"),
    ],
)
def test_a_round_that_fails_waits_and_is_told(error, level, event):
    rounds, group = Failing(error), a_group()
    with capture_logs() as lines:
        asyncio.run(rounds._guarded(group, ()))
    assert [(line["log_level"], line["event"]) for line in lines] == [(level, event)]
    assert group.name in rounds._paused_until


def test_a_pause_that_is_over_is_forgotten():
    rounds = Failing(NoAnswer("no answer"))
    rounds._pause("first", now=0.0)
    rounds._pause("second", now=4.0)
    assert rounds._paused_until == {"first": 5.0, "second": 9.0}
    rounds._pause("third", now=5.0)
    assert rounds._paused_until == {"second": 9.0, "third": 10.0}
