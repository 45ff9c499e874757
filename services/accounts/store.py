"""SQL of accounts; the only file that knows column names."""

from typing import Any

from services.accounts.model import KafkaUser, UserState
from shared.postgres.database import Connection, Database

# A user that is not there yet has no row to lock.
LOCK_NAME = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
FIND_USER = "SELECT name, tenant, reads, writes, nonce, state, revision FROM kafka_user WHERE name = $1"
LIST_USERS = "SELECT name FROM kafka_user WHERE state NOT IN ('removing', 'removed')"
SAVE_USER = """
    INSERT INTO kafka_user (name, tenant, reads, writes, nonce, state, revision)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (name) DO UPDATE SET reads = $3, writes = $4, nonce = $5, state = $6, revision = $7"""
OPEN_TENANT = "INSERT INTO opened_tenant (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING true"


async def lock_user(conn: Connection, name: str) -> KafkaUser | None:
    """The user, whom nobody else changes before this transaction ends."""
    await conn.execute(LOCK_NAME, name)
    return _user(await conn.fetchrow(FIND_USER, name))


async def get_user(database: Database, name: str) -> KafkaUser:
    user = _user(await database.fetchrow(FIND_USER, name))
    assert user is not None, f"a task names {name}, who has no row"
    return user


async def list_users(database: Database) -> set[str]:
    """Names of those that are there, or will be."""
    return {row["name"] for row in await database.fetch(LIST_USERS)}


async def save_user(conn: Connection, user: KafkaUser) -> None:
    row = (user.name, user.tenant, list(user.reads), list(user.writes), user.nonce, user.state, user.revision)
    await conn.execute(SAVE_USER, *row)


async def open_tenant(conn: Connection, tenant: str) -> bool:
    """Whether its topics are new."""
    return bool(await conn.fetchval(OPEN_TENANT, tenant))


def _user(row: Any) -> KafkaUser | None:
    if row is None:
        return None
    rights = tuple(row["reads"]), tuple(row["writes"])
    return KafkaUser(
        row["name"], row["tenant"], *rights, row["nonce"], UserState(row["state"]), row["revision"]
    )
