"""Where to read on, and what a statement says."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from schemas.audit import NOTHING_BEFORE, PartitionRead, Statement
from shared.audit import heads
from shared.audit.chain import Chain, begin
from shared.partition import Partition

FULL_EVERY = 60
"""Number of statements from one that names every partition to the next."""


@dataclass(frozen=True)
class Plan:
    read: tuple[Chain, ...]
    began: tuple[Chain, ...]
    """Chains of `read` that are new: of a new partition, or behind records that were gone before they were read."""
    missed: tuple[Chain, ...]
    """Chains that ended before the first record that is still there."""
    cut: tuple[Chain, ...]
    """Chains that end behind the log: it was truncated or made again. They wait for it to grow again."""


def plan(known: Mapping[Partition, Chain], there: Mapping[Partition, range]) -> Plan:
    """Sort the chains by what their logs still hold. `there`: the offsets that each partition has."""
    new = [
        begin(topic_partition, at=offsets.start)
        for topic_partition, offsets in there.items()
        if topic_partition not in known
    ]
    kept = [known[topic_partition] for topic_partition in there if topic_partition in known]
    missed = [chain for chain in kept if chain.next_offset < there[chain.topic_partition].start]
    cut = [chain for chain in kept if chain.next_offset > there[chain.topic_partition].stop]
    whole = [chain for chain in kept if chain not in missed and chain not in cut]
    began = [*new, *(begin(chain.topic_partition, at=there[chain.topic_partition].start) for chain in missed)]
    return Plan((*whole, *began), tuple(began), tuple(missed), tuple(cut))


@dataclass(frozen=True)
class Last:
    """The newest statement."""

    number: int = 0
    sha256: str = NOTHING_BEFORE


def is_full_due(last: Last) -> bool:
    """Whether the next statement names every partition, as the first does."""
    return last.number % FULL_EVERY == 0


def state(
    last: Last, chains: Iterable[Chain], moved: Container[Partition] | None, *, now: datetime
) -> Statement:
    """Name the chains that moved since the last statement, or all where `moved` is None."""
    chains = sorted(chains, key=lambda chain: chain.topic_partition)
    named = [chain for chain in chains if moved is None or chain.topic_partition in moved]
    return Statement(
        number=last.number + 1,
        previous_sha256=last.sha256,
        signed_at=now,
        partitions=tuple(map(_said, named)),
        is_full=len(named) == len(chains),
        heads_sha256=heads.sha256_of(chains),
    )


def _said(chain: Chain) -> PartitionRead:
    return PartitionRead(
        topic=chain.topic_partition.topic,
        partition=chain.topic_partition.partition,
        start_offset=chain.start_offset,
        next_offset=chain.next_offset,
        link=chain.link.hex(),
        oldest_ms=chain.oldest_ms,
        newest_ms=chain.newest_ms,
    )
