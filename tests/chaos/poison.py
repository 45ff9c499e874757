"""Records as nobody should write them, and how long good ones take among them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from random import Random
from statistics import median, quantiles
from typing import Any

import asyncpg

from shared.clock import utc_now
from tests.chaos.source import Source, id_of
from tests.integration.kernel.conftest import new_key
from tests.integration.kernel.test_consume import HOSTILE, with_header
from tests.waiting import until

Record = dict[str, Any]
Spoil = Callable[[Record], Record]

APPLIED = "SELECT count(*) FROM tracker.inbox WHERE event_id = ANY($1)"
TAKEN = """
    SELECT extract(epoch FROM applied_at - sent.at)::float AS seconds FROM tracker.inbox
      JOIN unnest($1::text[], $2::timestamptz[]) AS sent (event_id, at) USING (event_id)"""


def twice(name: str, value: bytes) -> Spoil:
    return lambda record: record | {"headers": [*record["headers"], (name, value)]}


def with_many_headers(record: Record) -> Record:
    return record | {"headers": [*record["headers"], *((f"x-{number}", b"1") for number in range(5_000))]}


CLASSES: dict[str, Spoil] = HOSTILE | {
    "no_key": lambda record: record | {"key": None},
    "binary_key": lambda record: record | {"key": b"\xff\xfe"},
    "two_ids": twice("ce_id", b"another"),
    "two_types": twice("ce_type", b"retune.DatasetReady.v1"),
    "thousands_of_headers": with_many_headers,
    "nan": lambda record: record | {"value": b'{"x": NaN,' + record["value"][1:]},
    "infinity": lambda record: record | {"value": b'{"x": -Infinity,' + record["value"][1:]},
    "number_for_a_name": lambda record: record | {"value": record["value"].replace(b'"acme"', b"1e999")},
    "null_for_a_name": lambda record: record | {"value": record["value"].replace(b'"acme"', b"null")},
    "lone_surrogate": lambda record: record | {"value": record["value"].replace(b'"acme"', b'"\\ud800"')},
    "endless_number": lambda record: record | {"value": b'{"x": ' + b"9" * 100_000 + b"}"},
    "time_without_offset": lambda record: with_header(record, "ce_time", b"2027-03-01T12:00:00"),
    "sequence_zero": lambda record: with_header(record, "ce_sequence", b"0"),
    "sequence_beyond_any_column": lambda record: with_header(record, "ce_sequence", b"9" * 30),
    "other_alphabet_sequence": lambda record: with_header(record, "ce_sequence", "١".encode()),
}


async def _taken(db: asyncpg.Pool, sent: dict[str, datetime]) -> list[float]:
    rows = await db.fetch(TAKEN, list(sent), list(sent.values()))
    return [row["seconds"] for row in rows]


@dataclass(frozen=True)
class Latency:
    """Seconds from a record's send to its effect, for good records."""

    median: float
    p99: float


async def latency(
    source: Source, db: asyncpg.Pool, random: Random, *, count: int, per_second: float, hostile: bool
) -> Latency:
    """Send good records at a steady rate, each with a hostile one before it if asked for."""
    sent: dict[str, datetime] = {}
    began = time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
        if hostile:
            spoil = random.choice(list(CLASSES.values()))
            await source.raw(**spoil(source.message(new_key())))
        record = source.message(new_key())
        sent[id_of(record)] = utc_now()
        await source.raw(**record)

    async def all_applied() -> bool:
        return await db.fetchval(APPLIED, list(sent)) == count

    await until(all_applied, "every good record to be applied")
    taken = await _taken(db, sent)
    return Latency(quantiles(taken, n=100)[49], quantiles(taken, n=100)[98])


async def compare(
    source: Source, db: asyncpg.Pool, random: Random, *, rounds: int, count: int, per_second: float
) -> tuple[Latency, Latency]:
    """Alone and among hostile records, round by round in turn: the median round of each."""
    alone, among = [], []
    for _ in range(rounds):
        for hostile, latencies in ((False, alone), (True, among)):
            latencies.append(
                await latency(source, db, random, count=count, per_second=per_second, hostile=hostile)
            )
    return _middle(alone), _middle(among)


def _middle(latencies: list[Latency]) -> Latency:
    return Latency(median(each.median for each in latencies), median(each.p99 for each in latencies))
