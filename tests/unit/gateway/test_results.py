"""The table of a job's steps as lines of a CSV file."""

from schemas.training import BundleMetrics, StepMetrics
from services.gateway.model import JsonObject, MeasuredStep
from services.gateway.results import COLUMNS, lines


def a_step(
    number: int, measured: BundleMetrics | None = None, validation: BundleMetrics | None = None
) -> MeasuredStep:
    metrics: JsonObject = {"loss": 2.0 / number, "learning_rate": 0.1, "grad_norm": 1.5, "num_tokens": 96}
    metrics |= {"tokens_per_second": 10.0, "epoch": 0.5, "time": "2027-03-01T12:00:00Z", "memory_bytes": 1}
    return MeasuredStep(step=number, attempt=2, metrics=metrics, measured=measured, validation=validation)


def test_begin_with_openais_columns():
    assert COLUMNS[:5] == ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")


def test_have_a_column_for_every_number_of_a_step():
    assert {"loss", *COLUMNS} >= StepMetrics.model_fields.keys()


def test_have_a_steps_numbers_and_its_bundles_validation():
    step = a_step(2, BundleMetrics(train_loss=9.0, valid_loss=2.5, full_valid_loss=2.4))
    step.metrics["reward_margin"] = 0.5
    [line] = [dict(zip(COLUMNS, line, strict=True)) for line in lines([step])]
    assert line == {
        "step": 2,
        "train_loss": 1.0,
        "train_accuracy": None,
        "valid_loss": 2.5,
        "valid_mean_token_accuracy": None,
        "full_valid_loss": 2.4,
        "learning_rate": 0.1,
        "grad_norm": 1.5,
        "num_tokens": 96,
        "tokens_per_second": 10.0,
        "epoch": 0.5,
        "attempt": 2,
        "time": "2027-03-01T12:00:00Z",
        "chosen_reward": None,
        "rejected_reward": None,
        "reward_margin": 0.5,
        "reward_accuracy": None,
        "memory_bytes": 1,
        "mfu": None,
        "device_utilization": None,
        "router_loss": None,
    }


def test_have_what_was_measured_at_a_step_that_the_recipe_names():
    validation = BundleMetrics(valid_loss=2.5, full_valid_loss=2.25)
    for measured in (None, BundleMetrics(train_loss=1.0)):
        [line] = [dict(zip(COLUMNS, line, strict=True)) for line in lines([a_step(2, measured, validation)])]
        assert (line["valid_loss"], line["full_valid_loss"]) == (2.5, 2.25)


def test_leave_empty_what_no_bundle_measured():
    [line] = [dict(zip(COLUMNS, line, strict=True)) for line in lines([a_step(2)])]
    assert (line["valid_loss"], line["full_valid_loss"]) == (None, None)
