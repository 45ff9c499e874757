import pytest

from schemas.specification import Recipe
from services.trainer_agent.training.schedule import Schedule, schedule_of

LENGTHS = {"peak": 1.0, "num_steps": 110, "warmup_steps": 10}


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("cosine", {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 60: 0.5, 109: 0.000247, 110: 0.0}),
        ("linear", {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 35: 0.75, 60: 0.5, 109: 0.01, 110: 0.0}),
        ("constant", {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 60: 1.0, 109: 1.0}),
        ("wsd", {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 90: 1.0, 91: 0.95, 100: 0.5, 109: 0.05, 110: 0.0}),
    ],
)
def test_the_rate_rises_linearly_and_follows_its_schedule(name, rates):
    schedule = Schedule(name, **LENGTHS, decay_steps=20)
    assert {step: schedule.rate(step) for step in rates} == pytest.approx(rates, abs=1e-6)


def test_the_multiplier_scales_the_peak():
    recipe = Recipe(learning_rate=2e-4, learning_rate_multiplier=0.5, warmup_ratio=0.03)
    assert schedule_of(recipe, 101) == Schedule("cosine", peak=1e-4, num_steps=101, warmup_steps=4)


def test_no_warmup_starts_at_the_peak():
    recipe = Recipe(learning_rate=2e-4, warmup_ratio=0.0)
    assert schedule_of(recipe, 10).rate(0) == 2e-4


@pytest.mark.parametrize(("ratio", "steps"), [(None, 11), (0.5, 51), (0.97, 97)])
def test_the_decay_of_wsd_is_a_share_of_all_steps_and_begins_after_the_warmup(ratio, steps):
    recipe = Recipe(learning_rate=2e-4, schedule="wsd", warmup_ratio=0.03, decay_ratio=ratio)
    assert schedule_of(recipe, 101).decay_steps == steps
