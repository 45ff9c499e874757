"""Times and costs of jobs, from attempts of which each number is known."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from statistics import median

import pytest

from schemas.node import PoolCapacityChanged
from schemas.specification import Recipe
from services.gateway.training_time import (
    AskedStage,
    AttemptTime,
    Range,
    RecordedAttempt,
    estimate,
    flops_of,
    time_of,
)

NOON = datetime(2027, 3, 10, 12, tzinfo=UTC)
POOL = PoolCapacityChanged(
    pool="gpu", capacity_type="spot", nodes=2, free=2, devices_per_node=4, price_per_hour=Decimal(36)
)
"""A device costs a quarter of a cent a second."""
TERA = 1e12


def an_attempt(**changes: object) -> AttemptTime:
    """With 10 s for a tera of operations, and 30 s for the rest."""
    fields = {
        "pool": "gpu",
        "base_sha": "ours",
        "method": "lora",
        "num_devices": 1,
        "flops": TERA,
        "training_seconds": 10.0,
        "other_seconds": 30.0,
        "estimated_seconds": None,
        "ended_at": NOON,
    }
    return AttemptTime.model_validate(fields | changes)


def a_stage(flops: Range | float = TERA, **changes: object) -> AskedStage:
    flops = flops if isinstance(flops, Range) else Range.exactly(flops)
    fields: dict[str, object] = {"base_sha": "ours", "method": "lora", "num_devices": 1}
    return AskedStage(**fields | {"flops": flops} | changes)  # type: ignore[arg-type]


def test_a_job_takes_as_long_as_one_like_it_did():
    estimated = estimate([a_stage(3 * TERA)], POOL, [an_attempt()])
    assert estimated.seconds.expected == pytest.approx(30 + 3 * 10)
    assert estimated.seconds.low == pytest.approx(60 / 1.15)
    assert estimated.seconds.high == pytest.approx(60 * 1.15)
    assert estimated.cost_usd.expected == Decimal("0.1500")
    assert (estimated.pool, estimated.attempts, estimated.alike, estimated.error) == (
        "gpu",
        1,
        "recipe",
        None,
    )


def test_devices_share_the_work_and_are_paid_for_each():
    estimated = estimate(
        [a_stage(3 * TERA, num_devices=3)], POOL, [an_attempt(num_devices=3, training_seconds=10 / 3)]
    )
    assert estimated.seconds.expected == pytest.approx(30 + 10)
    assert estimated.cost_usd.expected == Decimal("0.3000")


def test_stages_are_added_up_and_each_starts_anew():
    estimated = estimate([a_stage(), a_stage(2 * TERA, method="dpo")], POOL, [an_attempt()])
    assert estimated.seconds.expected == pytest.approx(30 + 10 + 30 + 20)
    assert estimated.alike == "base_model", "the stage that is least alike says it"


@pytest.mark.parametrize(
    ("ended", "expected", "alike", "doubt"),
    [
        ([{}, {"method": "dpo", "training_seconds": 99}], 40, "recipe", 1.15),
        ([{"num_devices": 2}, {"base_sha": "theirs", "training_seconds": 99}], 50, "base_model", 1.5),
        ([{"method": "dpo"}, {"base_sha": "theirs", "training_seconds": 99}], 40, "base_model", 1.5),
        ([{"base_sha": "theirs", "flops": TERA / 2}], 50, "pool", 3.0),
    ],
)
def test_attempts_that_have_the_most_in_common_count(ended, expected, alike, doubt):
    estimated = estimate([a_stage()], POOL, [an_attempt(**each) for each in ended])
    assert (estimated.seconds.expected, estimated.alike) == (pytest.approx(expected), alike)
    assert estimated.seconds.high == pytest.approx(expected * doubt)


def test_the_middle_of_the_newest_counts_and_its_spread_is_shown():
    ended = [an_attempt(training_seconds=seconds, other_seconds=0.0) for seconds in range(1, 21)]
    older = [an_attempt(training_seconds=1_000)] * 30
    estimated = estimate([a_stage()], POOL, ended + older)
    assert estimated.attempts == 20
    assert estimated.seconds.expected == pytest.approx(10.5)
    assert (estimated.seconds.low, estimated.seconds.high) == (pytest.approx(2.9), pytest.approx(18.1))


def test_nothing_is_said_where_no_attempt_has_ended():
    assert estimate([a_stage()], POOL, []) is None


@pytest.mark.parametrize(("count", "expected"), [(4, None), (5, 0.25)])
def test_the_error_of_earlier_estimates_is_shown(count, expected):
    ended = [an_attempt(estimated_seconds=50.0)] * count + [an_attempt()]
    assert estimate([a_stage()], POOL, ended).error == expected


def test_a_number_of_tokens_that_is_not_known_widens_it():
    estimated = estimate([a_stage(Range(TERA, 2 * TERA, 4 * TERA))], POOL, [an_attempt()])
    assert estimated.seconds.low == pytest.approx((30 + 10) / 1.15)
    assert estimated.seconds.expected == pytest.approx(30 + 20)
    assert estimated.seconds.high == pytest.approx((30 + 40) * 1.15)


@pytest.mark.parametrize(
    ("recipe", "rows", "expected"),
    [
        (Recipe(method="lora", num_epochs=2), 100, 2 * 4),
        (Recipe(method="sft", num_epochs=2), 100, 2 * 6),
        (Recipe(method="lora"), 100, 3 * 4),
        (Recipe(method="lora"), 10_000, 1 * 4),
    ],
)
def test_operations_are_those_of_all_epochs(recipe, rows, expected):
    flops = flops_of(recipe, num_parameters=10, tokens=Range(1, 2, 3), rows=rows, windows=7)
    assert flops == Range(10 * expected, 20 * expected, 30 * expected)


def recorded(**changes: object) -> AttemptTime | None:
    fields: dict[str, object] = {"steps": 5, "first_step": 1, "last_step": 5, "elapsed": 8.0, "tokens": 3_000}
    return time_of(
        RecordedAttempt.model_validate(fields | changes),
        pool="gpu",
        base_sha="ours",
        recipe=Recipe(method="lora"),
        num_parameters=1_000,
        num_devices=2,
        device_seconds=50.0,
        estimated_seconds=20.0,
        ended_at=NOON,
    )


def test_an_attempt_is_its_steps_and_the_rest():
    time = recorded()
    assert (time.training_seconds, time.other_seconds) == (10.0, 15.0)
    assert time.flops == 4 * 1_000 * 3_000
    assert time.error == pytest.approx(0.2)


@pytest.mark.parametrize("changes", [{"steps": 1}, {"elapsed": 0.0}, {"elapsed": None}, {"tokens": 0}])
def test_an_attempt_whose_steps_say_too_little_is_not_kept(changes):
    assert recorded(**changes) is None


def test_steps_that_claim_more_time_than_was_held_count_as_all_of_it():
    time = recorded(elapsed=1_000.0)
    assert (time.training_seconds, time.other_seconds) == (25.0, 0.0)


def test_after_twenty_jobs_most_estimates_are_near():
    """On a machine whose speed varies by a tenth, for jobs of a hundred sizes."""
    random, ended, errors = Random(1), [], []
    for number in range(60):
        stage = a_stage(TERA * random.uniform(0.1, 10))
        took = stage.flops.expected / TERA * 10 * random.gauss(1, 0.1)
        other = 30 * random.gauss(1, 0.1)
        estimated = estimate([stage], POOL, ended)
        if number >= 20:
            errors.append(abs(estimated.seconds.expected - took - other) / (took + other))
        ended.insert(
            0,
            an_attempt(
                flops=stage.flops.expected,
                training_seconds=took,
                other_seconds=other,
                ended_at=NOON + timedelta(hours=number),
            ),
        )
    assert median(errors) < 0.1
