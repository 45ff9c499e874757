"""What a state machine does, tried move by move, so that a test can compare it with a table of its own."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from shared.transitions import IllegalTransition


def moves_of(states: Iterable[StrEnum], start: Callable[[Any], Any], *, field: str) -> dict[str, set[str]]:
    """Where `start(state).to(target)` leads from each state; the others must raise IllegalTransition."""
    states = list(states)
    return {
        state.value: {target.value for target in states if _is_made(start(state), target, field)}
        for state in states
    }


def _is_made(thing: Any, target: StrEnum, field: str) -> bool:
    try:
        moved = thing.to(target)
    except IllegalTransition:
        return False
    assert getattr(moved, field) is target
    return True
