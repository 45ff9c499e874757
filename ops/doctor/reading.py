"""Reads a live stack into one History, in an order that lets nothing look missing that is only late."""

from ops.clients import object_store, postgres
from ops.connection import Connection
from ops.doctor.access import read_access
from ops.doctor.audit import audit_problems
from ops.doctor.history import History
from ops.doctor.kernel_tables import read_kernel, read_schemas
from ops.doctor.objects import Say, read_store
from ops.doctor.operator_views import read_snapshot, read_tenants
from ops.doctor.topics import read_topics
from schemas.topics import TOPICS, tenant_topics


async def read_history(connection: Connection, *, deep: bool, say: Say) -> History:
    """S3 first, then the topics, then Postgres: what is named was there before what names it."""
    async with postgres(connection, application="retune doctor") as database:
        began_at = await database.fetchval("SELECT clock_timestamp()")
        objects = object_store(connection.require_bucket())
        audit = await audit_problems(connection, objects, say=say)
        store = await read_store(objects, deep=deep, say=say)
        async with database.snapshot() as conn:
            tenants = await read_tenants(conn)
        names = [
            topic.name for topic in (*TOPICS, *(each for tenant in tenants for each in tenant_topics(tenant)))
        ]
        entries = await read_topics(connection.kafka, names)
        say(f"Kafka: {len(entries)} records of {len(names)} topics")
        async with database.snapshot() as conn:
            read_at = await conn.fetchval("SELECT clock_timestamp()")
            kernels = {schema: await read_kernel(conn, schema) for schema in await read_schemas(conn)}
            snapshot = await read_snapshot(conn, began_at=began_at)
        rows = sum(len(kernel.outbox) for kernel in kernels.values())
        say(f"Postgres: {rows} outbox rows of {len(kernels)} services, {len(snapshot.jobs)} jobs")
        access = await read_access(connection.kafka, snapshot, say=say)
    return History(began_at, read_at, entries, kernels, snapshot, store, audit, access)
