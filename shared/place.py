"""A partition of a topic."""

from typing import NamedTuple


class Place(NamedTuple):
    topic: str
    partition: int
