"""Random records of one partition, from a seed that a failure prints."""

import random

from shared.partition import Partition
from shared.record import Record
from tests.chaos.scale import seed

TOPIC_PARTITION = Partition("job.events", 1)
HOUR_MS = 3_600_000
START_MS = 1_900_000_000_000


def seeded(name: str) -> tuple[random.Random, str]:
    """Random numbers, and what repeats them."""
    return random.Random(f"{name} {seed()}"), f"CHAOS_SEED={seed()} repeats it"


def some_bytes(rng: random.Random, most: int = 12) -> bytes:
    return rng.randbytes(rng.randrange(most))


def record(rng: random.Random, offset: int, *, topic_partition: Partition = TOPIC_PARTITION) -> Record:
    headers = tuple(
        (rng.choice(("ce_id", "ce_type", "x")), rng.choice((None, some_bytes(rng))))
        for _ in range(rng.randrange(4))
    )
    key, value = rng.choice((None, some_bytes(rng))), rng.choice((None, rng.randbytes(8)))
    return Record(
        *topic_partition, offset, key, headers, value, START_MS + offset * 1000 + rng.randrange(500)
    )


def records(
    rng: random.Random, count: int, *, start: int = 0, topic_partition: Partition = TOPIC_PARTITION
) -> list[Record]:
    return [record(rng, start + number, topic_partition=topic_partition) for number in range(count)]
