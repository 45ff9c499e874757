"""dataset.commands and dataset.events."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.base import DatasetId, Message, Sha256, TenantName, Value
from schemas.specification import DatasetSpec


class SubmitDataset(Message):
    """Validate, deduplicate, check, tokenise and pack a file for one base model."""

    keyed_by = "dataset_id"
    dataset_id: DatasetId
    """Id of this request, `ds-…`; jobs name it. Several requests may end in one version."""
    tenant: TenantName
    spec: DatasetSpec


class DeleteDataset(Message):
    """Delete the bytes of a version once no attempt runs or is evaluated on it."""

    keyed_by = "dataset_version"
    dataset_version: Sha256
    tenant: TenantName


class DatasetFact(Message):
    keyed_by = "dataset_id"
    dataset_id: DatasetId
    """The SubmitDataset that this answers."""
    tenant: TenantName


class DatasetAccepted(DatasetFact):
    """The request is admissible and its validation has begun."""

    base_sha: Sha256


class DatasetReady(DatasetFact):
    """The version exists in S3 and is immutable."""

    dataset_version: Sha256
    manifest_sha256: Sha256
    base_sha: Sha256
    template_sha256: Sha256
    counts: DatasetCounts
    benchmarks: dict[str, Sha256]
    """Digest of each registered benchmark that the rows were checked against, by name."""
    suites: dict[str, Sha256]
    """Digest of each safety suite registered at that time, by name."""
    files: DatasetFiles | None = None
    """sha256 of the files that it was made of; a job on it names the same. None where an older writer did not say."""


FileRole = Literal["training", "validation", "holdout", "safety_mix"]
"""What a file is to its dataset."""


class RowProblem(Value):
    file: FileRole | None = None
    """The file with the problem; None where an older writer did not say."""
    line: Annotated[int, Field(description="1-based line of the file")]
    field: str
    """Path of the field in the row."""
    rule: str
    """Name of the rule, for example `chat.role_order`."""
    found: str
    """Text of the field."""
    fix: str
    """What to do about it."""


class DatasetRejected(DatasetFact):
    """No version was made of these files."""

    code: str
    """Stable word for machines, for example `too_many_bad_rows`, `wrong_format`, `empty`."""
    message: str
    """Why, and what to change."""
    problems: tuple[RowProblem, ...] = ()
    """The first problems, those of the training file before others; all are in the report."""
    report_key: str | None = None
    """Key of the whole report in the object store; None where there is none."""


class DatasetDeleted(Message):
    """The bytes of the version are gone; its digest stays in the lineage.

    Where it was asked for very often, several of these name a part of the requests each.
    """

    keyed_by = "dataset_version"
    dataset_version: Sha256
    tenant: TenantName
    dataset_ids: tuple[str, ...]
    """Requests that had ended in this version."""
