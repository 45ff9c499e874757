"""Gauges of rows: what Prometheus sees of each service's tables, on Postgres."""

import importlib
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import REGISTRY

from deploy.local.stack import Stack
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from shared.telemetry.row_gauges import RowGauges
from tests.integration.scratch import drop_constraints, empty_schema

pytestmark = pytest.mark.stack

Rows = tuple[tuple[str, Mapping[str, Any]], ...]

ROWS: Mapping[str, Rows] = {
    "scheduler": (
        ("job", {"id": "j-1", "state": "queued", "spec": {"tier": "batch"}, "queued_at": "1 hour"}),
        ("job", {"id": "j-2", "state": "queued", "spec": {"tier": "batch"}, "queued_at": "1 minute"}),
        ("job", {"id": "j-3", "state": "running", "spec": {"tier": "interactive"}}),
        ("job", {"id": "j-4", "state": "failed", "spec": {"tier": "batch"}, "queued_at": "9 hours"}),
    ),
    "provisioner": (
        ("pool", {"name": "a", "capacity_type": "spot", "nodes": 3, "devices_per_node": 8}),
        ("pool", {"name": "b", "capacity_type": "on-demand", "nodes": 1, "devices_per_node": 2}),
        ("pool", {"name": "old", "capacity_type": "spot", "nodes": 9, "devices_per_node": 9, "is_removed": True}),
        *(("device_lease", {"pool": "a", "machine": 0, "device": device, "node_id": "n"}) for device in range(5)),
        ("cordon", {"pool": "a", "machine": "1", "source": "operator"}),
    ),
    "serving_controller": (
        ("replica", {"replica_id": "r-0", "served_base": "tiny", "phase": "ready", "loaded": ["x", "y"]}),
        ("replica", {"replica_id": "r-1", "served_base": "tiny", "phase": "starting", "loaded": []}),
        ("wanted", {"tenant": "t", "slot": "s", "served_name": "x", "is_pending": True}),
        ("wanted", {"tenant": "t", "slot": "s", "served_name": "y", "is_pending": False}),
    ),
}  # fmt: skip
SHOWN: Mapping[str, tuple[tuple[str, Mapping[str, str], float | None], ...]] = {
    "scheduler": (
        ("jobs", {"state": "queued", "tier": "batch"}, 2),
        ("jobs", {"state": "running", "tier": "interactive"}, 1),
        ("jobs", {"state": "failed", "tier": "batch"}, None),
        ("jobs_longest_queued_seconds", {"tier": "batch"}, 3600),
    ),
    "provisioner": (
        ("pool_devices", {"pool": "a", "capacity_type": "spot"}, 24),
        ("pool_devices", {"pool": "old", "capacity_type": "spot"}, None),
        ("pool_held_devices", {"pool": "a", "capacity_type": "spot"}, 5),
        ("pool_held_devices", {"pool": "b", "capacity_type": "on-demand"}, 0),
        ("pool_cordoned_machines", {"pool": "a"}, 1),
        ("pool_cordoned_machines", {"pool": "b"}, 0),
    ),
    "serving_controller": (
        ("replicas", {"base_model": "tiny", "phase": "ready"}, 1),
        ("replica_loaded_models", {"base_model": "tiny", "replica": "r-0"}, 2),
        ("models_to_serve", {"state": "pending"}, 1),
        ("models_to_serve", {"state": "ready"}, 1),
    ),
}


@pytest.mark.parametrize("service", ROWS)
async def test_gauges_show_the_rows_that_there_are_and_no_others(stack: Stack, service: str):
    async with empty_schema(stack) as dsn:
        await migrate(service, dsn)
        database = Database(dsn, application="test")
        await database.open()
        try:
            gauges = RowGauges(database, importlib.import_module(f"services.{service}.gauges").GAUGES)
            await fill(database, service)
            await gauges.show()
            for name, labels, value in SHOWN[service]:
                assert REGISTRY.get_sample_value(name, labels) == pytest.approx(value, abs=60), (name, labels)
            for table in {table for table, _ in ROWS[service]}:
                await database.execute(f"DELETE FROM {table}")
            await gauges.show()
            for name, labels, _ in SHOWN[service]:
                assert REGISTRY.get_sample_value(name, labels) is None, (name, labels)
        finally:
            await database.close()


async def fill(database: Database, service: str) -> None:
    await drop_constraints(database, await database.fetchval("SELECT current_schema()"))
    for table, columns in ROWS[service]:
        names = ", ".join(columns)
        values = ", ".join(
            f"now() - ${number}::text::interval" if name == "queued_at" else f"${number}"
            for number, name in enumerate(columns, 1)
        )
        await database.execute(f"INSERT INTO {table} ({names}) VALUES ({values})", *columns.values())
