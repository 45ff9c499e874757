"""A move that the table does not have is refused with what it has; states that nothing follows are terminal."""

from enum import StrEnum

import pytest

from shared.errors import Rejected
from shared.transitions import IllegalTransition, Transitions


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    BROKEN = "broken"


@pytest.fixture
def lights() -> Transitions[Light]:
    return Transitions(
        {
            Light.RED: frozenset({Light.GREEN, Light.BROKEN}),
            Light.GREEN: frozenset({Light.RED}),
            Light.BROKEN: frozenset(),
        }
    )


def test_a_move_of_the_table_is_allowed(lights):
    assert lights.allows(Light.RED, Light.GREEN)
    lights.require(Light.RED, Light.GREEN, what="light 1")


@pytest.mark.parametrize(
    ("state", "following", "allowed"),
    [
        (Light.RED, Light.RED, "broken, green"),
        (Light.GREEN, Light.BROKEN, "red"),
        (Light.BROKEN, Light.RED, "nothing"),
    ],
)
def test_another_is_refused_with_what_is_allowed(lights, state, following, allowed):
    with pytest.raises(IllegalTransition, match=f"^light 1: {state} -> {following}, allowed: {allowed}$"):
        lights.require(state, following, what="light 1")


def test_its_message_is_parked_and_not_tried_again():
    assert issubclass(IllegalTransition, Rejected)


def test_states_that_nothing_follows_are_terminal(lights):
    assert lights.terminal == {Light.BROKEN}
