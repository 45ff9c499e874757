"""What is wrong, where, and between which statements it became so."""

from dataclasses import asdict, dataclass
from typing import Any

from shared.partition import Partition


@dataclass(frozen=True)
class Finding:
    what: str
    """`changed`, `truncated`, `deleted`, `gone`, `unread` of a partition; `statement` or `late` of the statements."""
    detail: str
    partition: Partition | None = None
    offsets: range | None = None
    between: tuple[int, int] | None = None
    """Numbers of the last statement before it and of the first that covers it."""

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        where = f"{self.partition.topic}/{self.partition.partition}" if self.partition else ""
        offsets = f"{self.offsets.start}–{self.offsets.stop - 1}" if self.offsets else ""
        between = f"{self.between[0]}–{self.between[1]}" if self.between else ""
        return self.what, where, offsets, between, self.detail

    @property
    def value(self) -> dict[str, Any]:
        fields = asdict(self)
        partition, offsets, between = fields.pop("partition"), fields.pop("offsets"), fields.pop("between")
        return fields | {
            "topic": partition and partition[0],
            "partition": partition and partition[1],
            "first_offset": offsets.start if offsets else None,
            "next_offset": offsets.stop if offsets else None,
            "after_statement": between and between[0],
            "by_statement": between and between[1],
        }
