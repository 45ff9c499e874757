"""SQL of accounts; the only file that knows column names."""

from services.accounts.model import KafkaUser
from shared.postgres.database import Connection, Database
from shared.postgres.rows import Columns, read

# A user that is not there yet has no row to lock.
LOCK_NAME = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
USER = Columns("name, tenant, reads, writes, nonce, state, revision")
FIND_USER = f"SELECT {USER.selected} FROM kafka_user WHERE name = $1"
LIST_USERS = "SELECT name FROM kafka_user WHERE state NOT IN ('removing', 'removed')"
SAVE_USER = f"""
    INSERT INTO kafka_user ({USER.names}) VALUES ({USER.parameters()})
    ON CONFLICT (name) DO UPDATE SET reads = $3, writes = $4, nonce = $5, state = $6, revision = $7"""
OPEN_TENANT = "INSERT INTO opened_tenant (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING true"


async def lock_user(conn: Connection, name: str) -> KafkaUser | None:
    """Return the user, whom nobody else changes before this transaction ends."""
    await conn.execute(LOCK_NAME, name)
    row = await conn.fetchrow(FIND_USER, name)
    return read(KafkaUser, row) if row else None


async def get_user(database: Database, name: str) -> KafkaUser:
    row = await database.fetchrow(FIND_USER, name)
    assert row is not None, f"a task names {name}, who has no row"
    return read(KafkaUser, row)


async def list_users(database: Database) -> set[str]:
    """Return the names of the users that exist or are being made."""
    return {row["name"] for row in await database.fetch(LIST_USERS)}


async def save_user(conn: Connection, user: KafkaUser) -> None:
    await conn.execute(SAVE_USER, *USER.values(user))


async def open_tenant(conn: Connection, tenant: str) -> bool:
    """Record that the tenant's topics are open. Return whether they were not before."""
    return bool(await conn.fetchval(OPEN_TENANT, tenant))
