"""The records of all topics, as far as a check needs them."""

import hashlib
import sys
from collections.abc import Iterable

from ops.doctor.history import Entry
from schemas.base import Message
from schemas.dataset import DatasetAccepted, DatasetDeleted, DatasetReady, DatasetRejected
from schemas.deployment import DeploymentFailed, DeploymentReady, DeploymentStopped
from schemas.model import BaseModelRegistered, DeploymentApproved, DeploymentWithdrawn, ModelRegistered
from schemas.topics import CHECKPOINT_EVENTS, JOB_EVENTS, NODE_EVENTS, TRAINING_EVENTS
from shared.messaging.delivery import Delivery, Unreadable
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader

KEPT: tuple[type[Message], ...] = (
    *(message for topic in (JOB_EVENTS, NODE_EVENTS, TRAINING_EVENTS) for message in topic.messages),
    *CHECKPOINT_EVENTS.messages,
    *(DatasetAccepted, DatasetReady, DatasetRejected, DatasetDeleted),
    *(DeploymentApproved, DeploymentWithdrawn, DeploymentReady, DeploymentFailed, DeploymentStopped),
    BaseModelRegistered,
    ModelRegistered,
)
"""Types whose payload an invariant reads."""
SOURCE = "/retune/"


async def read_topics(login: Login, topics: Iterable[str]) -> tuple[Entry, ...]:
    async with TopicReader(login, topics) as reader:
        entries = [entry_of(delivery) async for delivery in reader.to_the_end()]
    return tuple(sorted(entries, key=lambda entry: (entry.topic, entry.partition, entry.offset)))


def entry_of(delivery: Delivery | Unreadable) -> Entry:
    return _readable(delivery) if isinstance(delivery, Delivery) else _unreadable(delivery)


def _readable(delivery: Delivery) -> Entry:
    """Keep of a record what checks need; a copy is not judged by what its original is judged by."""
    record, envelope, is_copy = delivery.record, delivery.envelope, delivery.topic.is_copy
    source = delivery.topic.writers[0] if is_copy else envelope.source.removeprefix(SOURCE).partition("/")[0]
    job_id = "" if is_copy else str(getattr(delivery.message, "job_id", None) or "")
    return Entry(
        topic=sys.intern(record.topic),
        partition=record.partition,
        offset=record.offset,
        key=sys.intern(envelope.key),
        event_id=envelope.id,
        type=sys.intern(envelope.type),
        sequence=envelope.sequence if delivery.topic.is_event_stream else None,
        sha256=hashlib.sha256(record.value or b"").digest(),
        writer=sys.intern(source),
        time=envelope.time,
        job_id=sys.intern(job_id),
        tenant="" if is_copy else sys.intern(str(getattr(delivery.message, "tenant", None) or "")),
        message=delivery.message if isinstance(delivery.message, KEPT) and not is_copy else None,
    )


def _unreadable(delivery: Unreadable) -> Entry:
    record = delivery.record
    return Entry(
        topic=sys.intern(record.topic),
        partition=record.partition,
        offset=record.offset,
        key=delivery.aggregate_id,
        event_id=delivery.event_id,
        type="",
        sequence=delivery.sequence,
        sha256=hashlib.sha256(record.value or b"").digest(),
        writer="",
        time=None,
    )
