"""A record of a topic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """A record of the log as it was received."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes | None
    timestamp_ms: int = -1
    """Time on the producer's clock in milliseconds since 1970; -1 if it was not kept."""

    @property
    def location(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"
