"""Which state may follow which: one table for each state machine, and one error for a move that it does not have."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from shared.errors import Rejected

State = TypeVar("State", bound=StrEnum)


class IllegalTransition(Rejected):
    """A decision asked for a move that its table does not have: a mistake of ours, which no retry corrects."""


class Transitions(Generic[State]):
    def __init__(self, allowed: Mapping[State, frozenset[State]]) -> None:
        self._allowed = allowed
        self.terminal = frozenset(state for state, following in allowed.items() if not following)
        """The states that nothing follows."""

    def allows(self, state: State, following: State) -> bool:
        return following in self._allowed[state]

    def require(self, state: State, following: State, *, what: str) -> None:
        """Raises IllegalTransition. `what`: whose states these are, for the message."""
        if not self.allows(state, following):
            allowed = ", ".join(sorted(self._allowed[state])) or "nothing"
            raise IllegalTransition(f"{what}: {state} -> {following}, allowed: {allowed}")
