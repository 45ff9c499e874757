"""Which rows differ, and in what. Times that were read from different clocks of one moment count as equal."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

TOLERANCE = timedelta(seconds=1)
"""The inbox notes when a message was applied a moment after its handler has read the clock."""


@dataclass(frozen=True)
class Table:
    name: str
    key: tuple[str, ...]
    """Columns of the primary key; empty where Postgres numbers the rows."""
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Difference:
    what: str
    """A table, `timer`, `event` or `message`."""
    key: str
    field: str
    live: str
    rebuilt: str

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        return self.what, self.key, self.field, self.live, self.rebuilt

    @property
    def value(self) -> dict[str, str]:
        return asdict(self)


def compare(live: Sequence[Table], rebuilt: Sequence[Table]) -> Iterator[Difference]:
    others = {table.name: table for table in rebuilt}
    for table in live:
        other = others[table.name]
        yield from _compare_keyed(table, other) if table.key else _compare_bags(table, other)


def _compare_keyed(live: Table, rebuilt: Table) -> Iterator[Difference]:
    ours, theirs = _by_key(live), _by_key(rebuilt)
    for key in sorted(ours.keys() | theirs.keys()):
        if key not in theirs:
            yield Difference(live.name, key, "", "there", "missing")
        elif key not in ours:
            yield Difference(live.name, key, "", "missing", "there")
        else:
            for column, value in ours[key].items():
                if not same(value, theirs[key][column]):
                    yield Difference(live.name, key, column, text(value), text(theirs[key][column]))


def _by_key(table: Table) -> dict[str, Mapping[str, Any]]:
    return {" ".join(text(row[column]) for column in table.key): row for row in table.rows}


def _compare_bags(live: Table, rebuilt: Table) -> Iterator[Difference]:
    """Rows without a key of their own: as many of each."""
    rest = list(rebuilt.rows)
    for row in live.rows:
        twin = next((each for each in rest if same(dict(row), dict(each))), None)
        if twin is None:
            yield Difference(live.name, text(dict(row)), "", "there", "missing")
        else:
            rest.remove(twin)
    for row in rest:
        yield Difference(live.name, text(dict(row)), "", "missing", "there")


def same(one: Any, other: Any) -> bool:
    match one, other:
        case datetime(), datetime():
            return abs(one - other) <= TOLERANCE
        case str(), str():
            return one == other or _same_time(one, other)
        case dict(), dict():
            return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
        case list(), list():
            return _same_items(one, other)
    return bool(one == other)


def _same_items(one: list[Any], other: list[Any]) -> bool:
    """In any order: sets are stored as lists."""
    if len(one) != len(other):
        return False
    if all(map(same, one, other)):
        return True
    rest = list(other)
    for item in one:
        twin = next((each for each in rest if same(item, each)), None)
        if twin is None:
            return False
        rest.remove(twin)
    return True


def _same_time(one: str, other: str) -> bool:
    try:
        return abs(datetime.fromisoformat(one) - datetime.fromisoformat(other)) <= TOLERANCE
    except (ValueError, TypeError):
        return False


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
