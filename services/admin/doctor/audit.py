"""What `retune audit verify` would say, for the doctor."""

from pathlib import Path

from services.admin.audit.findings import Finding
from services.admin.audit.reading import Statements, recount
from services.admin.connection import Connection
from services.admin.doctor.objects import Say
from shared.audit.signing import PublicKey
from shared.clock import utc_now
from shared.storage.objects import ObjectStore


async def audit_problems(connection: Connection, objects: ObjectStore, *, say: Say) -> tuple[str, ...]:
    """Nothing where no statement could be checked, because nobody gave the key or the auditor is new."""
    path = Path(connection.audit_public_key_file)
    if not path.is_file():
        say("audit: RETUNE_AUDIT_PUBLIC_KEY_FILE names no file, so the audit chain is not checked")
        return ()
    statements = await Statements.open(objects, PublicKey.read(path))
    walk = await statements.walk(None, None, _silently)
    findings, counts = await recount(connection.kafka, walk.anchors, now=utc_now(), told=_silently)
    say(f"audit: {walk.number} statements, {sum(count.records for count in counts)} records read again")
    return tuple(_in_words(found) for found in (*walk.findings, *findings))


def _silently(_: int) -> None:
    return None


def _in_words(found: Finding) -> str:
    what, where, offsets, between, detail = found.row
    place = f" {where} offsets {offsets}" if where else ""
    return f"{what}{place}, statements {between or 'unknown'}: {detail}"
