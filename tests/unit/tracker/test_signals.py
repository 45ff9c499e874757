"""What is kept of an attempt while it trains, and the statistics that its rules draw from it."""

from datetime import UTC, datetime, timedelta
from math import exp, log, sqrt

import pytest

from schemas.training import StepMetrics
from services.tracker.decide import robust
from services.tracker.decide.signals import Signals, add, pass_to
from tests.unit.tracker.test_alerts import a_step

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class TestStatistics:
    @pytest.mark.parametrize(
        ("values", "middle"),
        [([7.0], 7.0), ([9.0, 1.0], 5.0), ([9.0, 1.0, 4.0], 4.0), ([1.0, 9.0, 4.0, 2.0], 3.0)],
    )
    def test_a_median(self, values, middle):
        assert robust.median(values) == middle

    @pytest.mark.parametrize(
        ("values", "middle"),
        [([1.0, 2.0, 99.0], 34.0), ([-90.0, 2.0, 4.0, 99.0], 3.0), ([9, 1, 5, 4, 6, 7, 2, 3], 4.5)],
    )
    def test_a_mean_of_the_middle_half(self, values, middle):
        assert robust.midmean(values) == middle

    def test_a_spread_is_that_of_deviations_from_the_median(self):
        assert robust.spread([10.0, 11.0, 13.0, 16.0, 110.0]) == pytest.approx(3 * 1.4826)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([0.0, 3.0, 1.0, 4.0, 2.0], max(2.5 * 1.4826 / sqrt(2), 1.4826)),
            ([0.0, 0.0, 6.0, 6.0], 3.0 * 1.4826),
        ],
        ids=["by neighbours", "by deviations"],
    )
    def test_noise(self, values, expected):
        assert robust.noise(values) == pytest.approx(expected)

    def test_the_fall_of_a_line_and_its_error(self):
        assert robust.fall([6.0, 5.0, 4.0, 3.0]) == pytest.approx((4.0, 0.0))
        # The line through 1, 0, 2: slope 1/2; residuals 1/2, -1, 1/2, one degree of freedom.
        assert robust.fall([1.0, 0.0, 2.0]) == pytest.approx((-1.5, 3 * sqrt(1.5 / 2)))
        # Through 0, 2, 0, 2: slope 2/5; the squares of the residuals add up to 3.2, two degrees of freedom.
        assert robust.fall([0.0, 2.0, 0.0, 2.0]) == pytest.approx((-1.6, 4 * sqrt(3.2 / 2 / 5)))


class TestWhatIsKept:
    def steps(self, count: int, **changes: object) -> Signals:
        signals = Signals()
        for number in range(1, count + 1):
            step: StepMetrics = a_step(number, **changes)
            pass_to(signals, step, now=step.time + seconds(1))
            add(signals, step)
        return signals

    def test_the_first_step_is_remembered_and_the_newest(self):
        signals = self.steps(3)
        assert (signals.step, signals.num_steps) == (3, 3)
        assert (signals.began, signals.time) == (a_step(1).time, a_step(3).time)
        assert signals.heard_at == a_step(3).time + seconds(1)
        assert (signals.began_epoch, signals.epoch) == (0.001, 0.003)
        assert (signals.gaps, signals.longest_gap) == ([2.0, 2.0], 2.0)

    def test_clocks_that_go_back_make_no_gap(self):
        signals = Signals(time=NOON)
        pass_to(signals, a_step(1, time=NOON - seconds(5)), now=NOON)
        assert (signals.gaps, signals.longest_gap) == ([0.0], 0.0)

    def test_windows_are_bounded(self):
        signals = self.steps(400)
        kept = (signals.losses, signals.gradients, signals.gaps, signals.speeds, signals.uses, signals.memory)
        assert [len(each) for each in kept] == [64, 64, 64, 16, 16, 32]

    def test_the_first_level_is_the_median_of_the_warm_up(self):
        assert self.steps(31).start is None
        assert self.steps(32, loss=3.0).start == log(3.0)
        assert self.steps(40).start == self.steps(32).start

    def test_memory_has_an_entry_for_each_eighth_step_after_the_warm_up(self):
        assert [len(self.steps(count).memory) for count in (32, 39, 40, 47, 48)] == [0, 0, 1, 1, 2]

    def test_the_usual_speed_is_the_highest_of_whole_levels(self):
        assert [self.steps(count).usual_speed for count in (31, 32)] == [0.0, 2000.0]
        signals = self.steps(32)
        for number in range(33, 49):
            slow = a_step(number, tokens_per_second=100.0)
            pass_to(signals, slow, now=slow.time)
            add(signals, slow)
        assert signals.usual_speed == 2000.0

    def test_what_is_not_measured_is_kept_as_such(self):
        assert self.steps(1, device_utilization=None, mfu=None).uses == [-1.0]
        assert self.steps(1, device_utilization=0.7).uses == [0.7]

    def test_the_highest_rate_is_kept_beside_the_newest(self):
        signals = self.steps(2)
        add(signals, a_step(3, learning_rate=1e-5))
        assert (signals.peak_rate, signals.rate) == (2e-4, 1e-5)

    def test_neighbouring_levels_are_joined_when_there_are_sixty_four(self):
        signals = Signals(losses=[1.0], levels=[float(place) for place in range(63)], block=[1.0] * 31)
        add(signals, a_step(1, loss=exp(63.0)))
        assert len(signals.levels) == 32
        assert signals.levels[:2] == [0.5, 2.5]
        assert (signals.block, signals.block_steps) == ([], 64)

    def test_a_rule_sees_no_rise_below_a_tenth_of_the_first_level_or_a_quarter(self):
        rises = [Signals(start=start).smallest_rise for start in (None, 0.0, log(2.0), log(9.0))]
        assert rises == pytest.approx([0.1, 0.1, 0.2, 0.25])
