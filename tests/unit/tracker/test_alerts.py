"""What each rule raises and what it does not, in literal numbers; state, episodes, and what ends them."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from math import exp, inf, nan

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from schemas.alert import AlertCleared, AlertRaised, AlertRule, AlertsSpec
from schemas.training import StepMetrics, StepValidated
from services.tracker.decide import alerts
from services.tracker.decide.alerts import Plan, Seen, Watch
from services.tracker.decide.looks import Spending

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
STEP_SECONDS = 2
WIGGLE = (0.0, 0.02, -0.02, 0.01, -0.01)
"""Noise of the curves, in logarithms: the same each time."""


def a_step(step: int, **changes: object) -> StepMetrics:
    numbers = {
        "step": step,
        "time": NOON + timedelta(seconds=STEP_SECONDS * step),
        "loss": 2.0 * exp(WIGGLE[step % 5]),
        "learning_rate": 2e-4,
        "grad_norm": 1.0 * exp(10 * WIGGLE[step % 5]),
        "num_tokens": 4096,
        "tokens_per_second": 2000.0,
        "memory_bytes": 8 * 2**30,
        "epoch": step / 1000,
        "mfu": 0.4,
        "device_utilization": 0.95,
    }
    return StepMetrics.model_validate(numbers | changes)


def curve(until: int, loss_of: Callable[[int], float]) -> list[StepMetrics]:
    return [a_step(step, loss=loss_of(step) * exp(WIGGLE[step % 5])) for step in range(1, until + 1)]


def falling(step: int) -> float:
    """2.9 at the start, 1.75 after 100 steps, 1.47 after 1,000: each half of the run loses more than 4 %."""
    return 1.1 + 1.9 * step**-0.24


def seen_of(
    steps: Iterable[StepMetrics], watch: Watch | None = None, *, validations: Sequence[StepValidated] = ()
) -> Seen:
    """Batches of ten steps, each heard when its last step ends."""
    watch, events, rows = watch or Watch("ftjob-1", 1, "acme"), [], list(steps)
    for batch in (rows[begin : begin + 10] for begin in range(0, len(rows), 10)):
        mine = [each for each in validations if batch[0].step <= each.step <= batch[-1].step]
        seen = alerts.on_steps(watch, batch, mine, now=batch[-1].time)
        watch, events = seen.watch, [*events, *seen.events]
    return Seen(watch, tuple(events))


def what(seen: Seen) -> list[tuple[str, str, int]]:
    return [(type(each).__name__, each.rule.value, each.step) for each in seen.events]


def raised(seen: Seen) -> set[str]:
    return {each.rule.value for each in seen.events if isinstance(each, AlertRaised)}


def changed(steps: Sequence[StepMetrics], of: Iterable[int], **changes: object) -> list[StepMetrics]:
    numbers = set(of)
    return [step.model_copy(update=changes) if step.step in numbers else step for step in steps]


def test_each_rule_has_its_field_and_notifies_by_default():
    fields = set(AlertsSpec.model_fields) - {"expected_cost"}
    assert fields == {rule.value for rule in AlertRule}
    assert {AlertsSpec().action_of(rule) for rule in AlertRule} == {"notify"}


class TestNothingIsWrong:
    @pytest.mark.parametrize(
        "loss_of",
        [
            falling,
            lambda step: 11.0 * step**-0.25 + 0.8,
            lambda step: 0.693 * exp(-step / 150) + 0.002,
            lambda step: exp(falling(step)),
        ],
        ids=["tuning", "from the first step", "preferences", "perplexity"],
    )
    def test_while_a_loss_falls(self, loss_of: Callable[[int], float]):
        assert seen_of(curve(1000, loss_of)).events == ()

    def test_with_a_single_hard_batch(self):
        assert seen_of(changed(curve(200, falling), [150], loss=9.0, grad_norm=90.0)).events == ()

    def test_with_preferences_whose_losses_are_small_and_spread_wide(self):
        def spread(step: int) -> float:
            return 0.02 * (1.0, 6.0, 0.2, 3.0, 0.4, 0.1, 8.0)[step % 7]

        assert seen_of(curve(100, lambda step: 0.693) + curve(400, spread)[100:]).events == ()

    def test_in_the_warm_up_of_an_attempt(self):
        """A resumed attempt begins with gradients, speeds and losses that mean nothing yet."""
        steps = [a_step(step, loss=9.0 / step, grad_norm=1e3 / step) for step in range(1, 33)]
        assert seen_of(steps).events == ()

    def test_where_a_resumed_attempt_continues_after_hours(self):
        first = seen_of(curve(100, falling)).watch
        late = [
            step.model_copy(update={"time": step.time + timedelta(hours=5)}) for step in curve(90, falling)
        ]
        again = [step for step in late if step.step > 50]
        assert first.attempt == 1
        assert seen_of(again, Watch("ftjob-1", 2, "acme")).events == ()


class TestLossSpike:
    def test_three_high_losses_raise_it_once_and_it_clears_after_sixteen_usual_ones(self):
        steps = changed(curve(200, falling), range(101, 107), loss=2.6)
        assert what(seen_of(steps)) == [
            ("AlertRaised", "loss_spike", 103),
            ("AlertCleared", "loss_spike", 122),
        ]
        [first, _] = seen_of(steps).events
        assert 2.6 == first.value > first.limit > 1.0

    def test_a_second_one_is_another_episode(self):
        steps = changed(curve(300, falling), [*range(101, 107), *range(201, 207)], loss=2.6)
        episodes = [each.episode for each in seen_of(steps).events]
        assert episodes == [1, 1, 2, 2]

    def test_of_a_rise_within_its_noise_nothing_is_raised(self):
        assert seen_of(changed(curve(200, falling), range(101, 107), loss=1.9)).events == ()

    def test_nothing_is_raised_where_it_is_off(self):
        watch = Watch("ftjob-1", 1, "acme", Plan(AlertsSpec(loss_spike="off")))
        assert seen_of(changed(curve(200, falling), range(101, 107), loss=2.6), watch).events == ()

    def test_of_preferences(self):
        steps = changed(curve(200, lambda step: 0.693 * exp(-step / 150)), range(151, 157), loss=0.9)
        assert what(seen_of(steps))[0] == ("AlertRaised", "loss_spike", 153)


class TestDivergence:
    def test_a_level_that_stays_high_raises_it(self):
        steps = curve(150, falling) + curve(250, lambda step: 2.6)[150:]
        assert ("AlertRaised", "divergence", 169) in what(seen_of(steps))

    def test_it_clears_when_the_loss_is_back(self):
        steps = curve(150, falling) + curve(200, lambda step: 2.6)[150:] + curve(300, falling)[200:]
        assert [name for name, rule, _ in what(seen_of(steps)) if rule == "divergence"] == [
            "AlertRaised",
            "AlertCleared",
        ]

    def test_a_spike_is_none(self):
        assert raised(seen_of(changed(curve(300, falling), range(201, 209), loss=3.0))) == {"loss_spike"}


class TestPlateau:
    def test_a_loss_that_does_not_fall_raises_it(self):
        assert what(seen_of(curve(1500, lambda step: 2.0))) == [("AlertRaised", "plateau", 512)]

    @pytest.mark.parametrize(
        "why",
        [{"learning_rate": 1e-5}, {"loss": 0.05}],
        ids=["the schedule is over", "it has nowhere to fall to"],
    )
    def test_a_flat_curve_may_be_as_it_should(self, why: dict[str, float]):
        steps = changed(curve(1500, lambda step: 2.0), range(40, 1501), **why)
        assert "plateau" not in raised(seen_of(steps))

    def test_nor_is_the_end_of_a_run(self):
        watch = Watch("ftjob-1", 1, "acme", Plan(num_epochs=1))
        steps = curve(300, falling) + curve(1500, lambda step: 1.6)[300:]
        late = [step.model_copy(update={"epoch": 0.85}) for step in steps]
        assert "plateau" not in raised(seen_of(late, watch))


class TestNumbersThatAreNotFinite:
    @pytest.mark.parametrize("wrong", [{"loss": nan}, {"grad_norm": inf}], ids=["loss", "gradient"])
    def test_raise_it_at_once(self, wrong: dict[str, float]):
        steps = changed(curve(60, falling), [10], **wrong)
        assert what(seen_of(steps))[0] == ("AlertRaised", "not_finite", 10)

    def test_a_gradient_that_doubles_with_each_step_raises_it_before(self):
        steps = [
            step.model_copy(update={"grad_norm": 2.0 ** max(0, step.step - 100)})
            for step in curve(110, falling)
        ]
        rules = {rule: step for name, rule, step in what(seen_of(steps))}
        assert rules["not_finite"] <= 106

    def test_a_numeric_failure_raises_it_though_its_attempt_is_being_stopped(self):
        stopping = alerts.on_end(seen_of(curve(40, falling)).watch, "attempt 1 ends").watch
        seen = alerts.on_numeric_failure(stopping, "loss is nan")
        assert [name for name, _, _ in what(seen)] == ["AlertRaised", "AlertCleared"]
        assert alerts.on_numeric_failure(seen.watch, "loss is nan").events == ()


def test_a_gradient_of_twenty_times_its_usual_size_is_an_explosion():
    steps = changed(curve(200, falling), range(101, 106), grad_norm=20.0)
    assert what(seen_of(steps)) == [
        ("AlertRaised", "gradient_explosion", 103),
        ("AlertCleared", "gradient_explosion", 121),
    ]


class TestMemory:
    @staticmethod
    def growing(by: Callable[[int], float]) -> list[StepMetrics]:
        return [
            step.model_copy(update={"memory_bytes": int(8e9 * by(step.step))}) for step in curve(400, falling)
        ]

    def test_that_grows_with_each_block_is_a_leak(self):
        assert what(seen_of(self.growing(lambda step: 1 + step / 2000)))[0] == (
            "AlertRaised",
            "memory_leak",
            104,
        )

    def test_that_fills_up_is_none(self):
        assert seen_of(self.growing(lambda step: 2 - exp(-step / 25))).events == ()

    def test_that_rises_by_jumps_is_none(self):
        assert seen_of(self.growing(lambda step: 1 + (step // 30) / 50)).events == ()


class TestUse:
    def test_half_the_usual_speed_for_thirty_seconds_is_low(self):
        steps = changed(curve(200, falling), range(101, 201), tokens_per_second=800.0)
        assert what(seen_of(steps)) == [("AlertRaised", "low_utilization", 116)]

    def test_an_idle_gpu_is_low_from_the_start(self):
        steps = changed(curve(100, falling), range(1, 101), device_utilization=0.2)
        assert raised(seen_of(steps)) == {"low_utilization"}

    def test_a_cpu_may_be_shared(self):
        steps = changed(curve(100, falling), range(1, 101), device_utilization=0.2, mfu=None)
        assert seen_of(steps).events == ()

    def test_a_few_slow_steps_are_none(self):
        assert seen_of(changed(curve(200, falling), range(101, 113), tokens_per_second=100.0)).events == ()


class TestStall:
    def at(self, watch: Watch, seconds: float, *, listening: float = 0) -> Seen:
        newest = watch.signals.heard_at or NOON
        return alerts.look(
            watch,
            None,
            now=newest + timedelta(seconds=seconds),
            listening_since=newest + timedelta(seconds=listening),
        )

    def test_is_raised_once_and_cleared_by_the_next_step(self):
        watch = seen_of(curve(50, falling)).watch
        assert self.at(watch, 39).events == ()
        seen = self.at(watch, 41)
        assert what(seen) == [("AlertRaised", "stall", 50)]
        assert self.at(seen.watch, 80).events == ()
        later = seen_of([a_step(51, loss=1.7)], seen.watch)
        assert what(later) == [("AlertCleared", "stall", 51)]

    def test_is_none_while_nothing_could_be_heard(self):
        assert self.at(seen_of(curve(50, falling)).watch, 60, listening=30).events == ()

    def test_is_none_after_the_last_step(self):
        watch = Watch("ftjob-1", 1, "acme", Plan(num_epochs=1))
        done = seen_of([a_step(step, epoch=step / 50) for step in range(1, 51)], watch).watch
        assert self.at(done, 600).events == ()

    def test_is_none_where_a_step_takes_a_minute_or_a_checkpoint_took_one(self):
        slow = [a_step(step, time=NOON + timedelta(minutes=step)) for step in range(1, 20)]
        assert self.at(seen_of(slow).watch, 290).events == ()
        once = [a_step(step, time=NOON + timedelta(seconds=step + 60 * (step > 9))) for step in range(1, 20)]
        assert self.at(seen_of(once).watch, 85).events == ()

    def test_that_the_steps_of_an_hour_were_heard_late_makes_no_longer_wait(self):
        """Kafka or the tracker was away."""
        early = seen_of(curve(50, falling)).watch
        late = alerts.on_steps(early, [a_step(51, loss=1.7)], [], now=NOON + timedelta(hours=1)).watch
        assert what(self.at(late, 41)) == [("AlertRaised", "stall", 51)]

    def test_is_none_while_the_first_validation_may_run(self):
        watch = Watch("ftjob-1", 1, "acme", Plan(validates=True))
        assert self.at(seen_of(curve(50, falling), watch).watch, 600).events == ()

    def test_before_the_first_step_nothing_is_expected(self):
        empty = Watch("ftjob-1", 1, "acme")
        assert alerts.next_look(empty, now=NOON) is None
        assert self.at(empty, 3600).events == ()


class TestCost:
    PLAN = Plan(AlertsSpec(expected_cost=Decimal(10)), num_epochs=1)
    """A thousand steps of two seconds are 2,000 seconds."""

    def at_price(self, price: str, *, steps: int = 100, before: str = "0") -> Seen:
        watch = seen_of(curve(steps, falling), Watch("ftjob-1", 1, "acme", self.PLAN)).watch
        now = NOON + timedelta(seconds=STEP_SECONDS * steps)
        return alerts.look(
            watch, Spending(Decimal(before), Decimal(price), NOON), now=now, listening_since=now
        )

    def test_above_the_plan_at_this_speed_is_raised(self):
        seen = self.at_price("19")
        assert what(seen) == [("AlertRaised", "cost_above_plan", 100)]
        assert "$10.56 at this speed, of which $1.06 are spent" in seen.events[0].message

    def test_within_the_plan_is_none(self):
        assert self.at_price("17.5").events == ()

    def test_earlier_attempts_count(self):
        assert what(self.at_price("10", before="6")) == [("AlertRaised", "cost_above_plan", 100)]

    def test_before_the_speed_is_known_nothing_is_projected(self):
        assert self.at_price("100", steps=10).events == ()


class TestCheckpoint:
    def test_overdue_is_raised_until_one_is_written(self):
        watch = seen_of(curve(50, falling)).watch
        seen = alerts.on_checkpoint_overdue(watch, 0, None)
        assert what(seen) == [("AlertRaised", "checkpoint_overdue", 50)]
        assert alerts.on_checkpoint_overdue(seen.watch, 0, None).events == ()
        assert what(alerts.on_checkpoint(seen.watch, 40, {})) == [("AlertCleared", "checkpoint_overdue", 50)]

    def test_that_was_written_meanwhile_is_not_overdue(self):
        watch = alerts.on_checkpoint(seen_of(curve(50, falling)).watch, 40, {}).watch
        assert alerts.on_checkpoint_overdue(watch, 20, NOON).events == ()


class TestValidation:
    @staticmethod
    def of(*losses: float, name: str = "full_valid_loss") -> Seen:
        validations = [
            StepValidated(step=10 * place, metrics={name: loss}) for place, loss in enumerate(losses, start=1)
        ]
        return seen_of(curve(10 * len(losses), falling), validations=validations)

    def test_the_third_one_above_the_lowest_raises_it_and_a_lower_one_clears_it(self):
        seen = self.of(2.0, 1.8, 1.7, 1.72, 1.75, 1.8, 1.85, 1.6)
        assert what(seen) == [("AlertRaised", "validation_rise", 70), ("AlertCleared", "validation_rise", 80)]

    def test_noise_is_none(self):
        assert self.of(2.0, 1.8, 1.7, 1.71, 1.705, 1.71, 1.708, 1.712).events == ()

    def test_of_preferences_near_zero_is_none(self):
        assert self.of(0.69, 0.2, 0.02, 0.021, 0.022, 0.024).events == ()

    def test_of_checkpoints_counts_where_the_whole_file_is_not_measured(self):
        watch, events = seen_of(curve(50, falling)).watch, []
        for place, loss in enumerate((2.0, 1.7, 1.72, 1.75, 1.8), start=1):
            seen = alerts.on_checkpoint(watch, 10 * place, {"valid_loss": loss})
            watch, events = seen.watch, [*events, *what(seen)]
        assert events == [("AlertRaised", "validation_rise", 50)]


class TestState:
    STEPS = changed(curve(200, falling), range(101, 160), loss=2.6)

    def test_batches_cut_anywhere_and_seen_twice_give_the_same_alerts(self):
        whole = what(seen_of(self.STEPS))
        watch, events = Watch("ftjob-1", 1, "acme"), []
        cuts = [0, 7, 50, 101, 103, 104, 150, 200]
        for begin, end in pairwise(cuts):
            batch = self.STEPS[max(0, begin - 5) : end]
            for _ in range(2):
                seen = alerts.on_steps(watch, batch, (), now=batch[-1].time)
                watch, events = seen.watch, [*events, *what(seen)]
        assert events == whole

    def test_it_survives_the_table(self):
        """As the table keeps it, between any two steps."""
        stored, events = TypeAdapter(Watch), []
        watch = Watch("ftjob-1", 1, "acme")
        for step in self.STEPS:
            seen = alerts.on_steps(watch, [step], [], now=step.time)
            watch = stored.validate_python(to_jsonable_python(seen.watch))
            events += what(seen)
        assert events == what(seen_of(self.STEPS))

    def test_it_is_bounded(self):
        watch = seen_of(curve(3000, falling)).watch
        assert len(stored_bytes(watch)) < 12_000

    def test_the_end_of_an_attempt_clears_what_is_open_and_late_steps_raise_nothing(self):
        open_one = seen_of(self.STEPS[:110])
        end = alerts.on_end(open_one.watch, "attempt 1 ends")
        assert [type(each) for each in end.events] == [AlertCleared]
        assert seen_of(self.STEPS[110:], end.watch).events == ()
        assert alerts.next_look(end.watch, now=NOON) is None


def stored_bytes(watch: Watch) -> bytes:
    return TypeAdapter(Watch).dump_json(watch)
