"""What the services show of their own tables: each has views for operators in its schema, `operator_<what>`.

A service keeps the columns of its views whatever becomes of its tables; a statement here names nothing else.
"""

from collections.abc import Iterable
from datetime import datetime

import asyncpg

from ops.doctor.history import (
    AttemptId,
    Checkpoint,
    DesiredVersion,
    DeviceLease,
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
from schemas.base import BundleRef, FileRef
from shared.postgres.database import Connection

TENANTS = "SELECT name FROM gateway.operator_tenant ORDER BY name"
TENANTS_WITH_TOPICS = "SELECT name FROM gateway.operator_tenant WHERE has_topics"
FILES = "SELECT file_id, sha256, size_bytes FROM gateway.operator_file"
REMOVED_BYTES = "SELECT sha256 FROM gateway.operator_removed_bytes WHERE removed_at < $1"
DATASETS = "SELECT dataset_version, state, manifest_sha256 FROM ingest.operator_dataset"
JOBS = "SELECT job_id, tenant, state, attempt, config_hash FROM scheduler.operator_job"
BOOKED_ATTEMPTS = "SELECT job_id, attempt FROM scheduler.operator_booked_attempt"
UNAPPLIED_FACTS = "SELECT job_id, fact FROM scheduler.operator_unapplied_fact"
TRAINING_ATTEMPTS = "SELECT job_id, attempt FROM trainer_agent.operator_open_attempt"
PROVISIONED_ATTEMPTS = "SELECT job_id, attempt FROM provisioner.operator_open_attempt"
NODES = "SELECT pool, allocated_at, machine, is_drained FROM provisioner.operator_node ORDER BY pool, machine"
POOLS = "SELECT name, nodes FROM provisioner.operator_pool"
DEVICE_LEASES = "SELECT lease_id, holder, pool, until FROM provisioner.operator_lease ORDER BY lease_id"
KNOWN_LEASES = """
    SELECT lease_id FROM evaluator.operator_held_lease
     UNION ALL SELECT lease_id FROM serving_controller.operator_held_lease"""
CHECKPOINTS = """
    SELECT job_id, attempt, step, manifest_sha256, state FROM checkpoint_watcher.operator_checkpoint"""
NEWEST_ATTEMPTS = "SELECT job_id, attempt, is_open FROM checkpoint_watcher.operator_newest_attempt"
PLANNED_SWEEPS = "SELECT job_id, attempt FROM checkpoint_watcher.operator_planned_sweep"
PLANNED_EXPIRIES = "SELECT job_id FROM checkpoint_watcher.operator_planned_expiry"
EVALUATIONS = "SELECT eval_id, state, digest, base_sha FROM evaluator.operator_evaluation"
BASE_MODELS = "SELECT base_sha, manifest_sha256 FROM registry.operator_base_model"
MODELS = """
    SELECT model_id, tenant, job_id, digest, base_sha, dataset_version, config_hash, bundle_attempt, bundle_step,
           bundle_manifest_sha256, stage, eval_id, is_archived
      FROM registry.operator_model_version"""
GENERATIONS = "SELECT tenant, slot, number, model_id, digest, outcome FROM registry.operator_generation"
WANTED = "SELECT tenant, slot, digest FROM serving_controller.operator_wanted"
ROUTES = """
    SELECT tenant, slot, generation, model_id, digest, base_sha, served_name, is_adapter, replicas
      FROM serving_controller.operator_route"""
LOADABLE = "SELECT served_name FROM serving_controller.operator_loadable"
REPLICAS = "SELECT replica_id, incarnation, phase, loaded FROM serving_controller.operator_replica"
KAFKA_USERS = "SELECT name, reads, writes, state FROM accounts.operator_kafka_user ORDER BY name"


async def read_tenants(conn: Connection) -> list[str]:
    return [row["name"] for row in await conn.fetch(TENANTS)]


async def read_snapshot(conn: Connection, *, began_at: datetime) -> Snapshot:
    """Read what the tables show. `began_at`: before anything was read; what was removed later may be in what was
    read.
    """
    return Snapshot(
        jobs={row["job_id"]: Job(*row) for row in await conn.fetch(JOBS)},
        unapplied=await read_unapplied(conn),
        booked=_attempts(await conn.fetch(BOOKED_ATTEMPTS)),
        training=_attempts(await conn.fetch(TRAINING_ATTEMPTS)),
        held=_attempts(await conn.fetch(PROVISIONED_ATTEMPTS)),
        nodes=tuple(Node(*row) for row in await conn.fetch(NODES)),
        pools={row["name"]: row["nodes"] for row in await conn.fetch(POOLS)},
        device_leases=tuple(DeviceLease(*row) for row in await conn.fetch(DEVICE_LEASES)),
        known_leases=frozenset(row["lease_id"] for row in await conn.fetch(KNOWN_LEASES)),
        checkpoints=tuple(_checkpoint(row) for row in await conn.fetch(CHECKPOINTS)),
        sweeps_due=_attempts(await conn.fetch(PLANNED_SWEEPS)),
        watched={
            row["job_id"]: (row["attempt"], row["is_open"]) for row in await conn.fetch(NEWEST_ATTEMPTS)
        },
        datasets={
            row["dataset_version"]: (row["state"], row["manifest_sha256"])
            for row in await conn.fetch(DATASETS)
        },
        base_models={row["base_sha"]: row["manifest_sha256"] for row in await conn.fetch(BASE_MODELS)},
        models=tuple(_model(row) for row in await conn.fetch(MODELS)),
        evaluations={row["eval_id"]: Evaluation(*row) for row in await conn.fetch(EVALUATIONS)},
        files=tuple(FileRef.model_validate(dict(row)) for row in await conn.fetch(FILES)),
        removed_bytes=frozenset(row["sha256"] for row in await conn.fetch(REMOVED_BYTES, began_at)),
        generations=tuple(Generation(*row) for row in await conn.fetch(GENERATIONS)),
        routes=tuple(_route(row) for row in await conn.fetch(ROUTES)),
        expected_loaded=frozenset(row["served_name"] for row in await conn.fetch(LOADABLE)),
        replicas=tuple(_replica(row) for row in await conn.fetch(REPLICAS)),
        desired_versions=tuple(DesiredVersion(*row) for row in await conn.fetch(WANTED)),
        expiring=frozenset(row["job_id"] for row in await conn.fetch(PLANNED_EXPIRIES)),
        tenants=frozenset(row["name"] for row in await conn.fetch(TENANTS_WITH_TOPICS)),
        kafka_users=tuple(_kafka_user(row) for row in await conn.fetch(KAFKA_USERS)),
    )


async def read_unapplied(conn: Connection) -> dict[str, str]:
    return {row["job_id"]: row["fact"] for row in await conn.fetch(UNAPPLIED_FACTS)}


def _attempts(rows: Iterable[asyncpg.Record]) -> frozenset[AttemptId]:
    return frozenset((row["job_id"], row["attempt"]) for row in rows)


def _checkpoint(row: asyncpg.Record) -> Checkpoint:
    bundle = BundleRef(attempt=row["attempt"], step=row["step"], manifest_sha256=row["manifest_sha256"])
    return Checkpoint(row["job_id"], bundle, row["state"])


def _model(row: asyncpg.Record) -> ModelVersion:
    columns = dict(row)
    bundle = BundleRef(
        attempt=columns.pop("bundle_attempt"),
        step=columns.pop("bundle_step"),
        manifest_sha256=columns.pop("bundle_manifest_sha256"),
    )
    return ModelVersion(bundle=bundle, **columns)


def _route(row: asyncpg.Record) -> Route:
    columns = dict(row)
    replicas = tuple((replica_id, incarnation) for replica_id, incarnation in columns.pop("replicas"))
    return Route(replicas=replicas, **columns)


def _replica(row: asyncpg.Record) -> Replica:
    return Replica(row["replica_id"], row["incarnation"], row["phase"], frozenset(row["loaded"]))


def _kafka_user(row: asyncpg.Record) -> KafkaUser:
    return KafkaUser(row["name"], tuple(row["reads"]), tuple(row["writes"]), row["state"])
