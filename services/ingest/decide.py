"""What follows from a request, a verdict or a deletion. Pure: the clock, ids and I/O stay outside."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from schemas.artifacts import files_of
from schemas.base import Message
from schemas.dataset import (
    DatasetAccepted,
    DatasetDeleted,
    DatasetReady,
    DatasetRejected,
    DeleteDataset,
    SubmitDataset,
)
from schemas.specification import DatasetSpec, canonical_sha256
from services.ingest.model import BaseModel, Ready, Rejection, Request, Source, Version, VersionState
from services.ingest.pipeline.packing import PART_TOKENS
from services.ingest.pipeline.rules import RULES_VERSION
from shared.errors import Refused

MAX_ROW_BYTES = 64 * 1024 * 1024
IDS_OF_A_FACT = 1_000
"""Number of dataset ids in one fact, of at most 40 characters each: a third of what a fact may have in bytes."""
PACKING = {"algorithm": "best-fit decreasing", "part_tokens": PART_TOKENS}


def version_id(
    tenant: str,
    spec: DatasetSpec,
    template_sha256: str,
    sources: Iterable[Source],
    *,
    answer_tokens: int | None = None,
    rules: int = RULES_VERSION,
) -> str:
    """sha256 over all that decides a version's bytes: equal ids are equal datasets.

    `answer_tokens` is part of it where there are answers of a holdout to compare with it.
    """
    mix = spec.safety_mix
    budget = {"answer_tokens": answer_tokens} if spec.holdout and answer_tokens is not None else {}
    return canonical_sha256(
        {
            "tenant": tenant,
            "training": spec.training_file.sha256,
            "validation": spec.validation_file and spec.validation_file.sha256,
            "holdout": spec.holdout and spec.holdout.sha256,
            "safety_mix": mix and {"file": mix.file.sha256, "share": mix.share},
            "base_sha": spec.base_sha,
            "template_sha256": template_sha256,
            "policy": spec.policy.model_dump(mode="json"),
            "method": spec.method,
            "packing": PACKING,
            "rules": rules,
            "sources": sorted((source.kind, source.name, source.digest) for source in sources),
            **budget,
        }
    )


@dataclass(frozen=True)
class Submission:
    """What follows from a request. `version` is new or changed where validation must start, else as it was."""

    version: Version
    request: Request
    events: tuple[Message, ...]
    starts: bool


def on_submit(
    command: SubmitDataset,
    base: BaseModel,
    sources: Sequence[Source],
    *,
    known: Version | None,
    asked: Request | None,
    answer_tokens: int | None = None,
) -> Submission:
    """Attach the request to its version: answer it at once, or have the version validated.

    known: the version that the request asks for; asked: what this dataset id asked for before.
    Raises: Refused.
    """
    _check(command, base)
    version = known or _new_version(command, base, sources, answer_tokens)
    _check_request(command, version, asked)
    starts = known is None or known.state in {VersionState.FAILED, VersionState.DELETED}
    if known is not None and starts:
        version = known.to(VersionState.VALIDATING, ready=None, rejection=None)
    elif version.ready is not None:
        # Equal ids are equal files.
        version = replace(version, ready=version.ready.model_copy(update={"files": files_of(command.spec)}))
    request = Request(command.dataset_id, command.tenant, version.id)
    answer = answer_of(version, request)
    accepted = () if asked else (_accepted(command),)
    return Submission(
        version,
        replace(request, is_answered=answer is not None),
        (*accepted, answer) if answer else accepted,
        starts,
    )


def answer_of(version: Version, request: Request) -> Message | None:
    """The fact that answers a request; None while there is none."""
    if version.ready is not None and version.state is VersionState.READY:
        return _ready(version, version.ready, request)
    if version.rejection is not None and version.state in {VersionState.REJECTED, VersionState.FAILED}:
        return _rejected(version.rejection, request)
    if version.state is VersionState.DELETING:
        message = f"dataset version {version.id} is being deleted: submit it again once it is"
        return _rejected(Rejection(code="being_deleted", message=message), request)
    return None


@dataclass(frozen=True)
class Verdict:
    version: Version
    events: tuple[Message, ...]


def on_validated(version: Version, outcome: Ready | Rejection, requests: Sequence[Request]) -> Verdict:
    """Close the validation, and answer every request that waits for it."""
    if isinstance(outcome, Ready):
        version = version.to(VersionState.READY, ready=outcome)
    else:
        state = VersionState.REJECTED if outcome.is_final else VersionState.FAILED
        version = version.to(state, rejection=outcome)
    answers = (answer_of(version, request) for request in requests if not request.is_answered)
    return Verdict(version, tuple(answer for answer in answers if answer))


def deletions(version: Version, dataset_ids: Sequence[str]) -> list[DatasetDeleted]:
    """Return the facts of the deletion, each with as many dataset ids as fit; at least one, for a version without
    any."""
    parts = [
        dataset_ids[index : index + IDS_OF_A_FACT] for index in range(0, len(dataset_ids), IDS_OF_A_FACT)
    ]
    return [
        DatasetDeleted(dataset_version=version.id, tenant=version.tenant, dataset_ids=tuple(part))
        for part in parts or [()]
    ]


def on_delete(command: DeleteDataset, version: Version | None) -> Version:
    """Mark the version. Raises Refused, with the same words for a foreign version as for none."""
    if version is None or version.tenant != command.tenant:
        raise Refused(
            "unknown_dataset",
            f"there is no dataset version {command.dataset_version} of tenant {command.tenant}",
            param="dataset_version",
        )
    if version.state in {VersionState.DELETING, VersionState.DELETED}:
        raise Refused(
            "already_deleted", f"dataset version {version.id} is {version.state}", param="dataset_version"
        )
    if version.state is VersionState.VALIDATING:
        raise Refused(
            "validating",
            f"dataset version {version.id} is being validated: delete it afterwards",
            param="dataset_version",
        )
    return version.to(VersionState.DELETING)


def _check(command: SubmitDataset, base: BaseModel) -> None:
    spec, policy = command.spec, command.spec.policy
    if policy.max_seq_length != "auto" and policy.max_seq_length > base.context_tokens:
        raise Refused(
            "window_too_long",
            f"policy.max_seq_length is {policy.max_seq_length}, {spec.base_model} has a context of "
            f"{base.context_tokens} tokens",
            param="policy.max_seq_length",
        )
    if policy.max_row_bytes > MAX_ROW_BYTES:
        raise Refused(
            "row_too_long",
            f"policy.max_row_bytes is {policy.max_row_bytes}, expected at most {MAX_ROW_BYTES}",
            param="policy.max_row_bytes",
        )


def _check_request(command: SubmitDataset, version: Version, asked: Request | None) -> None:
    if asked is not None and (asked.tenant, asked.version) != (command.tenant, version.id):
        raise Refused(
            "dataset_id_taken",
            f"dataset id {command.dataset_id} stands for another dataset already",
            param="dataset_id",
        )


def _new_version(
    command: SubmitDataset, base: BaseModel, sources: Sequence[Source], answer_tokens: int | None
) -> Version:
    return Version(
        id=version_id(
            command.tenant, command.spec, base.template_sha256, sources, answer_tokens=answer_tokens
        ),
        tenant=command.tenant,
        state=VersionState.VALIDATING,
        base_sha=base.base_sha,
        benchmarks={source.name: source.digest for source in sources if source.kind == "benchmark"},
        suites={source.name: source.digest for source in sources if source.kind == "suite"},
    )


def _accepted(command: SubmitDataset) -> Message:
    return DatasetAccepted(
        dataset_id=command.dataset_id, tenant=command.tenant, base_sha=command.spec.base_sha
    )


def _ready(version: Version, ready: Ready, request: Request) -> Message:
    return DatasetReady(
        dataset_id=request.dataset_id,
        tenant=version.tenant,
        dataset_version=version.id,
        manifest_sha256=ready.manifest_sha256,
        base_sha=version.base_sha,
        template_sha256=ready.template_sha256,
        counts=ready.counts,
        benchmarks=version.benchmarks,
        suites=version.suites,
        files=ready.files,
    )


def _rejected(rejection: Rejection, request: Request) -> Message:
    return DatasetRejected(
        dataset_id=request.dataset_id,
        tenant=request.tenant,
        code=rejection.code,
        message=rejection.message,
        problems=rejection.problems,
        report_key=rejection.report_key,
    )
