"""From ingest's messages to what is known of a dataset."""

from schemas.base import CommandRefused, DatasetRef
from schemas.dataset import DatasetAccepted, DatasetDeleted, DatasetReady, DatasetRejected, SubmitDataset
from services.scheduler.model import SUPERSEDES, Dataset, DatasetState

News = DatasetAccepted | DatasetReady | DatasetRejected | DatasetDeleted | CommandRefused


def said_by(news: News) -> tuple[Dataset, ...]:
    """One for each SubmitDataset that the message is about; a refusal of another command is about none."""
    match news:
        case DatasetAccepted():
            return (Dataset(news.dataset_id, news.tenant, DatasetState.ACCEPTED, base_sha=news.base_sha),)
        case DatasetReady():
            return (_ready(news),)
        case DatasetRejected():
            return (
                Dataset(
                    news.dataset_id, news.tenant, DatasetState.REJECTED, news.message, f"dataset_{news.code}"
                ),
            )
        case DatasetDeleted():
            message = f"dataset version {news.dataset_version[:12]} was deleted"
            return tuple(
                Dataset(dataset_id, news.tenant, DatasetState.DELETED, message)
                for dataset_id in news.dataset_ids
            )
        case CommandRefused() if news.command == SubmitDataset.type:
            return (
                Dataset(news.subject_id, news.tenant or "", DatasetState.REFUSED, news.message, news.code),
            )
        case _:
            return ()


def supersedes(dataset: Dataset, known: Dataset | None) -> bool:
    return (known.state if known else None) in SUPERSEDES[dataset.state]


def _ready(news: DatasetReady) -> Dataset:
    return Dataset(
        dataset_id=news.dataset_id,
        tenant=news.tenant,
        state=DatasetState.READY,
        ref=DatasetRef(version=news.dataset_version, manifest_sha256=news.manifest_sha256),
        base_sha=news.base_sha,
        template_sha256=news.template_sha256,
        counts=news.counts,
        benchmarks=news.benchmarks,
        suites=news.suites,
        files=news.files,
    )
