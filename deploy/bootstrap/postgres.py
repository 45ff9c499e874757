"""The database, and per service a role that owns one schema and sees no other."""

import asyncpg

from deploy.bootstrap.site import DATABASE, POSTGRES_SUPER_USER, Site
from schemas.topics import SERVICES
from shared.tls import client_context

OPERATOR = "operator"
"""May read every schema and write none."""


async def set_up(site: Site) -> None:
    context = client_context(site.ca_file)
    maintenance = site.postgres_dsn(POSTGRES_SUPER_USER, database=POSTGRES_SUPER_USER)
    connection = await asyncpg.connect(maintenance, ssl=context)
    try:
        await _create_database(connection)
        for role in (*SERVICES, OPERATOR):
            await _set_login(connection, role, site.postgres_password(role))
    finally:
        await connection.close()
    connection = await asyncpg.connect(site.postgres_dsn(POSTGRES_SUPER_USER), ssl=context)
    try:
        await connection.execute(_grants())
    finally:
        await connection.close()


async def _create_database(connection: asyncpg.Connection) -> None:
    if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", DATABASE):
        await connection.execute(f"CREATE DATABASE {DATABASE}")


async def _set_login(connection: asyncpg.Connection, role: str, password: str) -> None:
    verb = (
        "ALTER"
        if await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", role)
        else "CREATE"
    )
    await connection.execute(f"{verb} ROLE {role} LOGIN PASSWORD '{password}'")


def _grants() -> str:
    closing = (
        f"REVOKE ALL ON DATABASE {DATABASE} FROM PUBLIC, {OPERATOR}; REVOKE ALL ON SCHEMA public FROM PUBLIC;"
    )
    opening = f"GRANT CONNECT ON DATABASE {DATABASE} TO {OPERATOR}; GRANT pg_read_all_data TO {OPERATOR};"
    own = (
        f"GRANT CONNECT ON DATABASE {DATABASE} TO {service};"
        f"CREATE SCHEMA IF NOT EXISTS {service} AUTHORIZATION {service};"
        f"ALTER ROLE {service} IN DATABASE {DATABASE} SET search_path = {service};"
        for service in SERVICES
    )
    return "\n".join((closing, opening, *own))
