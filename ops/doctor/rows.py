"""SQL of the doctor: the kernel's tables of every schema, and of each service what others rely on."""

import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any

import asyncpg

from ops.doctor.history import (
    AttemptId,
    Checkpoint,
    Evaluation,
    Generation,
    Job,
    KafkaUser,
    Kernel,
    ModelVersion,
    Node,
    Parked,
    Replica,
    Route,
    Row,
    Snapshot,
    Waiting,
    Wanted,
)
from schemas.base import BundleRef, FileRef
from schemas.topics import SERVICES
from shared.postgres.database import Connection

PREFETCH = 2_000
"""Rows of one fetch; a schema's tables may be longer than memory likes at once."""

SCHEMAS = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'outbox' AND table_schema = ANY($1)"
OUTBOX = """
    SELECT event_id, outbox.topic, outbox.aggregate_id, sequence, type, sha256(value) AS digest,
           headers ->> 'ce_time' AS time, coalesce(headers ->> 'ce_causationid', '') AS causation_id, created_at,
           NOT EXISTS (SELECT FROM {schema}.unpublished WHERE unpublished.id = outbox.id) AS is_published,
           coalesce(detail, '') AS set_aside
      FROM {schema}.outbox LEFT JOIN {schema}.set_aside USING (id) ORDER BY id"""
SEQUENCES = "SELECT topic, aggregate_id, last FROM {schema}.sequence"
INBOX = "SELECT topic, event_id, payload_sha256 FROM {schema}.inbox"
POSITIONS = "SELECT topic, aggregate_id, sequence FROM {schema}.position"
WAITING = 'SELECT topic, partition, "offset", event_id, expires_at FROM {schema}.waiting'
PARKED = 'SELECT id, topic, partition, "offset", event_id, reason, detail, state FROM {schema}.parked'
TIMERS_DUE = "SELECT type, fires_at FROM {schema}.timer WHERE fires_at < clock_timestamp() ORDER BY fires_at"
TASKS_SET_ASIDE = """
    SELECT kind, key, last_error FROM {schema}.task WHERE set_aside_at IS NOT NULL ORDER BY set_aside_at"""
TASKS_AWAY = """
    SELECT kind, key, away_since, last_error FROM {schema}.task
     WHERE away_since IS NOT NULL AND set_aside_at IS NULL ORDER BY away_since"""
TENANTS = "SELECT name FROM gateway.tenant ORDER BY name"

JOBS = "SELECT id, tenant, state, attempt, config_hash FROM scheduler.job"
UNAPPLIED = """
    SELECT job.id, format('dataset %s is %s', dataset.dataset_id, dataset.state) AS known
      FROM scheduler.job JOIN scheduler.dataset USING (dataset_id)
     WHERE job.state = 'validating' AND dataset.state <> 'accepted'
     UNION ALL
    SELECT job.id, format('serving has answered for slot %s, generation %s', slot, generation)
      FROM scheduler.job JOIN scheduler.deployment USING (tenant)
     WHERE job.state = 'evaluating'
       AND (evaluation -> 'passed')::boolean AND (evaluation -> 'promoted')::boolean
       AND slot = evaluation -> 'approval' ->> 'slot'
       AND generation >= (evaluation -> 'approval' -> 'generation')::bigint"""
BOOKED = "SELECT job_id, number FROM scheduler.attempt WHERE freed_at IS NULL"
TRAINING = """
    SELECT job_id, number FROM trainer_agent.attempt
     WHERE state <> 'closed' AND EXISTS (
           SELECT FROM trainer_agent.runner
            WHERE runner.job_id = attempt.job_id AND runner.number = attempt.number)"""
HELD = "SELECT job_id, number FROM provisioner.attempt WHERE state NOT IN ('refused', 'released')"
NODES = """
    SELECT node_id, job_id, number, pool, allocated_at FROM provisioner.node WHERE released_at IS NULL"""
POOLS = "SELECT name, nodes FROM provisioner.pool"
CHECKPOINTS = "SELECT job_id, attempt, step, manifest_sha256, state FROM checkpoint_watcher.checkpoint"
WATCHED = "SELECT job_id, attempt, is_open FROM checkpoint_watcher.attempt"
SWEEPS = """
    SELECT payload ->> 'job_id' AS job_id, (payload ->> 'attempt')::int AS number
      FROM checkpoint_watcher.timer WHERE type = 'SweepDue'
     UNION
    SELECT payload ->> 'job_id', (payload ->> 'attempt')::int FROM checkpoint_watcher.task
     WHERE kind = 'SweepAttempt'"""
DATASETS = "SELECT id, state, ready ->> 'manifest_sha256' AS sha256 FROM ingest.version"
BASE_MODELS = "SELECT base_sha, manifest_sha256 FROM registry.base_version"
MODELS = """
    SELECT model_id, tenant, job_id, digest, base_sha, dataset_version, config_hash, bundle_attempt, bundle_step,
           bundle_manifest_sha256, stage, eval_id, archived_at IS NOT NULL AS is_archived
      FROM registry.model_version"""
EVALUATIONS = """
    SELECT eval_id, state, job_id, version ->> 'digest' AS digest, version ->> 'base_sha' AS base_sha
      FROM evaluator.evaluation"""
FILES = """
    SELECT file_id, sha256, size_bytes FROM gateway.file WHERE state IN ('uploaded', 'deleting')"""
REMOVED_BYTES = """
    SELECT sha256 FROM gateway.file AS gone
     WHERE state = 'deleted' AND NOT EXISTS (
           SELECT FROM gateway.needed_bytes WHERE needed_bytes.sha256 = gone.sha256)
     GROUP BY sha256 HAVING max(removed_at) < $1 AND NOT EXISTS (
           SELECT FROM gateway.file WHERE file.sha256 = gone.sha256 AND file.state <> 'deleted')"""
GENERATIONS = "SELECT tenant, slot, number, model_id, digest, outcome FROM registry.slot_generation"
SLOTS = "SELECT tenant, name, state, desired, route FROM serving_controller.slot"
WANTED = "SELECT tenant, slot, servable ->> 'digest' AS digest FROM serving_controller.wanted"
EXPIRING = """
    SELECT payload ->> 'job_id' AS job_id FROM checkpoint_watcher.timer WHERE type = 'JobDue'
     UNION SELECT payload ->> 'job_id' FROM checkpoint_watcher.task WHERE kind = 'ExpireJob'"""
WITH_TOPICS = "SELECT name FROM gateway.tenant WHERE has_topics"
KAFKA_USERS = "SELECT name, reads, writes, state FROM accounts.kafka_user ORDER BY name"
RETIRED = "SELECT served_name FROM serving_controller.retired"
REPLICAS = "SELECT replica_id, incarnation, group_name, phase, loaded FROM serving_controller.replica"


async def read_schemas(conn: Connection) -> tuple[str, ...]:
    """The services that have tables here."""
    present = {row["table_schema"] for row in await conn.fetch(SCHEMAS, list(SERVICES))}
    return tuple(service for service in SERVICES if service in present)


async def read_tenants(conn: Connection) -> list[str]:
    return [row["name"] for row in await conn.fetch(TENANTS)]


async def read_kernel(conn: Connection, schema: str) -> Kernel:
    async def each(query: str) -> AsyncIterator[asyncpg.Record]:
        async for row in conn.cursor(query.format(schema=schema), prefetch=PREFETCH):
            yield row

    return Kernel(
        outbox=tuple([_outbox_row(row) async for row in each(OUTBOX)]),
        sequences={_story(row): row["last"] async for row in each(SEQUENCES)},
        inbox={
            (sys.intern(row["topic"]), row["event_id"]): row["payload_sha256"] async for row in each(INBOX)
        },
        positions={_story(row): row["sequence"] async for row in each(POSITIONS)},
        waiting=tuple([Waiting(*row) async for row in each(WAITING)]),
        parked=tuple([_parked(row) async for row in each(PARKED)]),
        timers_due=tuple([(row["type"], row["fires_at"]) async for row in each(TIMERS_DUE)]),
        tasks_set_aside=tuple([tuple(row) async for row in each(TASKS_SET_ASIDE)]),
        tasks_away=tuple([tuple(row) async for row in each(TASKS_AWAY)]),
    )


async def read_snapshot(conn: Connection, *, began_at: datetime) -> Snapshot:
    """began_at: before anything was read; what was removed later may stand in what was read."""
    slots = await conn.fetch(SLOTS)
    routes = tuple(_route(row) for row in slots if row["route"])
    desired = [row["desired"] for row in slots if row["state"] in ("pending", "ready")]
    retired = {row["served_name"] for row in await conn.fetch(RETIRED)}
    return Snapshot(
        jobs={row["id"]: Job(*row) for row in await conn.fetch(JOBS)},
        unapplied=await read_unapplied(conn),
        booked=_attempts(await conn.fetch(BOOKED)),
        training=_attempts(await conn.fetch(TRAINING)),
        held=_attempts(await conn.fetch(HELD)),
        nodes=tuple(Node(*row) for row in await conn.fetch(NODES)),
        pools={row["name"]: row["nodes"] for row in await conn.fetch(POOLS)},
        checkpoints=tuple(_checkpoint(row) for row in await conn.fetch(CHECKPOINTS)),
        sweeps_due=_attempts(await conn.fetch(SWEEPS)),
        watched={row["job_id"]: (row["attempt"], row["is_open"]) for row in await conn.fetch(WATCHED)},
        datasets={row["id"]: (row["state"], row["sha256"]) for row in await conn.fetch(DATASETS)},
        base_models={row["base_sha"]: row["manifest_sha256"] for row in await conn.fetch(BASE_MODELS)},
        models=tuple(_model(row) for row in await conn.fetch(MODELS)),
        evaluations={row["eval_id"]: Evaluation(*row) for row in await conn.fetch(EVALUATIONS)},
        files=tuple(FileRef.model_validate(dict(row)) for row in await conn.fetch(FILES)),
        removed_bytes=frozenset(row["sha256"] for row in await conn.fetch(REMOVED_BYTES, began_at)),
        generations=tuple(Generation(*row) for row in await conn.fetch(GENERATIONS)),
        routes=routes,
        expected_loaded=frozenset(
            {route.served_name for route in routes} | retired | set(map(_served_name, desired))
        ),
        replicas=tuple(_replica(row) for row in await conn.fetch(REPLICAS)),
        wanted_of_slots=tuple(Wanted(*row) for row in await conn.fetch(WANTED)),
        expiring=frozenset(row["job_id"] for row in await conn.fetch(EXPIRING)),
        tenants=frozenset(row["name"] for row in await conn.fetch(WITH_TOPICS)),
        kafka_users=tuple(_kafka_user(row) for row in await conn.fetch(KAFKA_USERS)),
    )


async def read_unapplied(conn: Connection) -> dict[str, str]:
    return {row["id"]: row["known"] for row in await conn.fetch(UNAPPLIED)}


def _outbox_row(row: asyncpg.Record) -> Row:
    return Row(
        event_id=row["event_id"],
        topic=sys.intern(row["topic"]),
        key=sys.intern(row["aggregate_id"]),
        sequence=row["sequence"],
        type=sys.intern(row["type"]),
        sha256=row["digest"],
        time=datetime.fromisoformat(row["time"]),
        causation_id=row["causation_id"],
        created_at=row["created_at"],
        is_published=row["is_published"],
        set_aside=row["set_aside"],
    )


def _story(row: asyncpg.Record) -> tuple[str, str]:
    return sys.intern(row["topic"]), sys.intern(row["aggregate_id"])


def _parked(row: asyncpg.Record) -> Parked:
    columns = dict(row)
    is_open = columns.pop("state") == "parked"
    return Parked(columns.pop("id"), **columns, is_open=is_open)


def _attempts(rows: Iterable[asyncpg.Record]) -> frozenset[AttemptId]:
    return frozenset((row["job_id"], row["number"]) for row in rows)


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
    route, servable = row["route"], row["route"]["servable"]
    return Route(
        tenant=row["tenant"],
        slot=row["name"],
        generation=route["generation"],
        model_id=servable["model_id"],
        digest=servable["digest"],
        base_sha=servable["base_sha"],
        served_name=_served_name(servable),
        is_adapter=servable["kind"] == "adapter",
        replicas=tuple((each["replica_id"], each["incarnation"]) for each in route["addresses"]),
    )


def _served_name(servable: Mapping[str, Any]) -> str:
    return f"{servable['full_name']}@{servable['digest']}"


def _kafka_user(row: asyncpg.Record) -> KafkaUser:
    return KafkaUser(row["name"], tuple(row["reads"]), tuple(row["writes"]), row["state"])


def _replica(row: asyncpg.Record) -> Replica:
    columns = dict(row)
    loaded = frozenset(columns.pop("loaded"))
    return Replica(group=columns.pop("group_name"), loaded=loaded, **columns)
