"""What is watched of an attempt, when it is looked at again, and what its checkpoints and its end say."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from schemas.alert import AlertCleared, AlertRaised, AlertRule, AlertsSpec
from schemas.specification import Recipe
from services.tracker.decide.alerts import (
    Plan,
    Seen,
    Watch,
    look,
    next_look,
    on_checkpoint,
    on_checkpoint_overdue,
    on_numeric_failure,
    plan_of,
)
from services.tracker.decide.looks import Spending
from services.tracker.decide.signals import Open, Signals
from tests.builders import a_file_ref, a_job_spec

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (a_job_spec(), Plan(AlertsSpec(), None, False)),
        (a_job_spec(recipe=Recipe(num_epochs=3)), Plan(AlertsSpec(), 3, False)),
        (
            a_job_spec(recipe=Recipe(eval_every_steps=10), validation_file=a_file_ref("valid.jsonl")),
            Plan(AlertsSpec(), None, True),
        ),
        (a_job_spec(recipe=Recipe(eval_every_steps=10)), Plan(AlertsSpec(), None, False)),
        (a_job_spec(validation_file=a_file_ref("valid.jsonl")), Plan(AlertsSpec(), None, False)),
        (a_job_spec(alerts=AlertsSpec(plateau="off")), Plan(AlertsSpec(plateau="off"), None, False)),
    ],
    ids=["nothing", "epochs", "validates", "without a file", "without steps", "alerts"],
)
def test_the_plan_of_an_attempt_is_that_of_its_specification(spec, expected):
    assert plan_of(spec) == expected


@pytest.mark.parametrize(
    ("epoch", "epochs", "share"), [(1.0, 4, 0.25), (4.0, 4, 1.0), (4.1, 4, 1.0), (1.0, None, None)]
)
def test_the_share_that_is_done_is_that_of_the_epochs(epoch, epochs, share):
    assert Plan(num_epochs=epochs).share_done(Signals(epoch=epoch)) == share


class TestNextLook:
    def look(
        self,
        after: float,
        *,
        expected_cost: str | None = None,
        is_over: bool = False,
        validates: bool = False,
        **signals: object,
    ):
        usual = {"heard_at": NOON, "step": 7}
        alerts = AlertsSpec(expected_cost=expected_cost and Decimal(expected_cost))
        plan = Plan(alerts, num_epochs=2, validates=validates)
        watch = Watch("ftjob-1", 1, "acme", plan, Signals(**(usual | signals)), is_over)
        at = next_look(watch, now=NOON + seconds(after))
        return at and (at - NOON).total_seconds()

    def test_is_when_a_step_is_missing_and_not_at_once_again(self):
        assert [self.look(after) for after in (0, 35, 36, 90)] == [40, 40, 41, 95]
        assert self.look(0, gaps=[20.0]) == 100
        assert self.look(0, validates=True) == 900

    def test_is_every_half_minute_where_money_is_looked_at(self):
        assert [self.look(after, expected_cost="5") for after in (0, 20)] == [30, 40]

    @pytest.mark.parametrize(
        "signals", [{"open": {"stall": Open(1, 7)}}, {"epoch": 2.0}], ids=["stall", "end"]
    )
    def test_is_never_where_time_alone_changes_nothing(self, signals):
        assert self.look(0, **signals) is None
        assert self.look(0, expected_cost="5", **signals) == 30

    def test_is_never_after_the_end_or_before_the_first_step(self):
        assert self.look(0, expected_cost="5", is_over=True) is None
        assert self.look(0, expected_cost="5", heard_at=None) is None


class TestCheckpoints:
    def overdue(self, step: int, last_step: int, *, is_over: bool = False, at: datetime | None = NOON):
        signals = Signals(step=30, checkpoint_step=step)
        return on_checkpoint_overdue(Watch("ftjob-1", 2, "acme", Plan(), signals, is_over), last_step, at)

    def test_are_overdue_unless_one_was_written_after_the_last_that_was_known(self):
        [raised] = self.overdue(20, 20).events
        assert raised == AlertRaised(
            job_id="ftjob-1",
            tenant="acme",
            attempt=2,
            rule=AlertRule.CHECKPOINT_OVERDUE,
            episode=1,
            step=30,
            message="no checkpoint for three intervals; the last one at 12:00:00",
        )
        [never] = self.overdue(-1, -1, at=None).events
        assert never.message == "no checkpoint for three intervals; none was written"
        assert self.overdue(21, 20).events == ()
        over = Watch("ftjob-1", 2, "acme", Plan(), Signals(step=30, checkpoint_step=20), True)
        assert self.overdue(20, 20, is_over=True) == Seen(over)

    @pytest.mark.parametrize(("step", "counts"), [(20, False), (21, True)])
    def test_one_that_comes_again_changes_nothing(self, step, counts):
        signals = Signals(step=30, checkpoint_step=20)
        watch = Watch("ftjob-1", 2, "acme", Plan(), signals)
        seen = on_checkpoint(watch, step, {"valid_loss": 1.0})
        assert (seen == Seen(watch)) is not counts
        assert seen.watch.signals.checkpoint_step == max(20, step)
        assert seen.watch.signals.validations == ({"valid_loss": [(21, 0.0)]} if counts else {})

    def test_of_an_attempt_that_validates_its_own_losses_are_not_followed(self):
        seen = on_checkpoint(Watch("ftjob-1", 2, "acme", Plan(validates=True)), 21, {"valid_loss": 1.0})
        assert (seen.watch.signals.checkpoint_step, seen.watch.signals.validations) == (21, {})

    def test_after_the_end_nothing_is_followed(self):
        over = Watch("ftjob-1", 2, "acme", is_over=True)
        assert on_checkpoint(over, 21, {"valid_loss": 1.0}) == Seen(over)


class TestLook:
    PRICED = AlertsSpec(expected_cost=Decimal(5))
    SPENDING = Spending(Decimal(9), Decimal(1), NOON)

    @pytest.mark.parametrize(
        ("alerts", "spending", "is_over", "rules"),
        [
            (PRICED, SPENDING, False, [AlertRule.COST_ABOVE_PLAN]),
            (PRICED, SPENDING, True, []),
            (PRICED, None, False, []),
            (AlertsSpec(), SPENDING, False, []),
        ],
        ids=["both", "after the end", "no spending", "no expectation"],
    )
    def test_at_money_is_taken_where_some_is_expected_and_some_is_spent(
        self, alerts, spending, is_over, rules
    ):
        watch = Watch("ftjob-1", 2, "acme", Plan(alerts), is_over=is_over)
        seen = look(watch, spending, now=NOON, listening_since=NOON)
        assert [event.rule for event in seen.events] == rules
        assert rules or seen == Seen(watch)


def test_a_number_that_is_not_finite_ends_the_attempt_with_its_alert():
    watch = Watch("ftjob-1", 2, "acme", signals=Signals(step=30))
    raised, cleared = on_numeric_failure(watch, "loss is nan").events
    assert isinstance(raised, AlertRaised)
    assert isinstance(cleared, AlertCleared)
    for event in (raised, cleared):
        assert (event.rule, event.episode, event.step, event.message) == ("not_finite", 1, 30, "loss is nan")
        assert (event.job_id, event.tenant, event.attempt) == ("ftjob-1", "acme", 2)
    assert on_numeric_failure(watch, "loss is nan").watch.is_over
