"""The chain heads of all partitions, computed from statements of which most name only those that moved."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import reduce

from schemas.audit import PartitionRead, Statement
from shared.audit.chain import Chain, encoded_head
from shared.partition import Partition

NAME = b"retune.audit.heads.v1"

Heads = Mapping[Partition, Chain]


def heads_of(statement: Statement) -> Heads:
    """Return the heads of the partitions that the statement names."""
    chains = map(_chain, statement.partitions)
    return {chain.topic_partition: chain for chain in chains}


def after(statements: Iterable[Statement]) -> Heads:
    """Return the heads after statements of which the first is full."""
    nothing: Heads = {}
    return reduce(moved_on, statements, nothing)


def moved_on(before: Heads, statement: Statement) -> Heads:
    return heads_of(statement) if statement.is_full else {**before, **heads_of(statement)}


def sha256_of(chains: Iterable[Chain]) -> str:
    digest = hashlib.sha256(NAME)
    for chain in sorted(chains, key=lambda chain: chain.topic_partition):
        digest.update(encoded_head(chain))
    return digest.hexdigest()


def agrees(heads: Heads, statement: Statement) -> bool:
    """Return whether the statement was signed over these heads; one without a digest agrees with all."""
    return statement.heads_sha256 in (None, sha256_of(heads.values()))


def _chain(read: PartitionRead) -> Chain:
    topic_partition = Partition(read.topic, read.partition)
    link = bytes.fromhex(read.link)
    return Chain(topic_partition, read.start_offset, read.next_offset, link, read.oldest_ms, read.newest_ms)
