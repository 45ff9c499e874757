"""What `retune audit verify` would say, for the doctor."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

from ops.audit.findings import Finding
from ops.audit.reading import Statements, recount
from ops.audit.statements import Anchor
from ops.connection import Connection
from ops.doctor.objects import Say
from shared.audit.signing import PublicKey
from shared.clock import utc_now
from shared.partition import Partition
from shared.storage.objects import ObjectStore

PARALLEL = 6


async def audit_problems(connection: Connection, objects: ObjectStore, *, say: Say) -> tuple[str, ...]:
    """Nothing where no statement could be checked, because nobody gave the key or the auditor is new."""
    path = Path(connection.audit_public_key_file)
    if not path.is_file():
        say("audit: RETUNE_AUDIT_PUBLIC_KEY_FILE names no file, so the audit chain is not checked")
        return ()
    statements = await Statements.open(objects, PublicKey.read(path))
    walk = await statements.walk(None, None, _silently)
    parts = await asyncio.gather(
        *(recount(connection.kafka, part, now=utc_now(), progress=_silently) for part in _split(walk.anchors))
    )
    records = sum(count.records for _, counts in parts for count in counts)
    say(f"audit: {walk.number} statements, {records} records read again")
    all_findings = [*walk.findings, *(each for findings, _ in parts for each in findings)]
    return tuple(map(_in_words, all_findings))


def _split(anchors: Mapping[Partition, list[Anchor]]) -> Iterator[dict[Partition, list[Anchor]]]:
    """Some topics each: they are read one after another, and most of that time is waiting for answers."""
    topics = sorted({partition.topic for partition in anchors})
    for part in range(min(PARALLEL, len(topics))):
        mine = frozenset(topics[part::PARALLEL])
        yield {partition: each for partition, each in anchors.items() if partition.topic in mine}


def _silently(_: int) -> None:
    return None


def _in_words(finding: Finding) -> str:
    what, where, offsets, between, detail = finding.row
    location = f" {where} offsets {offsets}" if where else ""
    return f"{what}{location}, statements {between or 'unknown'}: {detail}"
