"""What divides the gradients of a step, of each method."""

import pytest

from schemas.specification import AVAILABLE_METHODS
from services.trainer_agent.training.methods import OBJECTIVES
from tests.unit.trainer_agent.training.test_plan import an_example

pytestmark = pytest.mark.torch


def test_every_method_that_is_available_has_an_objective():
    assert OBJECTIVES.keys() == AVAILABLE_METHODS


@pytest.mark.parametrize("method", sorted(AVAILABLE_METHODS))
def test_a_term_is_a_token_that_counts_and_has_one_before_it(method):
    first, second = an_example(0, 4, mask=[1, 0, 1, 1]), an_example(1, 3)
    assert OBJECTIVES[method].num_terms(((first,), (second, first))) == 2 + 2 + 2
