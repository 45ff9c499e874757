"""Breaking a live stack by hand, so that a checker that finds nothing is known to have looked."""

from collections import Counter
from uuid import uuid4

import asyncpg

from deploy.local.stack import Stack
from ops.doctor.history import History
from schemas.base import BundleRef, FailureClass
from schemas.job import JobRequeued
from schemas.topics import JOB_COMMANDS, JOB_EVENTS, TRAINING_EVENTS
from schemas.training import BundleKind, CheckpointWritten
from shared.clock import utc_now
from shared.storage.s3 import S3ObjectStore
from tests.integration.voices import voices
from tests.waiting import until

NOWHERE = BundleRef(attempt=1, step=999_999, manifest_sha256="0" * 64)

UNSENT = """
    INSERT INTO tracker.outbox (event_id, topic, aggregate_id, sequence, type, headers, value, created_at)
    SELECT $1, topic, 'nobody', 1, type, headers, value, clock_timestamp() - interval '1 hour'
      FROM tracker.outbox LIMIT 1"""
UNAPPLIED = "DELETE FROM scheduler.inbox WHERE topic = 'job.commands' AND event_id = $1"
UNTRACED = "UPDATE registry.model_version SET config_hash = repeat('0', 64)"
UNDEAD = """
    UPDATE scheduler.job SET state = 'running'
     WHERE id = (SELECT min(id) FROM scheduler.job WHERE state = 'succeeded')"""
UNFREED = "UPDATE scheduler.attempt SET freed_at = NULL"
UNFIRED = """
    INSERT INTO scheduler.timer (type, payload, fires_at)
    VALUES ('Nobody', '{}', clock_timestamp() - interval '1 hour')"""
UNWANTED = (
    "UPDATE serving_controller.replica SET loaded = loaded || ARRAY['nobody@nothing'] WHERE phase = 'ready'"
)

UNKNOWN_TO_THE_BROKER = """
    INSERT INTO accounts.kafka_user (name, tenant, reads, writes, nonce, state, revision)
    VALUES ('subscriber-nobody', NULL, ARRAY['job.events'], '{}', repeat('0', 32), 'active', 1)"""
NOT_WANTED = "DELETE FROM serving_controller.wanted"
KEPT_FOR_EVER = "DELETE FROM checkpoint_watcher.timer WHERE type = 'JobDue'"
APPLIED_WITHOUT_A_COPY = """
    UPDATE gateway.position SET sequence = sequence + 1 WHERE topic = 'job.events' AND aggregate_id = $1"""

HAS_READY = "SELECT true FROM serving_controller.replica WHERE phase = 'ready' LIMIT 1"

BROKEN = {
    "I1",
    "I2",
    "I3",
    "I4",
    "I5",
    "I6",
    "I7",
    "I8",
    "I9",
    "I10",
    "I11",
    "I13",
    "I15",
    "I16",
    "I17",
    "I18",
}
"""What is then to be found. The audit's own tests cut topics, which would stop the services."""


async def break_everything(stack: Stack, history: History) -> None:
    await _until_ready(stack)
    await stack.stop("serving_controller")  # it would put its own table right again
    await stack.stop("gateway")  # it would copy what is forged
    await _break_tables(stack, history)
    await _break_store(stack, history)
    await _forge(stack, history, max(history.snapshot.jobs))
    await _execute(stack, APPLIED_WITHOUT_A_COPY, max(history.snapshot.jobs))


async def _until_ready(stack: Stack) -> None:
    """A replica, without which nothing could be loaded: the last blow may have hit it."""
    conn = await asyncpg.connect(stack.postgres_dsn("operator"))
    try:
        await until(lambda: conn.fetchval(HAS_READY), "a replica to be ready")
    finally:
        await conn.close()


async def _break_tables(stack: Stack, history: History) -> None:
    await _execute(stack, UNSENT, uuid4().hex)
    await _execute(stack, UNAPPLIED, _id_of_a_command(history))
    for statement in (UNTRACED, UNDEAD, UNFREED, UNFIRED, UNWANTED):
        await _execute(stack, statement)
    for statement in (UNKNOWN_TO_THE_BROKER, NOT_WANTED, KEPT_FOR_EVER):
        await _execute(stack, statement)


def _id_of_a_command(history: History) -> str:
    """Of the type that the scheduler applied most of: of a type of which it applied none it may know nothing."""
    inbox = history.kernels["scheduler"].inbox
    applied = [each for each in history.of_topic(JOB_COMMANDS.name) if (each.topic, each.event_id) in inbox]
    ((commonest, _),) = Counter(each.type for each in applied).most_common(1)
    return next(each.event_id for each in applied if each.type == commonest)


async def _execute(stack: Stack, statement: str, *arguments: str) -> None:
    conn = await asyncpg.connect(stack.postgres_dsn("postgres"))
    try:
        await conn.execute(statement, *arguments)
    finally:
        await conn.close()


async def _break_store(stack: Stack, history: History) -> None:
    key = stack.s3_credentials("root")
    objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
    manifest = next(iter(history.store.manifests.values()))
    await objects.delete([manifest.parts[0].key])


async def _forge(stack: Stack, history: History, job_id: str) -> None:
    """As somebody who stole the passwords of two services."""
    who = {"job_id": job_id, "tenant": history.snapshot.jobs[job_id].tenant}
    async with voices(stack) as voice:
        for topic, writer in ((JOB_EVENTS, "scheduler"), (TRAINING_EVENTS, "trainer_agent")):
            last = history.kernels[writer].sequences.get((topic.name, job_id), 0)
            voice._sequences[topic.name, job_id] = last
        requeued = JobRequeued(
            **who,
            attempt=7,
            failure_class=FailureClass.INFRA,
            resume=NOWHERE,
            not_before=utc_now(),
            message="forged",
        )
        written = CheckpointWritten(**who, attempt=0, bundle=NOWHERE, kind=BundleKind.PERIODIC, metrics={})
        await voice.say("scheduler", requeued)
        await voice.say("trainer_agent", written)
