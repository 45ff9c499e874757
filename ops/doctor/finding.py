"""What an invariant has to say where it does not hold."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    where: str
    found: str
    expected: str
    invariant: str = ""
    """`I1 published`, as the list of invariants calls it."""

    @property
    def identity(self) -> tuple[str, str]:
        """The same trouble, however far it has got meanwhile."""
        return self.invariant, self.where

    @property
    def sentence(self) -> str:
        return f"{self.invariant}: {self.where}: found {self.found}, expected {self.expected}"
