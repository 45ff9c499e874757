"""Whatever statement of a service is a constant finds its rows by an index, or says here why it need not.

Tables of a test are small, and so is the time that a scan of them takes: the planner is asked instead.
"""

import importlib
import importlib.util
import json
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import asyncpg
import pytest

import shared.messaging
from deploy.local.stack import Stack
from schemas.topics import SERVICES
from shared.postgres.migrate import migrate
from tests.integration.scratch import empty_schema

pytestmark = pytest.mark.stack

STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
PARAMETER = re.compile(r"\$([0-9]+)")
WITHOUT_SCANS = """
    SET enable_seqscan = off;
    SET plan_cache_mode = force_generic_plan"""
FEW = "few rows, and all are wanted"
ONE = "the table has one row"
QUEUE = "its index has the rows that are wanted and no other"
RUNNING = "few evaluations run at a time, and their index has no others"
SET_ASIDE = "only rows that Kafka refused are in that table"
BY_HAND = "a person asks for it, or the start of a process"
ALLOWED = {
    "messaging.retention.PRUNE_OUTBOX": SET_ASIDE,
    "messaging.retention.TOPICS_OF_INBOX": "from topic to topic by its index",
    "accounts.store.LIST_USERS": FEW,
    "gateway.job_readmodels.VERSION_OF_TENANT": "of pools, of which there are few",
    "gateway.readmodels.FIND_BASE_OF_FILES": FEW,
    "gateway.readmodels.FIND_POLICY": ONE,
    "gateway.readmodels.LIST_POOLS": FEW,
    "gateway.readmodels.LIST_SUITES": FEW,
    "gateway.readmodels.READY_INCARNATIONS": FEW,
    "gateway.readmodels.READY_REPLICAS_OF_BASE": FEW,
    "gateway.budgets.LIMITS": BY_HAND,
    "gateway.budgets.LIST_REACHED": QUEUE,
    "gateway.recent_events.PRUNE_MANY": "from tenant to tenant by its index",
    "gateway.recent_events.PRUNE_OLD": "the beginning of its index",
    "gateway.store.NEEDED_BY": RUNNING,
    "gateway.store.REMOVABLE": QUEUE,
    "gateway.store.REVOKE_KEYS": BY_HAND,
    "gateway.store.START_REMOVING": RUNNING,
    "gateway.store.TENANTS_ON_BASE": BY_HAND,
    "gateway.tables.WARN_JOBS_ON_BASE": QUEUE,
    "gateway.tenants.LIST_KEYS": BY_HAND,
    "gateway.tenants.LIST_TENANTS": BY_HAND,
    "gateway.webhooks.store.CLAIM": "from endpoint to endpoint by its index",
    "gateway.webhooks.store.FREE_OWN": BY_HAND,
    "ingest.store.DELETABLE": QUEUE,
    "ingest.store.FIND_ANSWER_TOKENS": ONE,
    "ingest.store.LIST_SOURCES": FEW,
    "scheduler.queue_store.CANDIDATES": QUEUE,
    "scheduler.queue_store.DEVICE_LIMITS": FEW,
    "scheduler.queue_store.ELASTIC_ATTEMPTS": QUEUE,
    "scheduler.queue_store.EVERYONE_QUEUED": QUEUE,
    "scheduler.queue_store.IS_ANYONE_QUEUED": QUEUE,
    "scheduler.queue_store.IS_ONE_GROWING": QUEUE,
    "scheduler.queue_store.LOCK_LEDGER": FEW,
    "scheduler.queue_store.BOOKINGS": QUEUE,
    "scheduler.queue_store.POOLS": FEW,
    "scheduler.queue_store.WISHES": QUEUE,
    "scheduler.store.COUNT_OPEN_JOBS": QUEUE,
    "scheduler.store.LONGEST_QUEUED": QUEUE,
    "scheduler.store.OPEN_JOBS": QUEUE,
    "provisioner.store.COUNTED_POOLS": FEW,
    "provisioner.store.COUNT_CORDONED": FEW,
    "provisioner.store.COUNT_DEVICES": FEW,
    "provisioner.store.COUNT_HELD": "all devices that nodes hold",
    "provisioner.store.LOCK_POOLS": FEW,
    "evaluator.store.EVALUATIONS": "the head of other statements",
    "evaluator.store.LIST_NEWEST_SUITES": FEW,
    "evaluator.store.LIST_REGISTERED": FEW,
    "registry.store.VERSIONS": "the head of other statements",
    "serving_controller.store.CANDIDATES": FEW,
    "serving_controller.store.COUNT_LOADED": FEW,
    "serving_controller.store.COUNT_REPLICAS": FEW,
    "serving_controller.store.COUNT_WANTED": "all that is served",
    "serving_controller.store.FORGET_NODES": FEW,
    "serving_controller.store.HAS_READY_REPLICA": FEW,
    "serving_controller.store.NODES": FEW,
    "serving_controller.store.REPLICA_SETS": FEW,
    "serving_controller.store.REPLICAS": FEW,
    "serving_controller.store.REPLICA_VERSIONS": FEW,
    "serving_controller.store.STALE_BASES": FEW,
    "serving_controller.store.SLOTS": "the head of other statements",
    "auditor.store.CHAINS": FEW,
    "auditor.store.FORGET_ALL_STATEMENTS": BY_HAND,
    "auditor.store.FORGET_CHAINS": BY_HAND,
    "auditor.store.LAST_STATEMENT": "the end of its index",
    "auditor.store.LOCK_CHAINS": FEW,
    "auditor.store.MOVED": FEW,
    "auditor.store.NOT_PUT": FEW,
    "messaging.due.LOOK": "the first row of each by its index",
    "messaging.followers.DUE": "from story to story by its index",
    "messaging.relay.BACKLOG": QUEUE,
    "messaging.relay.READ": QUEUE,
    "messaging.held_messages.BLOCKING": QUEUE,
    "messaging.held_messages.OLDEST": "the beginning of its index",
    "messaging.tasks.COUNT": "a task is a row for as long as it is done, so there are few",
    "messaging.tasks.FREE_OWN": BY_HAND,
    "messaging.waiting.HEADS": "once a second all that wait, to find the first of each aggregate",
    "messaging.waiting.TAKE_RELEASED": QUEUE,
    "tracker.store.IS_LOOK_DUE": QUEUE,
    "tracker.store.LOCK_DUE": QUEUE,
    "tracker.store.NEWEST_STEPS": QUEUE,
    "tracker.store.BURNS": QUEUE,
}

MORE_STORES = {
    "gateway": (
        "job_readmodels",
        "budgets",
        "deployments",
        "recent_events",
        "tenants",
        "webhooks.store",
    )
}


def modules_of(service: str) -> Iterator[ModuleType]:
    for name in ("store", "readmodels", "tables", "queue_store", *MORE_STORES.get(service, ())):
        if importlib.util.find_spec(f"services.{service}.{name}"):
            yield importlib.import_module(f"services.{service}.{name}")


def kernel() -> Iterator[ModuleType]:
    for module in pkgutil.iter_modules(shared.messaging.__path__, "shared.messaging."):
        yield importlib.import_module(module.name)


def statements(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(name, SQL): `scheduler.store.FIND_JOB`."""
    for name, value in vars(module).items():
        if isinstance(value, str) and STATEMENT.match(value):
            yield f"{module.__name__.partition('.')[2]}.{name}", value


async def plan_of(conn: asyncpg.Connection, sql: str) -> dict[str, Any]:
    count = max((int(number) for number in PARAMETER.findall(sql)), default=0)
    values = f"({', '.join(['NULL'] * count)})" if count else ""
    await conn.execute(f"DEALLOCATE ALL; PREPARE asked AS {sql}")
    [explained] = json.loads(await conn.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE asked{values}"))
    return explained["Plan"]


def scans(plan: dict[str, Any]) -> Iterator[str]:
    """Where a table or an index is read from end to end."""
    is_scan = plan["Node Type"] in ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan")
    if is_scan and "Index Cond" not in plan:
        yield f"{plan['Node Type']} of {plan.get('Index Name') or plan['Relation Name']}"
    for part in plan.get("Plans", ()):
        yield from scans(part)


async def scans_in(stack: Stack, service: str) -> dict[str, list[str]]:
    """In a schema without rows: what other tests have left must not change a plan."""
    modules = (*modules_of(service), *(kernel() if service == "tracker" else ()))
    asked = [each for module in modules for each in statements(module)]
    assert asked
    async with empty_schema(stack) as dsn:
        await migrate(service, dsn)
        conn = await asyncpg.connect(dsn, statement_cache_size=0)
        await conn.execute(WITHOUT_SCANS)
        plans = {name: list(scans(await plan_of(conn, sql))) for name, sql in asked}
        await conn.close()
    return {name: lines for name, lines in plans.items() if lines}


async def test_no_statement_reads_a_table_that_grows_from_end_to_end(stack: Stack):
    scans_by_statement: dict[str, list[str]] = {}
    for service in SERVICES:
        scans_by_statement |= await scans_in(stack, service)
    assert {name: lines for name, lines in scans_by_statement.items() if name not in ALLOWED} == {}
    assert ALLOWED.keys() - scans_by_statement.keys() == set(), "these are no exceptions any more"
