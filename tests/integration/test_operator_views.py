"""What the views for operators show of each service's tables, read as the operator by the doctor's own statements."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from deploy.local.stack import Stack
from ops.doctor.history import (
    Checkpoint,
    DesiredVersion,
    Evaluation,
    Generation,
    Job,
    KafkaUser,
    ModelVersion,
    Node,
    Replica,
    Route,
    Snapshot,
)
from ops.doctor.operator_views import read_snapshot, read_tenants
from schemas.base import FileRef
from schemas.topics import SERVICES
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from tests.builders import NOON, a_bundle, a_sha
from tests.integration.scratch import drop_constraints

pytestmark = pytest.mark.stack

SHA, OTHER_SHA, SHARED_SHA, NEEDED_SHA = (a_sha(name) for name in ("gone", "new", "shared", "needed"))
BUNDLE = a_bundle(20)
SERVABLE = {"model_id": "m-1", "digest": "d-1", "base_sha": "b-1", "full_name": "tiny:x", "kind": "adapter"}
APPROVAL = {"passed": True, "promoted": True, "approval": {"slot": "s", "generation": 2}}

ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("accounts.kafka_user", {"name": "tenant-a", "reads": ["t"], "writes": [], "state": "active"}),
    ("checkpoint_watcher.attempt", {"job_id": "j-1", "attempt": 2, "is_open": True}),
    (
        "checkpoint_watcher.checkpoint",
        {"job_id": "j-1", "attempt": BUNDLE.attempt, "step": 20, "manifest_sha256": BUNDLE.manifest_sha256, "state": "verified"},
    ),
    ("checkpoint_watcher.timer", {"type": "SweepDue", "payload": {"job_id": "j-1", "attempt": 1}}),
    ("checkpoint_watcher.timer", {"type": "JobDue", "payload": {"job_id": "j-2"}}),
    ("checkpoint_watcher.timer", {"type": "VerifyDue", "payload": {"job_id": "j-4", "attempt": 4}}),
    ("checkpoint_watcher.task", {"kind": "SweepAttempt", "payload": {"job_id": "j-1", "attempt": 2}}),
    ("checkpoint_watcher.task", {"kind": "ExpireJob", "payload": {"job_id": "j-3"}}),
    ("evaluator.evaluation", {"eval_id": "e-1", "state": "passed", "version": SERVABLE}),
    ("evaluator.evaluation", {"eval_id": "e-2", "state": "waiting"}),
    ("gateway.tenant", {"name": "b", "has_topics": False}),
    ("gateway.tenant", {"name": "a", "has_topics": True}),
    ("gateway.file", {"file_id": "file-1", "sha256": OTHER_SHA, "size_bytes": 3, "state": "uploaded"}),
    ("gateway.file", {"file_id": "file-2", "sha256": SHARED_SHA, "size_bytes": 4, "state": "deleting"}),
    ("gateway.file", {"file_id": "file-3", "sha256": SHARED_SHA, "state": "deleted", "removed_at": NOON}),
    ("gateway.file", {"file_id": "file-4", "sha256": NEEDED_SHA, "state": "deleted", "removed_at": NOON}),
    ("gateway.file", {"file_id": "file-5", "sha256": SHA, "state": "deleted", "removed_at": NOON}),
    ("gateway.file", {"file_id": "file-6", "sha256": a_sha("late"), "state": "deleted", "removed_at": NOON + timedelta(days=1)}),
    ("gateway.dataset", {"dataset_id": "ds", "tenant": "a", "state": "validating", "files": [NEEDED_SHA]}),
    ("ingest.version", {"id": "v-1", "state": "ready", "ready": {"manifest_sha256": SHA}}),
    ("ingest.version", {"id": "v-2", "state": "rejected"}),
    ("provisioner.attempt", {"job_id": "j-1", "number": 2, "state": "granted"}),
    ("provisioner.attempt", {"job_id": "j-1", "number": 1, "state": "released"}),
    ("provisioner.node", {"node_id": "n-1", "pool": "spot", "allocated_at": NOON, "machine": 1}),
    ("provisioner.node", {"node_id": "n-2", "pool": "spot", "allocated_at": NOON, "machine": 2}),
    ("provisioner.node", {"node_id": "n-0", "pool": "spot", "allocated_at": NOON, "released_at": NOON}),
    ("provisioner.pool", {"name": "spot", "nodes": 3, "drained": [2]}),
    ("registry.base_version", {"base_sha": "b-1", "manifest_sha256": SHA}),
    (
        "registry.model_version",
        {
            "model_id": "m-1", "tenant": "a", "job_id": "j-1", "digest": "d-1", "base_sha": "b-1",
            "dataset_version": "v-1", "config_hash": "c", "bundle_attempt": BUNDLE.attempt, "bundle_step": 20,
            "bundle_manifest_sha256": BUNDLE.manifest_sha256, "stage": "staging", "eval_id": "e-1",
        },
    ),
    ("registry.slot_generation", {"tenant": "a", "slot": "s", "number": 2, "model_id": "m-1", "digest": "d-1", "outcome": "ready"}),
    ("scheduler.job", {"id": "j-1", "tenant": "a", "state": "running", "attempt": 2, "config_hash": "c"}),
    ("scheduler.job", {"id": "j-2", "tenant": "a", "state": "validating", "attempt": 0, "dataset_id": "ds"}),
    ("scheduler.job", {"id": "j-3", "tenant": "a", "state": "evaluating", "attempt": 1, "evaluation": APPROVAL}),
    ("scheduler.dataset", {"dataset_id": "ds", "state": "ready"}),
    ("scheduler.deployment", {"tenant": "a", "slot": "s", "generation": 2}),
    ("scheduler.attempt", {"job_id": "j-1", "number": 2}),
    ("scheduler.attempt", {"job_id": "j-1", "number": 1, "freed_at": NOON}),
    ("serving_controller.wanted", {"tenant": "a", "slot": "s", "servable": SERVABLE}),
    (
        "serving_controller.slot",
        {
            "tenant": "a", "name": "s", "state": "ready", "desired": SERVABLE,
            "route": {
                "servable": SERVABLE,
                "generation": 2,
                "addresses": [{"replica_id": f"r-{n}", "incarnation": f"i-{n}"} for n in (1, 2)],
            },
        },
    ),
    ("serving_controller.slot", {"tenant": "a", "name": "p", "state": "pending", "desired": SERVABLE | {"digest": "d-2"}}),
    ("serving_controller.slot", {"tenant": "a", "name": "w", "state": "withdrawn", "desired": SERVABLE | {"digest": "d-3"}}),
    ("serving_controller.retired", {"served_name": "tiny:x@d-0"}),
    ("serving_controller.replica", {"replica_id": "r-1", "incarnation": "i-1", "phase": "ready", "loaded": ["tiny:x@d-1"]}),
    ("trainer_agent.attempt", {"job_id": "j-1", "number": 2, "state": "open"}),
    ("trainer_agent.attempt", {"job_id": "j-1", "number": 1, "state": "closed"}),
    ("trainer_agent.attempt", {"job_id": "j-2", "number": 1, "state": "open"}),
    ("trainer_agent.runner", {"job_id": "j-1", "number": 2}),
    ("trainer_agent.runner", {"job_id": "j-1", "number": 1}),
)  # fmt: skip
SEEN = Snapshot(
    jobs={
        "j-1": Job("j-1", "a", "running", 2, "c"),
        "j-2": Job("j-2", "a", "validating", 0, None),
        "j-3": Job("j-3", "a", "evaluating", 1, None),
    },
    unapplied={"j-2": "dataset ds is ready", "j-3": "serving has answered for slot s, generation 2"},
    booked=frozenset({("j-1", 2)}),
    training=frozenset({("j-1", 2)}),
    held=frozenset({("j-1", 2)}),
    nodes=(Node("spot", NOON, 1), Node("spot", NOON, 2, is_drained=True)),
    pools={"spot": 3},
    checkpoints=(Checkpoint("j-1", BUNDLE, "verified"),),
    sweeps_due=frozenset({("j-1", 1), ("j-1", 2)}),
    watched={"j-1": (2, True)},
    datasets={"v-1": ("ready", SHA), "v-2": ("rejected", None)},
    base_models={"b-1": SHA},
    models=(
        ModelVersion("m-1", "a", "j-1", "d-1", "b-1", "v-1", "c", BUNDLE, "staging", "e-1", is_archived=False),
    ),
    evaluations={
        "e-1": Evaluation("e-1", "passed", "d-1", "b-1"),
        "e-2": Evaluation("e-2", "waiting", None, None),
    },
    files=(
        FileRef(file_id="file-1", sha256=OTHER_SHA, size_bytes=3),
        FileRef(file_id="file-2", sha256=SHARED_SHA, size_bytes=4),
    ),
    removed_bytes=frozenset({SHA}),
    generations=(Generation("a", "s", 2, "m-1", "d-1", "ready"),),
    routes=(
        Route("a", "s", 2, "m-1", "d-1", "b-1", "tiny:x@d-1", True, (("r-1", "i-1"), ("r-2", "i-2"))),
    ),
    expected_loaded=frozenset({"tiny:x@d-0", "tiny:x@d-1", "tiny:x@d-2"}),
    replicas=(Replica("r-1", "i-1", "ready", frozenset({"tiny:x@d-1"})),),
    desired_versions=(DesiredVersion("a", "s", "d-1"),),
    expiring=frozenset({"j-2", "j-3"}),
    tenants=frozenset({"a"}),
    kafka_users=(KafkaUser("tenant-a", ("t",), (), "active"),),
)  # fmt: skip


@pytest.fixture
async def operator(stack: Stack) -> AsyncIterator[Database]:
    """A database of its own with the schemas of all services, whose tables take rows with a few columns."""
    name = f"views_{uuid4().hex[:8]}"
    superuser = Database(in_database(stack, "postgres", name), application="test")
    reader = Database(in_database(stack, "operator", name), application="test")
    maintenance = Database(stack.postgres_dsn("postgres"), application="test")
    await maintenance.open()
    await maintenance.execute(f"CREATE DATABASE {name}")
    try:
        await superuser.open()
        for service in SERVICES:
            await superuser.execute(f"CREATE SCHEMA {service}")
            await migrate(service, f"{in_database(stack, 'postgres', name)}?search_path={service}")
            await drop_constraints(superuser, service)
        for table, columns in ROWS:
            values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
            await superuser.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})", *columns.values()
            )
        await reader.open()
        yield reader
    finally:
        await reader.close()
        await superuser.close()
        await maintenance.execute(f"DROP DATABASE {name}")
        await maintenance.close()


def in_database(stack: Stack, role: str, name: str) -> str:
    return urlsplit(stack.postgres_dsn(role))._replace(path=f"/{name}").geturl()


async def test_the_doctor_reads_what_services_show_of_their_tables(operator: Database):
    async with operator.snapshot() as conn:
        assert await read_tenants(conn) == ["a", "b"]
        snapshot = await read_snapshot(conn, began_at=NOON + timedelta(hours=1))
    for name, seen in vars(SEEN).items():
        assert getattr(snapshot, name) == seen, name
