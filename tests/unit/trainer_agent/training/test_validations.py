"""What a series of validation losses means for a run."""

import math

import pytest

from schemas.specification import EarlyStoppingSpec
from services.trainer_agent.training.validations import NO_VALIDATIONS

PATIENT = EarlyStoppingSpec(patience=2)
BY_MORE = EarlyStoppingSpec(patience=2, min_delta=0.1)


def after(losses, early_stopping=None):
    """Validations at steps 10, 20, ..., of which none follows the one that ends the run."""
    validations = NO_VALIDATIONS
    for number, loss in enumerate(losses, start=1):
        assert not validations.ends(early_stopping)
        validations = validations.after(10 * number, loss, early_stopping)
    return validations


@pytest.mark.parametrize(
    ("losses", "step", "loss"),
    [
        ([], None, None),
        ([3.0, 2.0, 1.0], 30, 1.0),
        ([3.0, 1.0, 2.0], 20, 1.0),
        ([3.0, 1.0, 1.0], 20, 1.0),
        ([math.nan, 2.0, math.inf], 20, 2.0),
        ([math.nan, -math.inf], None, None),
    ],
)
def test_the_best_is_the_first_of_the_lowest_finite_losses(losses, step, loss):
    validations = after(losses)
    assert (validations.best_step, validations.best_loss) == (step, loss)
    assert not validations.ends(None)


@pytest.mark.parametrize(
    ("losses", "early_stopping", "ends"),
    [
        ([3.0, 3.0], PATIENT, False),
        ([3.0, 3.0, 3.0], PATIENT, True),
        ([3.0, 3.5, 2.9, 3.0], PATIENT, False),
        ([3.0, 2.95, 2.85], BY_MORE, False),
        ([3.0, 2.95, 2.9], BY_MORE, True),
        # Not lower than at the last improvement, though lower than the one before.
        ([3.0, 2.5, 2.45, 2.41], BY_MORE, True),
        ([math.nan, math.nan], PATIENT, True),
        ([math.nan, 3.0, math.nan], PATIENT, False),
        ([1.0, 1.0, 1.0, 1.0], EarlyStoppingSpec(patience=4), False),
    ],
)
def test_training_ends_after_so_many_validations_without_an_improvement(losses, early_stopping, ends):
    assert after(losses, early_stopping).ends(early_stopping) is ends


def test_a_gain_below_min_delta_is_the_best_all_the_same():
    validations = after([3.0, 2.95, 2.92], BY_MORE)
    assert (validations.best_step, validations.improved_loss) == (30, 3.0)


def test_one_is_due_at_every_such_step_and_after_the_last_but_only_once():
    due = [step for step in range(26) if NO_VALIDATIONS.is_due(step, every=10, num_steps=25)]
    assert due == [10, 20, 25]
    assert not after([1.0]).is_due(10, every=10, num_steps=25)


def test_the_reason_has_step_number_and_loss_and_is_empty_where_all_steps_were_done():
    validations = after([3.0, 2.95, 2.92], BY_MORE)
    assert validations.reason(BY_MORE, num_steps=400) == (
        "ended early at step 30 of 400: in 2 validations in a row the loss was not below 3.0000 by more than 0.1"
    )
    assert validations.reason(BY_MORE, num_steps=30) == ""
    assert after([3.0, 2.0]).reason(None, num_steps=400) == ""
    assert "not a finite number" in after([math.nan] * 2, PATIENT).reason(PATIENT, num_steps=40)


def test_what_is_remembered_survives_a_bundle():
    validations = after([3.0, math.inf, 2.95], EarlyStoppingSpec(patience=5, min_delta=0.1))
    assert type(validations).model_validate_json(validations.model_dump_json()) == validations
