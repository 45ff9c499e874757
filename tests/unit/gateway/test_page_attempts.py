"""The attempts of a job as bars: each in its place on one scale, with what it waited for and what it did again."""

from datetime import timedelta
from typing import Any

import pytest

from schemas.lifecycle import FIRST as FIRST_FACT
from schemas.lifecycle import STATE_AFTER
from services.gateway.job_readmodels import RedoneSteps
from services.gateway.model import JobEvent
from services.gateway.page.attempts import SHOWN, TYPES, Attempt, begun_after, drawn
from services.gateway.page.render import text
from tests.builders import NOON


def an_event(minute: float, name: str, **data: Any) -> JobEvent:
    return JobEvent(
        id=1,
        job_id="ftjob-1",
        event_id="e",
        type=name,
        level="info",
        message="",
        data=data,
        created_at=NOON + timedelta(minutes=minute),
    )


def scheduled(minute: float, attempt: int, *, step: int | None = None, **data: Any) -> JobEvent:
    resume = None if step is None else {"attempt": attempt - 1, "step": step}
    return an_event(minute, "JobScheduled", attempt=attempt, resume=resume, pool="a100-spot", **data)


FIRST = [
    an_event(0, "JobSubmitted"),
    an_event(10, "JobQueued"),
    scheduled(40, 1),
    an_event(50, "JobRunning", attempt=1),
]
LOST = [
    *FIRST,
    an_event(80, "JobRequeued", attempt=1, failure_class="preempted"),
    scheduled(90, 2, step=100),
    an_event(95, "JobRunning", attempt=2),
]


def bars_of(attempt: Attempt) -> list[tuple[str, float, float]]:
    return [(bar.kind, bar.left, bar.width) for bar in attempt.bars]


def rendered(events: list[JobEvent], redone: list[RedoneSteps], minute: float) -> list[Attempt]:
    """What is drawn at a minute; the template takes it."""
    picture = drawn(events, redone, now=NOON + timedelta(minutes=minute))
    assert picture is not None
    assert "<rect" in text("job_attempts.html.jinja", picture=picture)
    return [*picture.attempts]


def test_of_a_job_without_events_nothing_is_drawn():
    assert drawn([], [], now=NOON) is None
    assert text("job_attempts.html.jinja", picture=None).strip() == ""


def test_a_job_that_waits_is_a_row_that_has_not_begun():
    (row,) = rendered(FIRST[:2], [], 40)
    assert bars_of(row) == [("validating", 0.0, 25.0), ("queued", 25.0, 75.0)]
    assert (row.has_begun, row.times, row.ended) == (False, ("40 min", "–", "–", "–", "–"), "")


def test_an_attempt_has_what_it_waited_for_and_goes_on_until_now():
    (row,) = rendered(FIRST, [], 100)
    assert bars_of(row) == [
        ("validating", 0.0, 10.0), ("queued", 10.0, 30.0), ("provisioning", 40.0, 10.0), ("running", 50.0, 50.0),
    ]  # fmt: skip
    assert row.words == "waiting 40 min, starting 10 min, training 50 min"
    assert row.bars[-1].title == "training 50 min: 2027-03-01 12:50:00 UTC to 2027-03-01 13:40:00 UTC"
    assert (row.number, row.pool, row.ended) == (1, "a100-spot", "")


def test_the_next_attempt_has_a_row_of_its_own_on_the_same_scale():
    first, second = rendered(LOST, [], 100)
    assert (first.ended, second.ended) == ("preempted", "")
    assert bars_of(second) == [
        ("queued", 80.0, 10.0), ("provisioning", 90.0, 5.0), ("running", 95.0, 5.0),
    ]  # fmt: skip


def test_saving_that_is_asked_twice_is_one_bar():
    events = [*FIRST, an_event(60, "JobStopping", attempt=1), an_event(70, "JobStopping", attempt=1)]
    (row,) = rendered([*events, an_event(100, "JobCancelled", attempt=1)], [], 900)
    assert bars_of(row)[-1] == ("stopping", 60.0, 40.0)
    assert row.ended == "cancelled"


def test_a_pause_belongs_to_the_attempt_that_comes_of_it():
    events = [*FIRST, an_event(60, "JobStopping", attempt=1), an_event(80, "JobPaused", attempt=1)]
    first, second = rendered(events, [], 100)
    assert (first.ended, bars_of(second)) == ("paused", [("paused", 80.0, 20.0)])


def test_the_gate_is_the_end_of_the_last_attempt():
    events = [*FIRST, an_event(80, "JobEvaluating", attempt=1), an_event(100, "JobSucceeded")]
    (row,) = rendered(events, [], 900)
    assert bars_of(row)[-1] == ("evaluating", 80.0, 20.0)
    assert (row.ended, row.times[-1]) == ("trained", "20 min")


def test_stages_are_attempts_with_their_number():
    events = [
        *FIRST[:2],
        scheduled(40, 1, stage={"number": 1, "steps_before": 0}),
        an_event(50, "JobRunning", attempt=1),
        an_event(80, "JobStageCompleted", attempt=1, stage={"number": 2}),
        scheduled(90, 2, step=5, stage={"number": 2, "steps_before": 60}),
    ]
    first, second = rendered(events, [], 100)
    assert (first.stage, second.stage, first.ended) == (1, 2, "stage trained")
    assert begun_after(events) == {1: 0, 2: 65}


@pytest.mark.parametrize(
    ("passed_by", "passed_minute", "bar"),
    [
        pytest.param(None, None, ("again", 95.0, 5.0), id="not passed yet"),
        pytest.param(2, 98, ("again", 95.0, 3.0), id="passed"),
        pytest.param(2, 20, ("again", 95.0, 0.4), id="passed by a clock that is behind"),
        pytest.param(2, 500, ("again", 95.0, 5.0), id="passed by a clock that is ahead"),
        pytest.param(3, None, ("again", 95.0, 5.0), id="passed by a later attempt alone"),
        pytest.param(2, None, None, id="passed at a time that is not kept"),
    ],
)
def test_steps_that_are_done_again_are_hatched(passed_by, passed_minute, bar):
    passed_at = None if passed_minute is None else NOON + timedelta(minutes=passed_minute)
    again = RedoneSteps(attempt=2, last_step=1_140, passed_by=passed_by, passed_at=passed_at)
    first, second = rendered(LOST, [again], 100)
    assert (first.again, second.again) == ("", "101 to 1,140")
    assert [each for each in bars_of(second) if each[0] == "again"] == ([bar] if bar else [])


def test_an_attempt_that_does_not_train_yet_has_done_nothing_again():
    again = RedoneSteps(attempt=2, last_step=140, passed_by=None, passed_at=None)
    assert rendered(LOST[:-1], [again], 100)[1].again == ""


def test_of_many_attempts_the_newest_are_drawn_on_their_own_scale():
    events = FIRST[:2]
    for number in range(1, SHOWN + 6):
        events += [
            scheduled(number * 100, number),
            an_event(number * 100 + 10, "JobRequeued", attempt=number, failure_class="infra"),
        ]
    picture = drawn(events, [], now=NOON + timedelta(minutes=10_000))
    assert picture is not None
    assert [row.number for row in picture.attempts] == [*range(7, SHOWN + 7)]
    assert (picture.num_left_out, picture.attempts[-1].has_begun) == (6, False)
    assert picture.begins_at == NOON + timedelta(minutes=610)
    assert all(
        bar.left >= 0 and bar.left + bar.width <= 100.01 for row in picture.attempts for bar in row.bars
    )


@pytest.mark.parametrize("fact", [*STATE_AFTER], ids=lambda fact: fact.type)
def test_every_state_that_a_job_may_have_has_a_bar_and_every_end_a_word(fact):
    assert fact.type in TYPES
    begun = FIRST if fact is not FIRST_FACT else []
    why = {"failure_class": "infra"} if "failure_class" in fact.model_fields else {}
    rows = rendered([*begun, an_event(60, fact.type, attempt=len(begun) and 1, **why)], [], 100)
    assert all(row.ended != "unknown" for row in rows)
