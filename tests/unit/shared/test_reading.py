"""Reading a record is total: no bytes make it raise, which would end the process at every start."""

from datetime import UTC, datetime
from random import Random

from schemas.dataset import DatasetDeleted
from schemas.envelope import Envelope, to_headers
from schemas.topics import DATASET_EVENTS
from shared.messaging.delivery import Delivery, Unreadable, read
from shared.record import Record
from tests.chaos.scale import scaled, seed

GOOD = Record(
    DATASET_EVENTS.name,
    0,
    0,
    b"5e" * 32,
    tuple(
        to_headers(
            Envelope(
                id="event-1",
                type="DatasetDeleted",
                version=1,
                source="/retune/ingest",
                time=datetime(2027, 3, 1, 12, tzinfo=UTC),
                key="5e" * 32,
                sequence=1,
            )
        )
    ),
    DatasetDeleted(dataset_version="5e" * 32, tenant="acme", dataset_ids=()).model_dump_json().encode(),
)


def test_reading_never_raises():
    """Whatever is done to the bytes of a record, there is a message or a reason."""
    random = Random(seed())
    for number in range(scaled(1_000, 5_000, 1_000_000)):
        record = mutated(random)
        result = read(record)
        assert isinstance(result, Delivery | Unreadable), f"CHAOS_SEED={seed()}, record {number}: {record}"
        if isinstance(result, Unreadable):
            assert result.reason
            assert result.detail.encode()


def mutated(random: Random) -> Record:
    headers = [(name, damaged(value, random)) for name, value in GOOD.headers]
    random.shuffle(headers)
    picked = [damaged(GOOD.key, random), damaged(GOOD.value, random)]
    kept = headers[: random.randint(len(headers) - 2, len(headers))]
    return Record(DATASET_EVENTS.name, 0, 0, picked[0], tuple(kept), picked[1])


def damaged(data: bytes | None, random: Random) -> bytes | None:
    """One time in five: cut, repeated, overwritten, replaced by a number, a nesting or nothing."""
    if random.random() < 0.8 or not data:
        return data
    index = random.randrange(len(data))
    return random.choice(
        (
            None,
            data[:index],
            data * random.randint(2, 300),
            data[:index] + random.randbytes(random.randint(1, 4)) + data[index + 1 :],
            b"9" * random.randint(1, 6_000),
            b"[" * random.randint(1, 6_000) + b"]" * 6_000,
            data[:index] + b"\\ud800" + data[index:],
            data[:index] + b"\\u0000" + data[index:],
        )
    )
