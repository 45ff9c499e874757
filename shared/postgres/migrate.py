"""Apply a service's migrations: `python -m shared.postgres.migrate <service> …`.

Migrations are numbered SQL files, forward only. Each runs in its own transaction with a lock time-out and is recorded
in the schema's `migration` table with its sha256. The kernel's files come first, named `kernel/…`.
"""

import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from shared.failpoints import failpoint
from shared.tls import Tls, client_context

KERNEL = Path(__file__).parent / "kernel"
SERVICES = Path(__file__).parents[2] / "services"
NAME = re.compile(r"^[0-9]{4}_[a-z0-9_]+\.sql$")
LOCK_TIMEOUT = "4s"

CREATE_RECORD = """
    CREATE TABLE IF NOT EXISTS migration (
        name text PRIMARY KEY, sha256 text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""


class MigrationError(RuntimeError):
    """A migration cannot be applied; the text names the file and what to do."""


def migrations_of(service: str) -> Iterator[tuple[str, str]]:
    """Yield (recorded name, SQL) in the order of application. Raises MigrationError on a bad file name."""
    for prefix, folder in (("kernel/", KERNEL), ("", SERVICES / service / "migrations")):
        for path in sorted(folder.glob("*.sql")):
            if not NAME.fullmatch(path.name):
                raise MigrationError(f"{path.name}: expected four digits, underscore, words, .sql")
            yield prefix + path.name, path.read_text()


async def migrate(service: str, dsn: str, *, ca_file: Path | None = None) -> list[str]:
    """Bring the service's schema up to date and return the names of the applied migrations."""
    conn = await asyncpg.connect(dsn, ssl=client_context(ca_file))
    try:
        # One migrator at a time; the lock goes with the connection.
        await conn.execute("SELECT pg_advisory_lock(hashtext($1))", f"migrate {service}")
        await conn.execute(CREATE_RECORD)
        known = {row["name"]: row["sha256"] for row in await conn.fetch("SELECT name, sha256 FROM migration")}
        return [
            name for name, sql in migrations_of(service) if await _apply(conn, name, sql, known.get(name))
        ]
    finally:
        await conn.close()


async def _apply(conn: asyncpg.Connection, name: str, sql: str, recorded: str | None) -> bool:
    digest = hashlib.sha256(sql.encode()).hexdigest()
    if recorded == digest:
        return False
    if recorded is not None:
        raise MigrationError(
            f"{name} was changed after it was applied: found sha256 {digest}, expected {recorded}; "
            "put it back and write a new migration instead"
        )
    async with conn.transaction():
        await conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        await conn.execute(sql)
        failpoint("migrate.step")
        await conn.execute("INSERT INTO migration (name, sha256) VALUES ($1, $2)", name, digest)
    return True


def main(services: list[str]) -> int:
    for service in services:
        try:
            dsn = os.environ[f"{service.upper()}_POSTGRES_DSN"]
            applied = asyncio.run(migrate(service, dsn, ca_file=Tls().ca_file))
        except (MigrationError, asyncpg.PostgresError, OSError) as error:
            print(f"migrate {service}: {error}", file=sys.stderr)  # noqa: T201
            return 1
        print(f"migrate {service}: {len(applied)} applied")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
