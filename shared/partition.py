"""A partition of a topic."""

from typing import NamedTuple


class Partition(NamedTuple):
    topic: str
    partition: int
