"""Rows become the objects that were written, whatever their fields are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Literal, NamedTuple

import pytest
from pydantic import ValidationError

from schemas.base import BundleRef
from shared.postgres.rows import Columns, read

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class State(StrEnum):
    OPEN = "open"


class Place(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True)
class Stop:
    reason: Literal["user", "failure"]
    deadline: datetime | None


@dataclass(frozen=True)
class Thing:
    name: str
    state: State
    price: Decimal
    since: datetime
    lasts: timedelta
    link: bytes
    place: Place
    stop: Stop | None = None
    bundle: BundleRef | None = None
    named: frozenset[BundleRef] = frozenset()
    nodes: tuple[str, ...] | None = None
    counts: Mapping[State, int] | None = None
    held: int = 0

    @property
    def title(self) -> str:
        return f"{self.name}!"


COLUMNS = Columns(
    "name, state, price, since, lasts, link, topic=place.topic, partition=place.partition,"
    " stop_reason=stop.reason, stop_deadline=stop.deadline, last_bundle=bundle, named, nodes, counts"
)
BUNDLE = BundleRef(attempt=1, step=2, manifest_sha256="a" * 64)
THING = Thing(
    "x",
    State.OPEN,
    Decimal("1.50"),
    NOON,
    timedelta(seconds=1.5),
    b"\x00\xff",
    Place("jobs", 3),
    Stop("user", None),
    BUNDLE,
    frozenset({BUNDLE}),
    ("n0", "n1"),
    {State.OPEN: 2},
)


def row_of(thing, columns=COLUMNS):
    """As Postgres gives it back."""
    fields = [field.partition(" AS ")[2].strip('"') for field in columns.selected.split(", ")]
    return dict(zip(fields, columns.values(thing), strict=True))


@pytest.mark.parametrize(
    "thing",
    [
        THING,
        replace(THING, stop=None, bundle=None, named=frozenset(), nodes=None, counts=None),
        replace(THING, stop=Stop("failure", NOON), nodes=()),
    ],
    ids=["whole", "empty", "stopped"],
)
def test_a_row_becomes_what_was_written(thing):
    assert read(Thing, row_of(thing)) == thing


def test_scalars_are_bound_as_they_are_and_the_rest_as_json_has_it():
    values = COLUMNS.values(THING)
    assert values[:8] == [
        "x",
        State.OPEN,
        Decimal("1.50"),
        NOON,
        timedelta(seconds=1.5),
        b"\x00\xff",
        "jobs",
        3,
    ]
    document = {"attempt": 1, "step": 2, "manifest_sha256": "a" * 64, "job_id": None}
    assert values[8:] == ["user", None, document, [document], ["n0", "n1"], {"open": 2}]


def test_columns_are_named_once():
    columns = Columns("id, price, stop_reason=stop.reason")
    assert columns.names == "id, price, stop_reason"
    assert columns.selected == 'id AS "id", price AS "price", stop_reason AS "stop.reason"'
    assert columns.excluded == "id = excluded.id, price = excluded.price, stop_reason = excluded.stop_reason"
    assert (columns.parameters(), columns.parameters(4)) == ("$1, $2, $3", "$4, $5, $6")


def test_a_property_may_be_written():
    assert Columns("name, title").values(THING) == ["x", "x!"]


def test_what_no_column_has_is_given():
    assert read(Thing, row_of(THING), held=3) == replace(THING, held=3)


def test_what_the_object_does_not_have_is_left_out():
    assert read(Thing, row_of(THING) | {"revision": 7}) == THING


@pytest.mark.parametrize("changes", [{"state": "closed"}, {"place.partition": "three"}, {"price": None}])
def test_a_row_that_is_no_such_object_is_refused(changes):
    with pytest.raises(ValidationError):
        read(Thing, row_of(THING) | changes)
