"""Derive what is known of a dataset from ingest's messages."""

from schemas.base import CommandRefused, DatasetRef
from schemas.dataset import DatasetAccepted, DatasetDeleted, DatasetReady, DatasetRejected, SubmitDataset
from services.scheduler.model import SUPERSEDES, Dataset, DatasetState

DatasetEvent = DatasetAccepted | DatasetReady | DatasetRejected | DatasetDeleted | CommandRefused


def datasets_of(event: DatasetEvent) -> tuple[Dataset, ...]:
    """One for each SubmitDataset that the message is about; a refusal of another command is about none."""
    match event:
        case DatasetAccepted():
            return (Dataset(event.dataset_id, event.tenant, DatasetState.ACCEPTED, base_sha=event.base_sha),)
        case DatasetReady():
            return (_ready(event),)
        case DatasetRejected():
            return (
                Dataset(
                    event.dataset_id,
                    event.tenant,
                    DatasetState.REJECTED,
                    event.message,
                    f"dataset_{event.code}",
                ),
            )
        case DatasetDeleted():
            message = f"dataset version {event.dataset_version[:12]} was deleted"
            return tuple(
                Dataset(dataset_id, event.tenant, DatasetState.DELETED, message)
                for dataset_id in event.dataset_ids
            )
        case CommandRefused() if event.command == SubmitDataset.type:
            return (
                Dataset(
                    event.subject_id, event.tenant or "", DatasetState.REFUSED, event.message, event.code
                ),
            )
        case _:
            return ()


def supersedes(dataset: Dataset, known: Dataset | None) -> bool:
    return (known.state if known else None) in SUPERSEDES[dataset.state]


def _ready(event: DatasetReady) -> Dataset:
    return Dataset(
        dataset_id=event.dataset_id,
        tenant=event.tenant,
        state=DatasetState.READY,
        ref=DatasetRef(version=event.dataset_version, manifest_sha256=event.manifest_sha256),
        base_sha=event.base_sha,
        template_sha256=event.template_sha256,
        counts=event.counts,
        benchmarks=event.benchmarks,
        suites=event.suites,
        files=event.files,
    )
