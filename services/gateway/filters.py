"""Which rows of a tenant a list shows, and in which order, as its statement takes it. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Order:
    """What rows of a table are sorted by, those with the greatest value first; equal ones by their key."""

    value: str
    """An expression of SQL that is never NULL."""
    is_rising: bool = False
    """Whether the least value comes first."""

    def after(self, parameter: str, table: str, key: str) -> str:
        """Return the condition for rows that come after the tenant's row with this key; for all where it is NULL."""
        sign = ">" if self.is_rising else "<"
        if self.value == key:
            return f"({parameter}::text IS NULL OR {key} {sign} {parameter})"
        return f"""({parameter}::text IS NULL OR ({self.value}, {key}) {sign}
            (SELECT {self.value}, {key} FROM {table} WHERE {key} = {parameter} AND tenant = $1))"""

    def by(self, key: str) -> str:
        way = "ASC" if self.is_rising else "DESC"
        values = dict.fromkeys((self.value, key))
        return f"ORDER BY {', '.join(f'{value} {way}' for value in values)}"


def patterns(words: Sequence[str]) -> list[str] | None:
    """Return patterns for ILIKE of what has each word somewhere; None where there is no word."""
    return [f"%{escaped(word)}%" for word in words] or None


def escaped(text: str) -> str:
    """Take the meaning from characters that LIKE gives one."""
    return re.sub(r"([\\%_])", r"\\\1", text)
