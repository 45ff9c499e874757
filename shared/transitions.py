"""Tables of the allowed moves of state machines, and the error for a move that a table does not have."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from shared.errors import Rejected

State = TypeVar("State", bound=StrEnum)


class IllegalTransition(Rejected):
    """A decision asked for a move that its table does not have; this is a bug of ours, which no retry corrects."""


class Transitions(Generic[State]):
    def __init__(self, allowed: Mapping[State, frozenset[State]]) -> None:
        self._allowed = allowed
        self.terminal = frozenset(state for state, following in allowed.items() if not following)
        """States that no other state follows."""

    def allows(self, state: State, following: State) -> bool:
        return following in self._allowed[state]

    def require(self, state: State, following: State, *, what: str) -> None:
        """Raise IllegalTransition unless the move is allowed. `what` names the owner of the states in the message."""
        if not self.allows(state, following):
            allowed = ", ".join(sorted(self._allowed[state])) or "nothing"
            raise IllegalTransition(f"{what}: {state} -> {following}, allowed: {allowed}")
