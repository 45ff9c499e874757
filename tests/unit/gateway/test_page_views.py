"""What the page says of a job and of a verdict."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from schemas.evaluation import CheckResult, Criterion, Interval
from schemas.lifecycle import JobState
from services.gateway.model import Job, Step
from services.gateway.page import verdicts
from services.gateway.page.render import environment
from services.gateway.page.sessions import csrf_of, new_token, safe_path
from services.gateway.page.sparklines import drawn
from services.gateway.page.verdicts import CriterionView, Picture, check_views, differing, scales_of, unit_of
from services.gateway.page.views import commands, job_view, time_left
from tests.builders import NOON

BARE = {
    "job_id": "ftjob-1", "tenant": "demo", "spec": {}, "dataset_id": None, "dataset_version": None, "config_hash": None,
    "duplicate_of": None, "retry_of": None, "attempt": 1, "stage": None, "stages": (), "stage_plans": (), "recipe_reasons": {},
    "num_steps": 100, "last_step": 40, "valid_loss": None, "trained_tokens": None, "waiting_for": "", "queue_entry": None,
    "fine_tuned_model": None, "model_id": None, "is_promoted": None, "is_deployed": False, "ending": "", "warnings": (),
    "error": None, "estimated_memory": None, "preparation": None, "certificate": None, "cost": 0, "uncharged_cost": 0,
    "created_at": NOON, "finished_at": None, "result_files": (), "evaluation": None,
}  # fmt: skip


def a_job(state: JobState = JobState.RUNNING, **changes: Any) -> Job:
    return Job.model_validate(BARE | {"state": state} | changes)


def a_step(step: int, time: datetime) -> Step:
    metrics = {
        "time": time.isoformat(), "loss": 1.0, "learning_rate": 1e-4, "grad_norm": 1.0, "num_tokens": 1,
        "tokens_per_second": 1.0, "memory_bytes": 1, "epoch": 0.1,
    }  # fmt: skip
    return Step(step=step, attempt=1, metrics=metrics, validation=None)


def buttons(job: Job) -> dict[str, str]:
    """Action and why it cannot be pressed."""
    return {command.action: command.why_not for command in commands(job)}


@pytest.mark.parametrize("state", JobState)
def test_every_state_has_a_word_and_a_page(state: JobState):
    view = job_view(a_job(state), now=NOON)
    values = {"job": view, "now": NOON, "visitor": type("Visitor", (), {"csrf": "x"})}
    values["sparklines"] = {view.id: drawn([1, 2], [2.0, 1.0])}
    for template in ("job_head.html.jinja", "job_commands.html.jinja", "job_row.html.jinja"):
        assert view.badge.word
        environment().get_template(template).render(values)


@pytest.mark.parametrize(
    ("is_deployed", "auto_deploy", "expected"),
    [
        (True, True, "passed its gate and answers"),
        (True, False, "passed its gate and answers"),
        (False, False, "passed its gate; it answers once it is deployed, by the button on its model's page"),
    ],
)
def test_a_model_answers_once_it_is_deployed(is_deployed: bool, auto_deploy: bool, expected: str):
    verdict = {"eval_id": "eval-1", "outcome": "passed", "reason": "", "checks": ()}
    job = a_job(
        JobState.SUCCEEDED,
        model_id="mv-1",
        is_promoted=True,
        is_deployed=is_deployed,
        spec={"auto_deploy": auto_deploy},
        evaluation=verdict,
    )
    assert job_view(job, now=NOON).sentence == expected


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({}, "ftjob-1"),
        ({"metadata": {"name": "mine"}}, "mine"),
        ({"suffix": "own", "metadata": {"name": "mine"}}, "own"),
        ({"trial": {"sweep_id": "sweep-1", "number": 3}}, "trial 3 of sweep-1"),
        ({"suffix": "own", "trial": {"sweep_id": "sweep-1", "number": 0}}, "trial 0 of own"),
    ],
)
def test_a_job_has_a_name_for_people(spec: dict[str, Any], name: str):
    assert job_view(a_job(spec=spec), now=NOON).name == name


def test_every_template_is_one():
    names = environment().list_templates()
    assert len(names) > 10
    for name in names:
        environment().get_template(name)


def test_a_list_says_alerts_and_what_runs_late_beside_the_state():
    alert = {"rule": "stall", "message": "no step for 10 min", "raised_at": NOON, "is_muted": False}
    of_times = {"low": 60.0, "expected": 90.0, "high": 7200.0}
    cost = {"low": "1", "expected": "1", "high": "1"}
    time = {
        "pool": "h100",
        "seconds": of_times,
        "cost_usd": cost,
        "attempts": 3,
        "alike": "pool",
        "error": None,
    }
    muted = alert | {"rule": "loss_spike", "is_muted": True}
    view = job_view(a_job(alerts=(alert, muted), is_late=True, estimated_times=(time,)), now=NOON)
    assert [(each.word, each.message) for each in view.troubles] == [
        ("1 open alert", "no step for 10 min"),
        ("running late", "it was estimated to take at most 2 h 00 min"),
    ]
    assert job_view(a_job(), now=NOON).troubles == ()


def test_buttons_are_those_that_are_of_use():
    assert buttons(a_job()) == {"pause": "", "cancel": ""}
    assert buttons(a_job(JobState.PAUSED)) == {"resume": "", "cancel": ""}
    assert buttons(a_job(JobState.FAILED)) == {"continue": "", "retry": ""}
    assert buttons(a_job(JobState.FAILED, last_step=0)) == {"retry": ""}
    assert buttons(a_job(JobState.SUCCEEDED)) == {}
    assert all(buttons(a_job(JobState.EVALUATING)).values())
    assert buttons(a_job(JobState.STOPPING))["pause"] == "it is saving already"


def test_what_cancel_does_is_known_before_it_is_done():
    (_, cancel) = commands(a_job())
    assert "It ends after 40 steps" in cancel.effect


def test_a_model_that_failed_its_gate_is_no_success():
    verdict = {"eval_id": "eval-1", "outcome": "failed", "reason": "safety: too few", "checks": ()}
    view = job_view(a_job(JobState.SUCCEEDED, model_id="mv-1", evaluation=verdict), now=NOON)
    assert (view.badge.word, view.badge.tone, view.sentence) == ("gate failed", "bad", "safety: too few")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (None, "waits for the scheduler"),
        ({"position": 2, "estimated_start": NOON + timedelta(minutes=12)},
         "number 2 in the queue, waits for 8 devices; starts in 8-24 min"),
        ({"position": 2, "estimated_start": NOON + timedelta(seconds=45)},
         "number 2 in the queue, waits for 8 devices; starts within 1 min 45 s"),
        ({"position": None, "estimated_start": None}, "waits for 8 devices; start not estimated"),
        ({"position": 1, "estimated_start": NOON - timedelta(minutes=1)},
         "number 1 in the queue, waits for 8 devices; starts any moment"),
    ],
)  # fmt: skip
def test_waiting_is_a_sentence(entry, sentence):
    queue = entry and {"reason": "no_nodes", "waiting_for": "8 devices", "as_of": NOON} | entry
    assert job_view(a_job(JobState.QUEUED, queue_entry=queue), now=NOON).sentence == sentence


def test_the_time_that_is_left_is_a_range():
    seconds = [0, 10, 21, 29, 40, 52]
    steps = [a_step(at, NOON + timedelta(seconds=passed)) for at, passed in enumerate(seconds)]
    assert time_left(steps[::-1], num_left=60) == "9-12 min"
    assert time_left(steps[:1], num_left=60) == ""


def a_criterion(**changes: Any) -> Criterion:
    fields = {
        "name": "harm", "metric": "refusal_points", "value": 93.3, "baseline": 98.3, "threshold": 95.0, "count": 120,
        "passed": False, "outcome": "failed", "change_interval": Interval(low=-8.9, high=-1.1),
    }  # fmt: skip
    return Criterion(**fields | changes)


def picture(criterion: Criterion, *beside: Criterion) -> Picture:
    """`beside`: others of the gate."""
    return verdicts.picture(criterion, scales_of([criterion, *beside])[unit_of(criterion)])


def criterion_view(criterion: Criterion) -> CriterionView:
    return verdicts.criterion_view(criterion, scales_of([criterion])[unit_of(criterion)])


def test_a_picture_has_worse_on_the_left():
    better = picture(a_criterion())
    assert better.low < better.point < better.limit < better.high < better.zero
    worse = picture(a_criterion(higher_is_better=False))
    assert worse.zero < worse.low < worse.point < worse.high
    assert 0 <= min(vars(better)[name] for name in ("low", "limit", "zero")) <= 220


def test_a_number_without_a_base_is_drawn_beside_its_rule():
    alone = picture(a_criterion(baseline=None, change_interval=None, interval=Interval(low=87.4, high=96.6)))
    assert alone.zero is None
    assert alone.low < alone.point < alone.limit < alone.high


def test_rows_of_one_unit_have_one_scale_with_round_numbers():
    safety, wide = a_criterion(), a_criterion(change_interval=Interval(low=-28.0, high=18.0))
    ticks = picture(safety, wide).ticks
    assert [tick.text for tick in ticks] == ["-20 pt", "0 pt"]
    assert picture(safety, wide).zero == picture(wide, safety).zero == ticks[1].at
    assert [(tick.at, tick.text) for tick in picture(wide, safety).ticks] == [
        (tick.at, tick.text) for tick in ticks
    ]
    assert picture(safety).low < picture(safety, wide).low, "a scale of its own would reach less far"
    rate = {"metric": "win_rate", "value": 0.61, "baseline": None, "threshold": 0.5, "change_interval": None}
    judge = a_criterion(**rate, interval=Interval(low=0.55, high=0.7))
    assert [tick.text for tick in picture(judge, wide).ticks] == ["50 %", "60 %", "70 %"]
    assert picture(judge, wide).ticks[-1].anchor == "end"


def test_where_less_is_better_numbers_fall_to_the_right():
    worse = picture(a_criterion(higher_is_better=False))
    assert [tick.text for tick in worse.ticks] == ["0 pt", "-5 pt"]
    assert worse.ticks[0].at == worse.zero
    same = {"value": 2.0, "baseline": 2.0, "threshold": 2.0, "change_interval": Interval(low=0.0, high=0.0)}
    assert picture(a_criterion(**same)).ticks == (), "a scale of one number"


def test_a_criterion_has_its_numbers_in_their_unit():
    view = criterion_view(a_criterion(needed=400))
    assert (view.base, view.candidate, view.change, view.rule) == (
        "98.3",
        "93.3",
        "-5.0 [-8.9, -1.1]",
        "at least 95.0",
    )
    assert view.needed == "about 400 items would do"
    rate = criterion_view(
        a_criterion(metric="win_rate", value=0.6, baseline=None, threshold=0.5, change_interval=None)
    )
    assert (rate.base, rate.candidate, rate.rule, rate.change) == ("–", "60.0 %", "at least 50.0 %", "–")


def test_the_worst_check_comes_first():
    checks = [CheckResult(check=name, outcome=outcome) for name, outcome in (
        ("benchmark", "passed"), ("judge", "not_requested"), ("safety", "failed"), ("holdout", "inconclusive"),
    )]  # fmt: skip
    assert [view.name for view in check_views(checks)] == ["safety", "holdout", "benchmark", "judge"]


def test_what_two_answers_differ_in_is_marked():
    base, candidate = differing("it is red now", "it is deep blue now")
    assert base == [("it is", False), ("red", True), ("now", False)]
    assert candidate == [("it is", False), ("deep blue", True), ("now", False)]
    assert differing(None, "a") == ([("", True)], [("a", True)])


@pytest.mark.parametrize("path", ["//evil", "https://evil", "/\\evil", "evil", "", "/a\r\nb"])
def test_a_login_leads_to_no_other_site(path):
    assert safe_path(path) == "/"


def test_a_login_leads_back():
    assert safe_path("/jobs?q=status:failed base:x") == "/jobs?q=status:failed base:x"


def test_a_forms_token_is_of_one_session():
    one, other = new_token(), new_token()
    assert csrf_of(one) == csrf_of(one) != csrf_of(other)
    assert one not in csrf_of(one)
