"""Clients of what a connection names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg

from ops.connection import Bucket, Connection
from ops.errors import Unreachable
from shared.postgres.database import Database
from shared.storage.s3 import S3ObjectStore

SILENCE = timedelta(minutes=1)
"""Longest silence of Postgres: a whole table takes longer to read than anything that a service asks."""


def object_store(bucket: Bucket) -> S3ObjectStore:
    return S3ObjectStore(
        bucket.endpoint, bucket.access_key, bucket.secret_key, bucket=bucket.name, ca_file=bucket.ca_file
    )


@asynccontextmanager
async def postgres(connection: Connection, *, application: str) -> AsyncIterator[Database]:
    """Raises Unreachable where Postgres is not there, refuses us or falls silent, or no login was given."""
    dsn = connection.require_postgres()
    database = Database(dsn, application=application, max_size=2, silence=SILENCE, ca_file=connection.ca_file)
    try:
        await database.open()
        yield database
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unreachable(f"Postgres does not serve us ({type(error).__name__}: {error})") from error
    finally:
        await database.close()
