"""What divides the gradients of a step, of each method."""

import pytest

from schemas.artifacts import CHOSEN, REJECTED
from schemas.specification import Method, Recipe
from services.trainer_agent.training.methods import OBJECTIVES
from tests.unit.trainer_agent.training.test_plan import an_example

pytestmark = pytest.mark.torch


def test_every_method_has_an_objective():
    assert OBJECTIVES.keys() == set(Method)


@pytest.mark.parametrize("method", sorted(set(Method) - {Method.DPO}))
def test_a_term_is_a_token_that_counts_and_has_one_before_it(method):
    first, second = an_example(0, 4, mask=[1, 0, 1, 1]), an_example(1, 3)
    assert OBJECTIVES[method](Recipe(method=method)).num_terms(((first,), (second, first))) == 2 + 2 + 2


def test_a_term_of_preferences_is_a_pair():
    pair = tuple(an_example(side, 4, side=side) for side in (CHOSEN, REJECTED))
    assert OBJECTIVES[Method.DPO](Recipe(method=Method.DPO)).num_terms((pair, pair + pair)) == 3
