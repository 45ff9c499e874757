"""A partition, an auditor that reads it, and an intruder with every right but the signing key."""

import hashlib
import random
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ops.audit.findings import Finding
from ops.audit.recount import Recount
from ops.audit.statements import Walk
from schemas.audit import Statement
from services.auditor import decide
from shared.audit.chain import Chain, begin, extend
from shared.audit.signing import SigningKey
from shared.partition import Partition
from shared.record import Record
from tests.unit.auditor.records import START_MS, TOPIC_PARTITION, records

KEY = SigningKey.make()
FULL_EVERY = 4
QUIET = extend(
    begin(Partition("node.events", 0), at=0),
    records(random.Random(1), 3, topic_partition=Partition("node.events", 0)),
)
RETENTION = timedelta(days=30)


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


SOON = at(START_MS) + timedelta(days=1)
LATE = at(START_MS) + timedelta(days=60)


@dataclass
class World:
    """A log from `start` on of `log`, with `documents` about it."""

    log: list[Record]
    documents: list[bytes] = field(default_factory=list)
    covered: int = 0
    """The next offset that the last statement names."""

    @classmethod
    def of(cls, rng: random.Random, *, count: int = 40) -> "World":
        """Statements after random numbers of records, none included; some records may be without one.

        Every fourth is full, the others name what moved; beside the partition there is a quiet one.
        """
        log = records(rng, count)
        world, chain, last = cls(log), begin(TOPIC_PARTITION, at=0), decide.Last()
        while chain.next_offset < count - 3 or not world.documents:
            size = rng.choice((0, 1, 1, 2, 5))
            chain = extend(chain, log[chain.next_offset : chain.next_offset + size])
            moved = {TOPIC_PARTITION} if size else ()
            statement = decide.state(
                last,
                [chain, QUIET],
                moved if last.number % FULL_EVERY else None,
                now=at(START_MS + chain.next_offset * 1000 + 999),
            )
            world.documents.append(KEY.sign(statement))
            last = world._last(statement.number)
            chain = replace(chain, oldest_ms=None, newest_ms=None)
        world.covered = chain.next_offset
        return world

    def _last(self, number: int) -> decide.Last:
        return decide.Last(number, hashlib.sha256(self.documents[-1]).hexdigest())

    def statement(self, chains: Iterable[Chain], moved: Container[Partition] | None) -> Statement:
        """The one after the last, a minute later."""
        last = KEY.public.open(self.documents[-1])
        return decide.state(self._last(last.number), chains, moved, now=last.signed_at + timedelta(minutes=1))

    def full_before(self, number: int) -> int:
        """The last full statement up to this one."""
        return next(
            each for each in range(number, 0, -1) if KEY.public.open(self.documents[each - 1]).is_full
        )

    def verify(self, *, now: datetime = SOON, there: range | None = None, first: int = 1) -> list[Finding]:
        walk = walked(list(enumerate(self.documents, start=1))[first - 1 :], first=first)
        end = self.log[-1].offset + 1 if self.log else 0
        if there is None:
            there = range(self.log[0].offset if self.log else end, end)
        recount = Recount(TOPIC_PARTITION, walk.anchors[TOPIC_PARTITION], there, now=now, retention=RETENTION)
        for record in self.log:
            if record.offset >= max(recount.start, there.start):
                recount.take(record)
        return [*walk.findings, *recount.finish()]


def walked(documents: list[tuple[int, bytes]], *, first: int = 1) -> Walk:
    walk = Walk(KEY.public, first)
    for number, document in documents:
        walk.take(number, document)
    return walk


def renumbered(log: list[Record]) -> list[Record]:
    """As an intruder writes them into a topic made again: the same bytes and times, offsets without gaps."""
    return [replace(record, offset=offset) for offset, record in enumerate(log)]


Tamper = Callable[[random.Random, list[Record], int], tuple[list[Record], set[int]]]
"""Takes the log and how many of its records are covered; the log after it, and offsets of which one must be found."""


def edit(rng: random.Random, log: list[Record], covered: int) -> tuple[list[Record], set[int]]:
    at = rng.randrange(covered)
    old = log[at]
    new = rng.choice(
        (
            replace(old, value=(old.value or b"") + b"!"),
            replace(old, value=None if old.value is not None else b""),
            replace(old, key=(old.key or b"") + b"!"),
            replace(old, timestamp_ms=old.timestamp_ms + 1),
            replace(old, headers=(*old.headers, ("ce_id", b"forged"))),
        )
    )
    return [*log[:at], new, *log[at + 1 :]], {at}


def delete(rng: random.Random, log: list[Record], covered: int) -> tuple[list[Record], set[int]]:
    """From the middle: the log is made again, and grows past where it was."""
    at = rng.randrange(covered)
    rest = renumbered([*log[:at], *log[at + 1 :]])
    grown = [
        *rest,
        *(replace(log[-1], offset=len(rest) + more, value=b"grown") for more in range(rng.randrange(5))),
    ]
    return grown, set(range(at, covered))


def leave_a_hole(rng: random.Random, log: list[Record], covered: int) -> tuple[list[Record], set[int]]:
    """What compaction would do."""
    at = rng.randrange(1, covered)
    return [*log[:at], *log[at + 1 :]], {at}


def swap(rng: random.Random, log: list[Record], covered: int) -> tuple[list[Record], set[int]]:
    one, other = sorted(rng.sample(range(covered), 2))
    changed = list(log)
    changed[one], changed[other] = log[other], log[one]
    return renumbered(changed), {one, other}


def insert(rng: random.Random, log: list[Record], covered: int) -> tuple[list[Record], set[int]]:
    at = rng.randrange(covered)
    return renumbered([*log[:at], replace(log[at], value=b"forged"), *log[at:]]), {at}


def truncate_tail(rng: random.Random, log: list[Record], covered: int) -> tuple[list[Record], set[int]]:
    at = rng.randrange(1, covered)
    return log[:at], set(range(at, covered))


def truncate_head(rng: random.Random, log: list[Record], covered: int) -> tuple[list[Record], set[int]]:
    at = rng.randrange(1, covered + 1)
    return log[at:], set(range(at))


TAMPERS: dict[str, Tamper] = {
    "edit": edit,
    "delete": delete,
    "hole": leave_a_hole,
    "swap": swap,
    "insert": insert,
    "truncated tail": truncate_tail,
    "truncated head": truncate_head,
}
