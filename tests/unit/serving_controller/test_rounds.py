"""How a round that cannot be ended is told: by a warning where something is away, else as a fault of ours."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from services.serving_controller.clients.vllm import NoAnswer
from services.serving_controller.decide.pools import Policy
from services.serving_controller.handlers.rounds import ReconcileLoop
from services.serving_controller.handlers.steps import Steps
from services.serving_controller.model import ReplicaSet
from shared.errors import StorageUnavailable
from tests.unit.serving_controller.builders import a_replica, a_replica_set


class Failing(ReconcileLoop):
    def __init__(self, error: Exception) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, policy=Policy(), unanswered=timedelta(0))
        self.error = error

    async def round(self, replica_set: ReplicaSet, replicas: tuple[Any, ...]) -> None:
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
def test_a_round_that_fails_waits_and_is_logged(error, level, event):
    rounds, replica_set = Failing(error), a_replica_set()
    with capture_logs() as lines:
        asyncio.run(rounds._guarded(replica_set, ()))
    assert [(line["log_level"], line["event"]) for line in lines] == [(level, event)]
    assert replica_set.name in rounds._paused_until


def test_a_pause_that_is_over_is_forgotten():
    rounds = Failing(NoAnswer("no answer"))
    rounds._pause("first", now=0.0)
    rounds._pause("second", now=4.0)
    assert rounds._paused_until == {"first": 5.0, "second": 9.0}
    rounds._pause("third", now=5.0)
    assert rounds._paused_until == {"second": 9.0, "third": 10.0}


def test_what_was_noted_of_what_is_gone_is_forgotten():
    """Of a name that nobody wants, an incarnation that is lost, a replica set without replicas and wishes."""
    nothing: Any = None
    steps = Steps(nothing, nothing, nothing, policy=Policy(), clock=nothing)
    rounds = ReconcileLoop(nothing, steps, policy=Policy(), unanswered=timedelta(0))
    here, gone = a_replica(0), a_replica(1)
    rounds._replicas = (here,)
    rounds._heard = {each.address.incarnation: 1.0 for each in (here, gone)}
    rounds._put_off = {"wanted": 1.0, "withdrawn": 2.0}
    rounds._refusals = {here.replica_set: nothing, "begun": nothing, "over": nothing}
    rounds._quiet = {here.replica_set: nothing, "over": nothing}
    rounds._running = {"begun": nothing}
    steps._deaths.update(["wanted", "withdrawn"])
    rounds._forget_all_but({"wanted"})
    assert rounds._heard.keys() == {here.address.incarnation}
    assert rounds._put_off.keys() == steps._deaths.keys() == {"wanted"}
    assert (rounds._refusals.keys(), rounds._quiet.keys()) == (
        {here.replica_set, "begun"},
        {here.replica_set},
    )
