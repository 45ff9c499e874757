"""What an alert does to a job is what the job asks for, through the paths of a pause and a cancellation."""

from datetime import timedelta

import pytest

from schemas.alert import AlertRule, AlertsSpec
from schemas.job import JobCancelled, JobPaused, JobStopping, PauseReason, StopReason
from schemas.lifecycle import JobState
from services.scheduler.decide.decision import StopOverdue, Timer
from tests.builders import NOON, a_bundle, a_job, a_job_spec
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

ENDED = (incoming.released(), incoming.stopped())
TRAINED = (incoming.written(a_bundle(30)), incoming.verified(a_bundle(30)))


def a_running_job(**actions: str) -> History:
    spec = a_job_spec(alerts=AlertsSpec(**actions) if actions else None)
    return History(a_job(JobState.RUNNING, spec=spec)).apply(*TRAINED)


@pytest.mark.parametrize("actions", [{}, {"divergence": "notify"}, {"divergence": "off"}, {"stall": "stop"}])
def test_an_alert_alone_stops_nothing(actions: dict[str, str]):
    history = a_running_job(**actions).apply(incoming.alert())
    assert (history.job.state, history.types) == (JobState.RUNNING, [])
    assert history.ignored == [f"alert divergence: {actions.get('divergence', 'notify')}"]


def test_a_pause_keeps_the_checkpoint_and_names_the_alert():
    history = a_running_job(divergence="pause").apply(incoming.alert(), *ENDED)
    stopping = history.last(JobStopping)
    assert (stopping.reason, stopping.message) == (
        StopReason.PAUSE,
        "alert divergence: loss 9, at its best 2",
    )
    assert stopping.deadline > NOON
    paused = history.last(JobPaused)
    assert (paused.reason, paused.resume) == (PauseReason.ALERT, a_bundle(30))


def test_a_stop_ends_the_job_with_its_newest_checkpoint():
    history = a_running_job(divergence="stop").apply(incoming.alert(), *ENDED)
    assert history.last(JobStopping).reason is StopReason.CANCEL
    cancelled = history.last(JobCancelled)
    assert (cancelled.reason, cancelled.artifact.bundle) == ("alert", a_bundle(30))


def test_an_alert_that_comes_after_the_nodes_are_gone_is_waited_with_as_long_as_any_stop():
    history = a_running_job(divergence="stop").apply(incoming.released(), incoming.alert())
    assert history.job.state is JobState.STOPPING
    assert history.timers[-1] == Timer(StopOverdue(job_id="ftjob-1", attempt=1), NOON + timedelta(minutes=10))


def test_an_alert_about_an_earlier_attempt_stops_no_later_one():
    history = a_running_job(divergence="stop").apply(incoming.alert(attempt=0))
    assert history.job.state is JobState.RUNNING
    assert history.ignored == ["alert divergence about attempt 0, which is over"]


@pytest.mark.parametrize("state", [JobState.PAUSED, JobState.EVALUATING, JobState.SUCCEEDED])
def test_a_job_that_does_not_train_any_more_is_left_as_it_is(state: JobState):
    spec = a_job_spec(alerts=AlertsSpec(divergence="stop"))
    history = History(a_job(state, spec=spec)).apply(incoming.alert())
    assert (history.job.state, history.types) == (state, [])


def test_a_user_who_cancels_while_it_pauses_has_the_last_word():
    history = a_running_job(loss_spike="pause").apply(
        incoming.alert(AlertRule.LOSS_SPIKE), incoming.cancel(), *ENDED
    )
    assert history.last(JobCancelled).reason == "user"
