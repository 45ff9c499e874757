"""Rows as typed objects and back. A store names the columns of a table once, as `Columns`."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar

from asyncpg import Record
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

T = TypeVar("T")

_adapter_of: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
_SCALARS = (str, int, float, Decimal, bytes, datetime, timedelta, type(None))


class Columns:
    """Columns of a table and the fields that they hold: `"state, stop_reason=stop.reason"`.

    A column has the name of its field where none is given; `stop.reason` is the field `reason` of the field `stop`.
    """

    def __init__(self, text: str) -> None:
        pairs = [pair.strip().partition("=") for pair in text.split(",")]
        self._fields = {column: field or column for column, _, field in pairs}

    @property
    def names(self) -> str:
        """The list of columns of an INSERT."""
        return ", ".join(self._fields)

    @property
    def selected(self) -> str:
        """The list of a SELECT whose rows `read` takes."""
        return ", ".join(f'{column} AS "{field}"' for column, field in self._fields.items())

    @property
    def excluded(self) -> str:
        """The assignments of an ON CONFLICT … DO UPDATE SET."""
        return ", ".join(f"{column} = excluded.{column}" for column in self._fields)

    def parameters(self, first: int = 1) -> str:
        """Return the placeholders of a VALUES or ROW, from `$first` on."""
        return ", ".join(f"${number}" for number in range(first, first + len(self._fields)))

    def values(self, thing: object) -> list[Any]:
        """Return the arguments to bind: scalars as they are, anything else as jsonb and arrays take it."""
        return [_value(thing, field) for field in self._fields.values()]


def read(kind: type[T], row: Mapping[str, Any] | Record, **more: Any) -> T:
    """Return the object that a row holds. `more` has the fields that no column has. Raises ValidationError."""
    fields = dict(row)
    if "." in "".join(fields):
        fields = _nested(fields)
    thing: T = _adapter_of(kind).validate_python(fields | more if more else fields)
    return thing


def _nested(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with those of one field, as `stop.reason`, put together; null where all of them are."""
    fields: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in columns.items():
        outer, _, inner = name.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            fields[name] = value
    for outer, inners in nested.items():
        fields[outer] = None if all(value is None for value in inners.values()) else inners
    return fields


def _value(thing: Any, path: str) -> Any:
    for name in path.split("."):
        thing = None if thing is None else getattr(thing, name)
    return thing if isinstance(thing, _SCALARS) else to_jsonable_python(thing)
