"""What a person, or someone for them, asks of a job. Raises Refused where it cannot be done."""

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from schemas import compatibility
from schemas.base import LABEL, BestBundle, BundleRef
from schemas.job import (
    CancelJob,
    JobMessage,
    JobStage,
    JobSubmitted,
    PauseJob,
    ResumeJob,
    RetryJob,
    StopReason,
    SubmitJob,
)
from schemas.lifecycle import TERMINAL, JobState
from services.scheduler.decide import ending
from services.scheduler.decide.admission import STALE_BASE, planned
from services.scheduler.decide.decision import Decision, View
from services.scheduler.decide.stop import ask_to_stop, strengthen
from services.scheduler.decide.transitions import follow
from services.scheduler.model import ATTEMPT_OPEN, Base, Dataset, DatasetState, Job, Stop
from shared.errors import Refused


@dataclass(frozen=True)
class Continued:
    """What a new job continues from, out of another job."""

    resume: BundleRef | None = None
    """The other job's newest checkpoint; None where it, or its stage, begins again."""
    best: BestBundle | None = None
    """The best checkpoint of the other job's run."""
    stage: JobStage | None = None
    """Stage in which the other job was, where it has several."""


FROM_THE_BEGINNING = Continued()


def admit(
    command: SubmitJob,
    existing: Job | None,
    dataset: Dataset | None,
    *,
    later_datasets: tuple[Dataset | None, ...] = (),
    base: Base | None = None,
    trained_by: Job | None = None,
    continued: Continued = FROM_THE_BEGINNING,
    now: datetime,
) -> Job:
    """A job that could run, as far as can be known without its files.

    base: what the base model's name points to; None where nobody has said.
    trained_by: the job that trained what this one starts from; None where there is none.
    continued: what of another job this one continues.
    """
    for param in ("job_id", "dataset_id", "retry_of"):
        _require_id(getattr(command, param), param)
    for dataset_id in command.later_dataset_ids:
        _require_id(dataset_id, "later_dataset_ids")
    _require_dataset_of_each_stage(command)
    if existing is not None:
        raise Refused("job_exists", f"job {command.job_id} exists already", param="job_id")
    _require_current_base(command, base)
    for dataset_id, known in zip(
        (command.dataset_id, *command.later_dataset_ids), (dataset, *later_datasets), strict=False
    ):
        _require_known_files(command, dataset_id, known)
    capabilities = base.capabilities if base else None
    if refusal := compatibility.check(command.spec) or compatibility.check_base(command.spec, capabilities):
        raise Refused(refusal.code, refusal.message, param=refusal.param)
    _require_start(command, trained_by)
    return Job(
        id=command.job_id,
        tenant=command.tenant,
        state=JobState.VALIDATING,
        spec=command.spec,
        dataset_id=command.dataset_id,
        later_dataset_ids=command.later_dataset_ids,
        dataset=dataset,
        later_datasets=later_datasets,
        submitted_at=now,
        retry_of=command.retry_of,
        stage=continued.stage or _first_stage(command),
        verified=frozenset({continued.resume} if continued.resume else ()),
        best=continued.best,
    )


def _first_stage(command: SubmitJob) -> JobStage | None:
    later = len(command.later_dataset_ids)
    return JobStage(number=1, num_stages=later + 1) if later else None


def like(original: Job | None, command: RetryJob) -> SubmitJob:
    """Return the submission that a RetryJob asks for: like a trial, but in no sweep."""
    job = _own(original, command)
    if job.state not in (JobState.FAILED, JobState.CANCELLED):
        raise Refused(
            "not_retryable", f"job {job.id} is {job.state}; expected failed or cancelled", param="job_id"
        )
    _require_id(command.new_job_id, "new_job_id")
    return SubmitJob(
        job_id=command.new_job_id,
        tenant=job.tenant,
        dataset_id=job.dataset_id,
        later_dataset_ids=job.later_dataset_ids,
        spec=job.spec.model_copy(update={"trial": None}),
        retry_of=job.id,
    )


def continued(original: Job | None, command: RetryJob) -> Continued:
    """What the new job continues; nothing where it begins again. Raises Refused where there is no checkpoint."""
    if not command.from_checkpoint:
        return FROM_THE_BEGINNING
    job = _own(original, command)
    newest, plan = job.resume, job.plan
    has_stage_before = job.stage is not None and job.stage.start is not None
    if (newest is None and not has_stage_before) or plan is None:
        message = f"job {job.id} has no verified checkpoint to continue from. Nearest that works: retry it"
        raise Refused("no_checkpoint", f"{message} without from_checkpoint", param="from_checkpoint")
    if newest is not None and newest.step >= job.num_steps:
        message = f"job {job.id} has a checkpoint of its last step, {newest.step}: nothing is left to train"
        raise Refused("nothing_left", message, param="from_checkpoint")
    latest, own = planned(replace(job, plan=None)).config_hash, job.config_hash
    if latest is not None and own is not None and latest != own:
        message = (
            f"job {job.id} would have configuration {latest[:12]} now, its checkpoint is of "
            f"{own[:12]}. Nearest that works: retry it without from_checkpoint"
        )
        raise Refused("other_configuration", message, param="from_checkpoint")
    writer, reader = job.id, command.new_job_id
    return Continued(
        resume=newest and newest.seen_from(writer, reader),
        best=job.best and job.best.seen_from(writer, reader),
        stage=job.stage and job.stage.model_copy(update={"first_attempt": 1}),
    )


def submit(job: Job, view: View) -> Decision:
    """An admitted job, new to us, goes as far as its dataset lets it."""
    return follow(Decision(job, (_job_submitted(job),)), view)


def cancel(stored_job: Job | None, command: CancelJob, view: View) -> Decision:
    job = _not_over(_own(stored_job, command), command)
    reason = StopReason.BUDGET if command.reason == "budget" else StopReason.CANCEL
    if job.state not in ATTEMPT_OPEN:
        return ending.cancelled(job, command.reason)
    deadline = view.now + timedelta(seconds=job.grace_seconds)
    message, is_pruned = f"cancelled ({command.reason})", command.reason == "prune"
    return stop_attempt(job, Stop(reason, view.now, deadline, message, is_pruned=is_pruned), view)


def pause(stored_job: Job | None, command: PauseJob, view: View) -> Decision:
    job = _not_over(_own(stored_job, command), command, JobState.EVALUATING)
    if job.state is JobState.PAUSED:
        return Decision(job)
    if job.state not in ATTEMPT_OPEN:
        return ending.paused(job, command.reason)
    deadline = view.now + timedelta(seconds=job.grace_seconds)
    message = f"paused ({command.reason})"
    stop = Stop(StopReason.PAUSE, view.now, deadline, message, pause_reason=command.reason)
    return stop_attempt(job, stop, view)


def stop_attempt(job: Job, stop: Stop, view: View) -> Decision:
    decision = strengthen(job, stop) if job.state is JobState.STOPPING else ask_to_stop(job, stop, view)
    return follow(decision, view)


def resume(stored_job: Job | None, command: ResumeJob, view: View) -> Decision:
    """Back to validating, and on from there if its dataset is decided."""
    job = _own(stored_job, command)
    if job.state is not JobState.PAUSED:
        raise Refused("not_paused", f"job {job.id} is {job.state}; expected paused", param="job_id")
    if (denial := job.evaluation.denial) and denial.stale_base:
        raise Refused(STALE_BASE, f"job {job.id}: {denial.message}; submit it again", param="job_id")
    decision = follow(Decision(job.to(JobState.VALIDATING)), view)
    if decision.job.state is not JobState.VALIDATING:
        return decision
    return replace(decision, events=(_job_submitted(job),))


def _require_id(identifier: str | None, param: str) -> None:
    """Refuse an id that cannot become a folder, a key and a host name."""
    if identifier is not None and re.fullmatch(LABEL, identifier) is None:
        raise Refused(
            f"bad_{param}",
            f"{param}: found {identifier[:80]!r}, expected at most 40 of a-z, 0-9 and -, with no - at either end",
            param=param,
        )


def _require_current_base(command: SubmitJob, base: Base | None) -> None:
    """What is trained on other files is stale before it is trained."""
    spec = command.spec
    if base is not None and base.sha != spec.base_sha:
        raise Refused(
            STALE_BASE,
            f"base model {spec.base_model} has other files now (sha {base.sha[:12]}) than the job's "
            f"({spec.base_sha[:12]}): submit it again on those",
            param="spec.base_sha",
        )


def _require_start(command: SubmitJob, trained_by: Job | None) -> None:
    """Another tenant's job has trained nothing that this one could know of."""
    start = command.spec.start_from
    if start is None:
        return
    if trained_by is None or trained_by.tenant != command.tenant:
        message = f"spec.start_from.job_id: job {start.job_id} is not known to tenant {command.tenant}"
        raise Refused("unknown_start", message, param="spec.start_from.job_id")
    spec, own = command.spec, trained_by.spec
    if own.base_sha != spec.base_sha:
        message = (
            f"{start.name} was trained on base model {own.base_model} with sha {own.base_sha[:12]}, the job names "
            f"{spec.base_model} with {spec.base_sha[:12]}. Nearest that works: the base model of {start.name}"
        )
        raise Refused("other_base", message, param="spec.base_sha")
    model = trained_by.evaluation.model
    if start.digest is not None and model is not None and model.digest != start.digest:
        message = f"spec.start_from.digest: found {start.digest}, job {start.job_id} has made {model.digest}"
        raise Refused("unknown_start", message, param="spec.start_from.digest")
    if refusal := compatibility.check_start(spec.recipe, own.recipe, start.name):
        raise Refused(refusal.code, f"spec.{refusal.message}", param=f"spec.{refusal.param}")


def _require_dataset_of_each_stage(command: SubmitJob) -> None:
    asked, named = len(command.spec.later_stages), len(command.later_dataset_ids)
    if asked != named:
        message = f"later_dataset_ids: found {named}, expected {asked}: one for each of spec.later_stages"
        raise Refused("dataset_mismatch", message, param="later_dataset_ids")


def _require_known_files(command: SubmitJob, dataset_id: str, dataset: Dataset | None) -> None:
    """Whether they are the job's cannot be known of a dataset from before its files were announced."""
    if dataset is None or dataset.tenant != command.tenant:
        return
    if dataset.state is DatasetState.READY and dataset.files is None:
        raise Refused(
            "dataset_mismatch",
            f"dataset {dataset_id} does not say which files it was made of; submit it again, and this "
            "job on the new one",
            param="dataset_id",
        )


def _own(stored_job: Job | None, command: JobMessage) -> Job:
    """Another tenant's job is as unknown as one that does not exist."""
    if stored_job is None or stored_job.tenant != command.tenant:
        raise Refused(
            "unknown_job", f"job {command.job_id} is not known to tenant {command.tenant}", param="job_id"
        )
    return stored_job


def _not_over(job: Job, command: JobMessage, *too_late: JobState) -> Job:
    if job.state in TERMINAL | set(too_late):
        raise Refused("too_late", f"{command.type}: job {job.id} is {job.state} already", param="job_id")
    return job


def _job_submitted(job: Job) -> JobSubmitted:
    return JobSubmitted(
        job_id=job.id,
        tenant=job.tenant,
        dataset_id=job.dataset_id,
        spec=job.spec,
        submitted_at=job.submitted_at,
        retry_of=job.retry_of,
        resume=job.resume if job.resume and job.resume.job_id else None,
        later_dataset_ids=job.later_dataset_ids,
        stage=job.stage,
    )
