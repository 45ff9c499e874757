"""What each rule says at its limit and just before it, from signals in literal numbers."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import exp, log

import pytest

from schemas.alert import AlertRule
from services.tracker.decide import curve, machine, robust
from services.tracker.decide.curve import (
    DIVERGENCE_DEVIATIONS,
    DIVERGENCE_RISE,
    EXPLOSION_DEVIATIONS,
    SPIKE_DEVIATIONS,
)
from services.tracker.decide.looks import Spending, cost_above_plan, silence_allowed, stall
from services.tracker.decide.signals import Signals, mark, newest
from services.tracker.decide.validation import validation_rise
from tests.unit.tracker.test_alerts import a_step

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
A_BIT = 1e-9
FLAT = [0.0] * 64
UNEASY = [0.5, -0.5] * 32
"""Logarithms that stay level, with noise: their neighbours differ by one."""
GIB = 2**30


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class TestMarks:
    @pytest.mark.parametrize(
        ("marks", "says"),
        [
            ([True, True, True], True),
            ([True, False, True, True], True),
            ([True, True, True, False], True),
            ([True, True, False, False, True], None),
            ([True, False, False, True, True], None),
            ([True] + [False] * 15, None),
            ([True] + [False] * 16, False),
            ([False] * 15, None),
            ([False] * 16, False),
        ],
    )
    @pytest.mark.parametrize(
        ("rule", "numbers"),
        [
            ("spikes", {"loss": 1.3}),
            ("explosions", {"grad_norm": 8.0}),
            ("overflows", {"grad_norm": 1000.0}),
        ],
    )
    def test_three_of_four_outliers_raise_and_sixteen_usual_steps_clear(self, rule, numbers, marks, says):
        signals = Signals(losses=[*FLAT], gradients=[*FLAT])
        look = {
            "spikes": curve.loss_spike,
            "explosions": curve.gradient_explosion,
            "overflows": curve.not_finite,
        }[rule]
        usual = {"loss": 1.0, "grad_norm": 1.0}
        for is_outlier in marks:
            reading = look(signals, a_step(1, **(usual | numbers if is_outlier else usual)))
        assert getattr(signals, rule) == marks[-16:]
        assert (reading and reading.is_wrong) is says

    def test_so_many_are_kept_and_counted(self):
        marks = []
        for number in range(20):
            mark(marks, number in (2, 17, 19))
        assert (len(marks), newest(marks, 2), newest(marks, 3)) == (16, 1, 2)


class TestOutliers:
    def is_spike(self, loss: float, losses: list[float], **signals: float) -> bool:
        known = Signals(losses=losses, gradients=[*FLAT], **signals)
        curve.loss_spike(known, a_step(1, loss=loss))
        return known.spikes == [True]

    def is_explosion(self, norm: float, gradients: list[float]) -> bool:
        known = Signals(losses=[*FLAT], gradients=gradients)
        curve.gradient_explosion(known, a_step(1, grad_norm=norm))
        return known.explosions == [True]

    def test_nothing_is_marked_in_the_warm_up(self):
        for count, marks in ((31, 0), (32, 1)):
            signals = Signals(losses=[0.0] * count, gradients=[0.0] * count)
            for look in (curve.loss_spike, curve.gradient_explosion, curve.not_finite):
                assert look(signals, a_step(1)) is None
            assert [len(signals.spikes), len(signals.explosions), len(signals.overflows)] == [marks] * 3

    def test_only_the_newest_thirty_two_are_the_base(self):
        signals = Signals(losses=[3.0] * 32 + FLAT[:32], gradients=[3.0] * 32 + FLAT[:32])
        curve.not_finite(signals, a_step(1, grad_norm=1000.0))
        assert signals.overflows == [True]

    @pytest.mark.parametrize(("loss", "is_one"), [(1.3, True), (1.3 - A_BIT, False)])
    def test_a_loss_is_one_from_thirty_percent_above_the_base(self, loss, is_one):
        assert self.is_spike(loss, [*FLAT]) is is_one

    @pytest.mark.parametrize(("rise", "is_one"), [(0.05 + A_BIT, True), (0.05 - A_BIT, False)])
    def test_a_loss_is_one_from_half_the_smallest_rise(self, rise, is_one):
        assert self.is_spike(0.1 + rise, [log(0.1)] * 64, start=0.0) is is_one

    @pytest.mark.parametrize(("by", "is_one"), [(A_BIT, True), (-A_BIT, False)])
    def test_a_loss_is_one_from_five_times_the_noise(self, by, is_one):
        losses = [0.1, -0.1] * 32
        assert self.is_spike(exp(SPIKE_DEVIATIONS * robust.noise(losses) + by), losses) is is_one

    @pytest.mark.parametrize(("by", "is_one"), [(A_BIT, True), (-A_BIT, False)])
    def test_a_loss_is_one_from_five_times_the_spread_of_losses_as_they_are(self, by, is_one):
        """Most of them were higher than the newest, of which the base is."""
        losses = [0.05, -0.05] * 16 + [-3.0] * 17 + [0.05, -0.05, 0.05] * 5
        limit = SPIKE_DEVIATIONS * robust.spread([exp(each) for each in losses])
        assert self.is_spike(exp(-3.0) + limit + by, losses) is is_one

    @pytest.mark.parametrize(("norm", "is_one"), [(8.0, True), (8.0 - A_BIT, False)])
    def test_a_gradient_is_one_from_eight_times_the_base(self, norm, is_one):
        assert self.is_explosion(norm, [*FLAT]) is is_one
        assert self.is_explosion(2 * norm, [log(2.0)] * 64) is is_one

    @pytest.mark.parametrize(("by", "is_one"), [(A_BIT, True), (-A_BIT, False)])
    def test_a_gradient_is_one_from_so_many_times_the_noise(self, by, is_one):
        norm = exp(EXPLOSION_DEVIATIONS * robust.noise(UNEASY) + by)
        assert self.is_explosion(norm, [*UNEASY]) is is_one

    @pytest.mark.parametrize(("norm", "is_one"), [(1000.0, True), (1000.0 - A_BIT, False)])
    def test_a_gradient_is_on_its_way_from_a_thousand_times_the_base(self, norm, is_one):
        signals = Signals(losses=[*FLAT], gradients=[*FLAT])
        curve.not_finite(signals, a_step(1, grad_norm=norm))
        signals.gradients = [log(2.0)] * 64
        curve.not_finite(signals, a_step(2, grad_norm=2 * norm))
        assert signals.overflows == [is_one] * 2

    @pytest.mark.parametrize(
        ("grown", "is_one"),
        [
            ([0.54, 1.08, 1.62, 2.16, 2.7, 3.24], True),
            ([0.54, 1.08, 1.62, 2.16, 2.68, 3.24], False),
            ([0.0, 0.02, 0.56, 1.1, 1.64, 2.18], False),
            ([0.02, 0.56, 1.1, 1.64, 2.18, 2.2], False),
            ([-0.7, -0.15, 0.4, 0.95, 1.5, 2.05], False),
        ],
        ids=["six in a row", "one is smaller", "the first", "the last", "not far above the base"],
    )
    def test_a_gradient_that_grows_by_seventy_percent_five_times_in_a_row(self, grown, is_one):
        signals = Signals(losses=[*FLAT], gradients=[0.0] * 59 + grown[:-1])
        reading = curve.not_finite(signals, a_step(1, grad_norm=exp(grown[-1])))
        assert (reading is not None and reading.is_wrong) is is_one
        assert reading is None or reading.value == pytest.approx(exp(grown[-1]))


class TestDivergence:
    def read(self, level: float, *, above: int = 11, **signals: float) -> tuple[bool | None, int]:
        known = Signals(
            losses=[0.0] * 48 + [level] * 16, num_steps=65, best=0.0, start=0.0, above=above, **signals
        )
        reading = curve.divergence(known)
        return reading and reading.is_wrong, known.above

    def test_the_twelfth_step_at_the_limit_raises_it(self):
        limit = DIVERGENCE_RISE
        assert self.read(limit) == (True, 12)
        assert self.read(limit, above=10) == (None, 11)
        assert self.read(limit - A_BIT) == (None, 0)

    def test_noise_moves_the_limit(self):
        limit = DIVERGENCE_DEVIATIONS * 0.2
        assert self.read(limit, usual_noise=0.2) == (True, 12)
        assert self.read(limit - A_BIT, usual_noise=0.2) == (None, 0)

    def test_a_small_rise_as_it_is_counts_for_nothing(self):
        known = Signals(
            losses=[log(0.1)] * 48 + [log(0.2 - A_BIT)] * 16, num_steps=65, best=log(0.1), start=0.0
        )
        curve.divergence(known)
        assert known.above == 0
        known.losses[-16:] = [log(0.2 + A_BIT)] * 16
        curve.divergence(known)
        assert known.above == 1

    def test_it_clears_below_half_the_limit(self):
        assert self.read(DIVERGENCE_RISE / 2 - A_BIT)[0] is False
        assert self.read(DIVERGENCE_RISE / 2 + A_BIT)[0] is None

    @pytest.mark.parametrize(("steps", "losses", "best"), [(64, 64, 0.0), (63, 64, None), (64, 63, None)])
    def test_the_best_level_is_that_of_a_whole_window_every_eighth_step(self, steps, losses, best):
        signals = Signals(losses=[0.0] * losses, num_steps=steps)
        curve.divergence(signals)
        assert signals.best == best

    def test_the_best_level_only_falls_and_the_noise_follows_slowly(self):
        signals = Signals(losses=[*UNEASY], num_steps=64, best=-1.0, usual_noise=1.0)
        curve.divergence(signals)
        noise = robust.noise(UNEASY)
        assert signals.best == -1.0
        assert signals.usual_noise == pytest.approx(1.0 + 0.1 * (noise - 1.0))

    @pytest.mark.parametrize(("best", "is_followed"), [(-0.19, True), (-0.192, False)])
    def test_noise_is_not_followed_while_the_level_is_high(self, best, is_followed):
        signals = Signals(losses=[*FLAT], num_steps=64, best=best, usual_noise=0.1)
        curve.divergence(signals)
        assert (signals.usual_noise == pytest.approx(0.09)) is is_followed


class TestPlateau:
    def read(self, losses: list[float], *, share_done: float | None = None, **changes: object) -> bool | None:
        usual = {"levels": losses, "start": 1.0, "rate": 1.0, "peak_rate": 1.0}
        reading = curve.plateau(Signals(**(usual | changes)), share_done=share_done)
        return reading and reading.is_wrong

    @pytest.mark.parametrize(("by", "says"), [(A_BIT, None), (-A_BIT, True)])
    def test_how_low_the_loss_is_follows_from_its_newest_level(self, by, says):
        levels = [1.0] * 8 + [1.0 - 0.001 * place for place in range(8)]
        assert self.read(levels, start=levels[-1] - log(0.15) + by) is says

    def test_sixteen_whole_blocks_without_a_fall_raise_it(self):
        assert self.read([1.0] * 16) is True
        assert self.read([1.0] * 15) is None
        assert self.read([1.0] * 16, block=[1.0]) is None
        assert self.read([1.0] * 16, start=None) is None

    @pytest.mark.parametrize(
        ("fall", "says"), [(0.0199, True), (0.0201, False), (-0.0199, True), (-0.0201, None)]
    )
    def test_only_the_newer_half_and_two_percent_of_it_count(self, fall, says):
        assert self.read([9.0] * 8 + [1.0 - fall * place / 8 for place in range(8)]) is says

    @pytest.mark.parametrize(("noise", "says"), [(0.0369, True), (0.037, None)])
    def test_the_error_is_at_least_that_of_the_usual_noise(self, noise, says):
        assert self.read([1.0] * 16, usual_noise=noise) is says

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"share_done": 0.8}, True),
            ({"share_done": 0.81}, None),
            ({"rate": 0.3}, True),
            ({"rate": 0.29}, None),
            ({"start": 1.0 - log(0.15) - A_BIT}, True),
            ({"start": 1.0 - log(0.15) + A_BIT}, None),
        ],
        ids=["not late", "late", "at a high rate", "at a low rate", "not converged", "converged"],
    )
    def test_a_flat_curve_may_be_as_it_should(self, changes, says):
        assert self.read([1.0] * 16, **changes) is says


class TestMemory:
    def read(self, memory: list[int], *, num_steps: int = 80) -> bool | None:
        reading = machine.memory_leak(Signals(memory=memory, num_steps=num_steps))
        return reading and reading.is_wrong

    def test_eight_blocks_that_grow_by_two_percent_are_a_leak(self):
        assert self.read([800 + 2 * block for block in range(9)]) is True
        assert self.read([801 + 2 * block for block in range(9)]) is None
        assert self.read([1] + [800 + 2 * block for block in range(8)]) is None
        assert self.read([800 + 2 * block for block in range(8)]) is None
        assert self.read([800 + 2 * block for block in range(9)], num_steps=81) is None

    def test_a_byte_a_block_is_growth_and_only_the_newest_nine_count(self):
        assert self.read([400 + block for block in range(9)]) is True
        assert self.read([900, *(800 + 2 * block for block in range(9))]) is True

    def test_growth_that_pauses_or_slows_down_is_none(self):
        assert self.read([800, 810, 820, 830, 830, 840, 850, 860, 870]) is None
        assert self.read([800, 810, 820, 830, 840, 845, 850, 855, 860]) is True
        assert self.read([800, 810, 820, 830, 840, 845, 850, 855, 859]) is None

    def test_a_slow_leak_is_one_of_every_third_block(self):
        slow = [800 + block - block % 3 for block in range(25)]
        assert self.read(slow) is True
        assert self.read(slow[1:]) is None

    def test_memory_that_is_what_it_was_clears_it(self):
        assert self.read([900, 800, 810, 820, 830, 840, 850, 860, 800]) is None
        assert self.read([800, 801, 800, 801, 800, 801, 800, 801, 800]) is False


class TestUse:
    def read(self, speed: float, use: float | None = 1.0, **changes: object) -> tuple[bool | None, int]:
        known = {"speeds": [speed] * 16, "uses": [use or -1.0] * 16, "usual_speed": 1000.0}
        known |= {"slow_steps": 7, "slow_since": NOON - seconds(30)}
        signals = Signals(losses=[*FLAT], **(known | changes))
        step = a_step(1, time=NOON, tokens_per_second=speed, device_utilization=use)
        reading = machine.low_utilization(signals, step)
        return reading and reading.is_wrong, signals.slow_steps

    def test_eight_steps_and_thirty_seconds_below_half_the_usual_speed_raise_it(self):
        assert self.read(499.9) == (True, 8)
        assert self.read(499.9, slow_steps=6) == (None, 7)
        assert self.read(499.9, slow_since=NOON - seconds(29.9)) == (None, 8)
        assert self.read(500.0) == (None, 0)

    def test_a_device_in_use_for_less_than_three_tenths_is_idle(self):
        assert self.read(1000.0, 0.29) == (True, 8)
        assert self.read(1000.0, 0.3) == (None, 0)

    def test_it_clears_at_six_tenths_of_the_speed_and_enough_use(self):
        assert self.read(600.0) == (False, 0)
        assert self.read(599.9) == (None, 0)
        assert self.read(1000.0, 0.35) == (False, 0)
        assert self.read(1000.0, 0.34) == (None, 0)

    def test_speeds_of_sixteen_steps_are_needed(self):
        assert self.read(100.0, speeds=[100.0] * 15) == (None, 7)

    def test_the_time_begins_with_the_first_slow_step(self):
        signals = Signals(losses=[*FLAT], speeds=[100.0] * 16, uses=[1.0] * 16, usual_speed=1000.0)
        for second in range(0, 36, 5):
            reading = machine.low_utilization(
                signals, a_step(1, time=NOON + seconds(second), tokens_per_second=100.0)
            )
        assert (signals.slow_since, reading.is_wrong, reading.limit) == (NOON, True, 500.0)
        machine.low_utilization(signals, a_step(1, tokens_per_second=900.0))
        assert signals.slow_since is None


class TestSilence:
    @pytest.mark.parametrize(
        ("changes", "validates", "allowed"),
        [
            ({}, False, 40),
            ({"gaps": [8.0] * 3}, False, 40),
            ({"gaps": [9.0, 9.0, 90.0]}, False, 45),
            ({"longest_gap": 30.0}, False, 45),
            ({"gaps": [9.0] * 3, "longest_gap": 20.0}, False, 45),
            ({}, True, 900),
            ({"validations": {"full_valid_loss": []}}, True, 40),
        ],
    )
    def test_how_long_nothing_may_come(self, changes, validates, allowed):
        assert silence_allowed(Signals(**changes), validates=validates) == seconds(allowed)

    @pytest.mark.parametrize(
        ("heard", "listening", "share", "is_stall"),
        [
            (40, 90, None, True),
            (39.9, 90, None, False),
            (90, 39.9, None, False),
            (90, 40, 0.99, True),
            (90, 90, 1.0, False),
            (None, 90, None, False),
        ],
    )
    def test_a_stall_is_so_much_silence_since_all_could_be_heard(self, heard, listening, share, is_stall):
        reading = stall(
            Signals(step=7, heard_at=None if heard is None else NOON - seconds(heard)),
            now=NOON,
            listening_since=NOON - seconds(listening),
            validates=False,
            share_done=share,
        )
        assert (reading is not None) is is_stall
        if reading:
            assert (reading.value, reading.limit) == (min(heard, listening), 40)


class TestCost:
    def read(
        self, price: str, *, share: float | None = 0.25, before: str = "1", **changes: object
    ) -> tuple[bool | None, float | None]:
        """An hour of the attempt was trained, a quarter of all: three more follow."""
        known = {"began": NOON - seconds(3600), "time": NOON, "num_steps": 20, "epoch": 0.5}
        reading = cost_above_plan(
            Signals(**(known | changes)),
            Spending(Decimal(before), Decimal(price), NOON - seconds(7200)),
            expected=Decimal(100),
            share_done=share,
            now=NOON,
        )
        return (reading and reading.is_wrong, reading and reading.value)

    def test_more_than_expected_raises_it_and_a_twentieth_less_clears_it(self):
        """Two hours have passed, so that the whole attempt takes five."""
        assert self.read("19.9") == (True, 100.5)
        assert self.read("19.8") == (None, None)
        assert self.read("18.81") == (None, None)
        assert self.read("18.8")[0] is False

    def test_earlier_attempts_count(self):
        assert self.read("18.8", before="6.01")[0] is True
        assert self.read("18.8", before="6")[0] is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_steps": 19},
            {"share": None},
            {"share": 0.049},
            {"began": None},
            {"time": None},
            {"began": NOON - seconds(59.9)},
            {"epoch": 0.0},
            {"began_epoch": 0.5},
        ],
        ids=str,
    )
    def test_nothing_is_projected_before_the_speed_is_known(self, changes):
        assert self.read("49", **changes) == (None, None)
        assert self.read("50", **changes) == (True, 101.0)

    def test_a_speed_is_known_from_so_little(self):
        assert self.read("1", share=0.05, epoch=0.5)[0] is False
        assert self.read("1", began=NOON - seconds(60))[0] is False

    def test_a_resumed_attempt_goes_by_what_it_trained_itself(self):
        """Two hours are spent; the hour brought a quarter of an epoch, and one and a half are left."""
        assert self.read("11.9", began_epoch=0.25) == (None, None)
        assert self.read("12.4", began_epoch=0.25) == (True, 100.2)


class TestValidation:
    def read(self, *losses: float, name: str = "valid_loss") -> bool | None:
        signals = Signals()
        for step, loss in enumerate(losses, start=1):
            reading = validation_rise(signals, name, step, loss)
        return reading and reading.is_wrong

    def test_the_third_above_the_lowest_by_two_percent_raises_it(self):
        lowest = 1.0
        assert self.read(2.0, lowest, 1.007, 1.014, exp(0.0201)) is True
        assert self.read(2.0, lowest, 1.007, 1.014, exp(0.0199)) is None
        assert self.read(2.0, lowest, 1.014, exp(0.03)) is None
        assert self.read(2.0, lowest, 1.0, 1.014, 1.03) is None

    @pytest.mark.parametrize(("rise", "says"), [(0.245, True), (0.24, None)])
    def test_noise_moves_the_limit_by_what_second_differences_of_it_are(self, rise, says):
        """Their median is 0.1, of which normal noise has the square root of six: 4 * 1.4826 * 0.1 / 6**0.5 = 0.242."""
        assert self.read(exp(0.2), exp(0.05), 1.0, exp(0.05), exp(0.2), exp(rise)) is says

    def test_a_new_lowest_one_clears_it(self):
        assert self.read(2.0) is False
        assert self.read(2.0, 1.0) is False
        assert self.read(2.0, 1.0, 1.001) is None

    def test_a_hundredth_of_the_first_loss_is_the_least_rise(self):
        assert self.read(20.0, 1.0, 1.1, 1.15, 1.2 + A_BIT) is True
        assert self.read(20.0, 1.0, 1.1, 1.15, 1.2 - A_BIT) is None

    def test_the_same_step_again_or_no_number_changes_nothing(self):
        signals = Signals()
        validation_rise(signals, "valid_loss", 5, 2.0)
        for step, loss in ((5, 1.0), (4, 1.0), (6, float("nan")), (6, float("inf"))):
            assert validation_rise(signals, "valid_loss", step, loss) is None
        assert signals.validations == {"valid_loss": [(5, log(2.0))]}

    def test_the_first_and_the_newest_thirty_two_are_kept(self):
        signals = Signals()
        for step in range(50):
            validation_rise(signals, "valid_loss", step, 2.0)
        assert [step for step, _ in signals.validations["valid_loss"]] == [0, *range(18, 50)]


def test_readings_name_their_rule():
    assert curve.not_finite(Signals(), a_step(1, loss=float("nan"))).rule is AlertRule.NOT_FINITE
    assert machine.memory_leak(Signals(memory=[8] * 9, num_steps=8)).rule is AlertRule.MEMORY_LEAK
