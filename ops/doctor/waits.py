"""I14: what waits without a deadline of its own does not wait for long, or a person hears of it."""

from collections.abc import Iterator
from datetime import datetime

from ops.doctor.finding import Finding
from ops.doctor.history import Entry, History, Limits
from schemas.dataset import DatasetAccepted, DatasetDeleted, DatasetReady, DatasetRejected
from schemas.deployment import DeploymentFailed, DeploymentReady, DeploymentStopped
from schemas.model import DeploymentApproved, DeploymentWithdrawn

ANSWERS = (DeploymentReady, DeploymentFailed, DeploymentStopped)


def answered(history: History, limits: Limits) -> Iterator[Finding]:
    """I14: every dataset and deployment is answered, every absence ends, every message finds its parent."""
    yield from _datasets(history, limits)
    yield from _deployments(history, limits)
    yield from _tasks(history, limits)
    yield from _messages(history, limits)


def _datasets(history: History, limits: Limits) -> Iterator[Finding]:
    waiting: dict[str, Entry] = {}
    for entry in history.of_type(DatasetAccepted, DatasetReady, DatasetRejected, DatasetDeleted):
        match entry.message:
            case DatasetAccepted(dataset_id=dataset_id):
                waiting.setdefault(dataset_id, entry)
            case DatasetReady(dataset_id=dataset_id) | DatasetRejected(dataset_id=dataset_id):
                waiting.pop(dataset_id, None)
            case DatasetDeleted(dataset_ids=dataset_ids):
                for dataset_id in dataset_ids:
                    waiting.pop(dataset_id, None)
    for dataset_id, entry in waiting.items():
        yield from _wait(f"dataset {dataset_id}", entry.time, "its validation", history, limits)


def _deployments(history: History, limits: Limits) -> Iterator[Finding]:
    """Judge only the newest desired state of each slot: an older one needs no answer."""
    newest: dict[str, Entry] = {}
    for entry in history.of_type(DeploymentApproved, DeploymentWithdrawn):
        message = entry.message
        assert isinstance(message, DeploymentApproved | DeploymentWithdrawn), "of_type() filters"
        before = newest.get(message.slot)
        if before is None or before.message.generation < message.generation:  # type: ignore[union-attr]
            newest[message.slot] = entry
    answers = {
        (entry.message.slot, entry.message.generation)
        for entry in history.of_type(*ANSWERS)
        if isinstance(entry.message, ANSWERS)
    }
    for slot, entry in newest.items():
        message = entry.message
        if isinstance(message, DeploymentApproved) and (slot, message.generation) not in answers:
            where = f"slot {slot}, generation {message.generation}"
            yield from _wait(where, entry.time, "an answer of the serving controller", history, limits)


def _tasks(history: History, limits: Limits) -> Iterator[Finding]:
    for service, kernel in history.kernels.items():
        for kind, key, since, error in kernel.tasks_away:
            yield from _wait(f"{service}.task {kind} {key}", since, f"what is away: {error}", history, limits)


def _messages(history: History, limits: Limits) -> Iterator[Finding]:
    """Judge waiting messages: at the end of their time they are parked, unless their service is behind in reading."""
    for service, kernel in history.kernels.items():
        for each in kernel.waiting:
            where = f"{service}.waiting {each.topic}/{each.partition} at {each.offset}"
            yield from _wait(where, each.expires_at, "its parent, past the end of its time", history, limits)


def _wait(
    where: str, since: datetime | None, what: str, history: History, limits: Limits
) -> Iterator[Finding]:
    if since is None or since < history.read_at - limits.stalled_after:
        expected = f"an end within {limits.stalled_after.total_seconds():g} s"
        yield Finding(where, f"waits since {since or 'the topics begin'} for {what}", expected)
