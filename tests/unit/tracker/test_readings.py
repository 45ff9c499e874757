"""What is raised shows its number, the limit and both in words."""

from decimal import Decimal
from math import exp
from statistics import median

import pytest

from schemas.alert import AlertRule
from services.tracker.decide import curve, machine
from services.tracker.decide.looks import Spending, cost_above_plan
from services.tracker.decide.reading import Reading
from services.tracker.decide.signals import Signals
from services.tracker.decide.validation import validation_rise
from tests.unit.tracker.test_alerts import a_step
from tests.unit.tracker.test_limits import FLAT, GIB, NOON, seconds


def readings() -> dict[AlertRule, Reading | None]:
    """Of each rule one that raises it."""
    three = [True] * 3
    step = a_step(1, time=NOON, loss=3.0, grad_norm=2000.0, tokens_per_second=100.0)
    warm = {"losses": [*FLAT], "gradients": [*FLAT]}
    high = Signals(losses=[0.0] * 48 + [1.0] * 16, num_steps=65, best=0.0, start=0.0, above=11)
    slow = Signals(
        losses=[*FLAT],
        speeds=[100.0] * 15 + [90.0],
        uses=[0.9] * 16,
        usual_speed=1000.0,
        slow_steps=7,
        slow_since=NOON - seconds(30),
    )
    known = Signals(
        validations={"valid_loss": [(1, 1.0), (2, 0.0), *((step, step / 1000) for step in range(3, 9))]}
    )
    return {
        AlertRule.LOSS_SPIKE: curve.loss_spike(Signals(spikes=[*three], **warm), step),
        AlertRule.GRADIENT_EXPLOSION: curve.gradient_explosion(Signals(explosions=[*three], **warm), step),
        AlertRule.NOT_FINITE: curve.not_finite(Signals(overflows=[*three], **warm), step),
        AlertRule.DIVERGENCE: curve.divergence(high),
        AlertRule.PLATEAU: curve.plateau(
            Signals(levels=[1.0] * 8 + [1.0 - place / 1000 for place in range(8)], start=1.0, rate=1.0),
            share_done=None,
        ),
        AlertRule.MEMORY_LEAK: machine.memory_leak(
            Signals(memory=[GIB + GIB * block // 10 for block in range(9)], num_steps=80)
        ),
        AlertRule.LOW_UTILIZATION: machine.low_utilization(slow, step),
        AlertRule.VALIDATION_RISE: validation_rise(known, "valid_loss", 9, exp(0.1)),
        AlertRule.COST_ABOVE_PLAN: cost("20"),
    }


def cost(price_per_hour: str) -> Reading | None:
    """An hour of the attempt was trained, a quarter of all: three more follow."""
    return cost_above_plan(
        Signals(began=NOON - seconds(3600), time=NOON, num_steps=20, epoch=0.5),
        Spending(Decimal(10), Decimal(price_per_hour), NOON - seconds(3600)),
        expected=Decimal(80),
        share_done=0.25,
        now=NOON,
    )


NUMBERS = {
    AlertRule.LOSS_SPIKE: (3.0, 1.3, "loss 3, usually 1 in the 32 steps before"),
    AlertRule.GRADIENT_EXPLOSION: (2000.0, 8.0, "gradient norm 2000, usually 1"),
    AlertRule.NOT_FINITE: (2000.0, None, "gradient norm 2000, 2e+03 times its usual size"),
    AlertRule.DIVERGENCE: (exp(1.0), 1.2, "loss 2.718 over 16 steps, at its best 1"),
    AlertRule.PLATEAU: (0.008, 0.02, "loss 2.699 fell by 0.80% over 256 steps, to within 0.00%"),
    AlertRule.MEMORY_LEAK: (
        1.8 * GIB,
        1.02 * GIB,
        "peak of memory grew from 1.00 GiB to 1.80 GiB without a pause",
    ),
    AlertRule.LOW_UTILIZATION: (
        100.0,
        500.0,
        "100 tokens per second, usually 1,000; devices in use 90% of the time",
    ),
    AlertRule.VALIDATION_RISE: (exp(0.1), exp(0.02), "validation loss 1.105, at its lowest 1"),
    AlertRule.COST_ABOVE_PLAN: (
        90.0,
        80.0,
        "$90.00 at this speed, of which $30.00 are spent; expected $80.00",
    ),
}


UNITS = {
    AlertRule.LOSS_SPIKE: "loss",
    AlertRule.GRADIENT_EXPLOSION: "gradient_norm",
    AlertRule.NOT_FINITE: "gradient_norm",
    AlertRule.DIVERGENCE: "loss",
    AlertRule.PLATEAU: "fraction",
    AlertRule.MEMORY_LEAK: "bytes",
    AlertRule.LOW_UTILIZATION: "tokens_per_second",
    AlertRule.VALIDATION_RISE: "loss",
    AlertRule.COST_ABOVE_PLAN: "us_dollars",
}


def test_what_is_raised_has_the_unit_of_its_numbers():
    assert {rule: reading.unit for rule, reading in readings().items() if reading} == UNITS


def test_idle_devices_are_measured_by_their_use_where_the_speed_is_as_usual():
    idle = Signals(
        losses=[*FLAT],
        speeds=[1000.0] * 16,
        uses=[0.2] * 16,
        usual_speed=1000.0,
        slow_steps=7,
        slow_since=NOON - seconds(30),
    )
    step = a_step(1, time=NOON, tokens_per_second=1000.0, device_utilization=0.2)
    reading = machine.low_utilization(idle, step)
    assert reading is not None
    assert (reading.value, reading.limit, reading.unit) == (0.2, 0.3, "fraction")


def test_the_limit_of_a_spike_is_the_loss_from_which_on_one_is_counted():
    noisy = [0.1 * (place % 2) for place in range(64)]
    wide = {"losses": noisy, "start": 1.0}
    usual = median(noisy[-32:])
    raised = [
        curve.loss_spike(Signals(spikes=[True] * 3, **wide), a_step(1, loss=exp(usual) * factor))
        for factor in (3.0, 1.31)
    ]
    assert [reading is not None and reading.is_wrong for reading in raised] == [True, True]
    limit = raised[0].limit
    for factor, is_marked in ((0.999, False), (1.001, True)):
        signals = Signals(**wide)
        curve.loss_spike(signals, a_step(1, loss=limit * factor))
        assert signals.spikes == [is_marked]


def test_what_is_raised_shows_the_number_its_limit_and_both_in_words():
    shown = readings()
    assert all(reading is not None and reading.is_wrong for reading in shown.values()), shown
    assert {rule: reading.rule for rule, reading in shown.items()} == {rule: rule for rule in shown}
    for rule, (value, limit, message) in NUMBERS.items():
        reading = shown[rule]
        expected = None if limit is None else pytest.approx(limit, rel=1e-6)
        assert (reading.value, reading.limit, reading.message) == (
            pytest.approx(value, rel=1e-6),
            expected,
            message,
        )


def use_of_cpu(speed: float) -> Reading | None:
    """A CPU is shared: how much it is used says nothing."""
    signals = Signals(
        losses=[*FLAT],
        speeds=[speed] * 16,
        uses=[-1.0] * 16,
        usual_speed=1000.0,
        slow_steps=7,
        slow_since=NOON - seconds(30),
    )
    return machine.low_utilization(signals, a_step(1, time=NOON, tokens_per_second=speed, mfu=None))


def test_what_has_passed_says_what_it_is_now():
    falling = [1.0] * 8 + [1.0 - place / 100 for place in range(8)]
    assert [
        curve.plateau(Signals(levels=falling, start=1.0, rate=1.0), share_done=None),
        machine.memory_leak(Signals(memory=[GIB] * 9, num_steps=80)),
        use_of_cpu(900.0),
        cost("1"),
    ] == [
        Reading(AlertRule.PLATEAU, False, "loss 2.535 fell by 8.00% over 256 steps, to within 0.00%"),
        Reading(AlertRule.MEMORY_LEAK, False, "peak of memory stays at 1.00 GiB"),
        Reading(AlertRule.LOW_UTILIZATION, False, "900 tokens per second, usually 1,000"),
        Reading(
            AlertRule.COST_ABOVE_PLAN,
            False,
            "$14.00 at this speed, of which $11.00 are spent; expected $80.00",
        ),
    ]


def test_of_a_cpu_that_is_slow_no_use_is_shown():
    slow = use_of_cpu(100.0)
    assert (slow.is_wrong, slow.message) == (True, "100 tokens per second, usually 1,000")
