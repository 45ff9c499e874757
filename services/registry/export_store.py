"""SQL of exports; the only file that knows their columns."""

from datetime import datetime

from services.registry.model import BaseFacts, Export
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

EXPORT = Columns(
    "export_id, model_id, tenant, format, quantization, state, estimated_bytes, files, parity, code, message"
)

FIND_EXPORT = f"SELECT {EXPORT.selected} FROM export WHERE export_id = $1"

SAVE_EXPORT = f"""
    INSERT INTO export ({EXPORT.names}, requested_at) VALUES ({EXPORT.parameters()}, $12)
    ON CONFLICT (export_id) DO UPDATE SET state = excluded.state, estimated_bytes = excluded.estimated_bytes,
        files = excluded.files, parity = excluded.parity, code = excluded.code, message = excluded.message"""

BASE_FACTS = """
    SELECT num_parameters, capabilities ->> 'family' AS family, capabilities ->> 'weights_dtype' AS weights_dtype,
           (capabilities ->> 'vocab_size')::int AS vocab_size
      FROM base_version WHERE base_sha = $1"""


async def find_export(conn: Connection, export_id: str) -> Export | None:
    """Return the export, locked."""
    row = await conn.fetchrow(f"{FIND_EXPORT} FOR UPDATE", export_id)
    return read(Export, row) if row else None


async def get_export(conn: Connection, export_id: str) -> Export:
    """Return the export, locked. Raises KeyError."""
    export = await find_export(conn, export_id)
    if export is None:
        raise KeyError(export_id)
    return export


async def save_export(conn: Connection, export: Export, *, now: datetime) -> None:
    await conn.execute(SAVE_EXPORT, *EXPORT.values(export), now)


async def delete_export(conn: Connection, export_id: str) -> None:
    await conn.execute("DELETE FROM export WHERE export_id = $1", export_id)


async def get_base_facts(conn: Connection, base_sha: str) -> BaseFacts:
    row = await conn.fetchrow(BASE_FACTS, base_sha)
    assert row is not None, f"a version's base model {base_sha} is registered"
    return read(BaseFacts, row)
