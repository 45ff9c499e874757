"""Which rows of a tenant a list shows, as its statement takes it. Pure."""

import re
from collections.abc import Sequence

from schemas.base import Value


class ListFilter(Value):
    """Without any field all rows."""

    states: tuple[str, ...] = ()
    """Any of them; empty for all."""
    words: tuple[str, ...] = ()
    """Each is somewhere in the texts of a row that are searched."""

    @property
    def values(self) -> tuple[list[str] | None, list[str] | None]:
        """States for `= ANY` and patterns for `ILIKE ALL`; None for what is not asked."""
        return [*self.states] or None, patterns(self.words)


EVERYTHING = ListFilter()


def patterns(words: Sequence[str]) -> list[str] | None:
    """Return patterns for ILIKE of what has each word somewhere; None where there is no word."""
    return [f"%{escaped(word)}%" for word in words] or None


def escaped(text: str) -> str:
    """Take the meaning from characters that LIKE gives one."""
    return re.sub(r"([\\%_])", r"\\\1", text)
