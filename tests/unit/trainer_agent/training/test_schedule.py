import pytest

from schemas.specification import Recipe
from services.trainer_agent.training.schedule import Schedule, schedule_of

SCHEDULE = Schedule(peak=1.0, num_steps=110, warmup_steps=10)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (60, 0.5), (109, 0.000247)]
)
def test_the_rate_rises_linearly_and_falls_along_half_a_cosine(step, rate):
    assert SCHEDULE.rate(step) == pytest.approx(rate, abs=1e-6)


def test_the_rate_after_the_last_step_is_zero():
    assert SCHEDULE.rate(110) == pytest.approx(0.0)


def test_the_multiplier_scales_the_peak():
    recipe = Recipe(learning_rate=2e-4, learning_rate_multiplier=0.5, warmup_ratio=0.03)
    assert schedule_of(recipe, 101) == Schedule(peak=1e-4, num_steps=101, warmup_steps=4)


def test_no_warmup_starts_at_the_peak():
    recipe = Recipe(learning_rate=2e-4, warmup_ratio=0.0)
    assert schedule_of(recipe, 10).rate(0) == 2e-4
