"""Decide, once a dataset's fate is known, whether its job gets a place in the queue."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.base import FailureClass
from schemas.compatibility import check_holdout_of_texts
from schemas.identity import config_hash
from schemas.job import JobFailed, JobQueued, StagePlan
from schemas.lifecycle import JobState
from schemas.resolution import num_steps, resolve_recipe
from schemas.specification import JobSpec, StageSpec
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.decision import Decision, View
from services.scheduler.decide.queue import why_waiting
from services.scheduler.model import Dataset, DatasetState, Job, Plan, StageToTrain

MAX_LONG_ANSWERS = 0.1
"""Share of a holdout's items that a model may be unable to answer for want of tokens."""
NOT_VALIDATED = "dataset_infra"
"""Code of a dataset of which nothing is known: ingest could not validate it."""
STALE_BASE = "stale_base"
"""Code of what names files that its base model's name does not point to."""


def dataset_ready(job: Job, view: View) -> Decision | None:
    """validating -> queued, once the datasets of all stages are there."""
    if not all(_is_ready(stage.dataset) for stage in job.stages_to_train):
        return None
    return enqueue(job, view)


def dataset_unusable(job: Job, view: View) -> Decision | None:
    """validating -> failed(user): refused, rejected, deleted, or not this job's dataset at all.

    Where ingest could not decide, it is failed(infra).
    """
    decisions = (_unusable(job, stage) for stage in job.stages_to_train)
    return next((decision for decision in decisions if decision is not None), None)


def dataset_deleted(job: Job, view: View) -> Decision | None:
    """queued, paused -> failed(user)."""
    for stage in job.stages_to_train:
        if stage.dataset is not None and stage.dataset.state is DatasetState.DELETED:
            param = stage.param("training_file")
            return fail(job, FailureClass.USER, "dataset_deleted", stage.dataset.message, param=param)
    return None


def _unusable(job: Job, stage: StageToTrain) -> Decision | None:
    dataset = stage.dataset
    if dataset is None:
        return None
    if mismatch := _mismatch(job, stage.spec, dataset):
        param = stage.param(mismatch.param) if mismatch.param in StageSpec.model_fields else mismatch.param
        return fail(job, FailureClass.USER, mismatch.code, mismatch.message, param=param)
    if dataset.state in (DatasetState.ACCEPTED, DatasetState.READY):
        return None
    code = dataset.code or f"dataset_{dataset.state}"
    failure_class = FailureClass.INFRA if code == NOT_VALIDATED else FailureClass.USER
    return fail(job, failure_class, code, dataset.message, param=stage.param("training_file"))


def _is_ready(dataset: Dataset | None) -> bool:
    return dataset is not None and dataset.state is DatasetState.READY


def base_stale(job: Job, view: View) -> Decision | None:
    """validating, queued -> failed(user), before a node is spent on what nobody could serve."""
    denial = job.evaluation.denial
    if denial is None or not denial.stale_base:
        return None
    return fail(job, FailureClass.USER, STALE_BASE, f"{denial.message}; submit it again", param="model")


def enqueue(job: Job, view: View) -> Decision:
    """Queue a job that was validating or paused: its age counts from now."""
    queued = planned(job).to(JobState.QUEUED, queued_at=view.now, not_before=None)
    return Decision(queued, (job_queued(queued, view),))


def planned(job: Job) -> Job:
    """Return the job with the plan that it is about to get, unless it has one or waits for a dataset."""
    if job.plan is not None or not all(_is_ready(stage.dataset) for stage in job.stages_to_train):
        return job
    plans: list[Plan] = []
    for stage in job.stages_to_train:
        assert stage.dataset is not None, f"a dataset of job {job.id} is ready and not known"
        plans.append(plan_of(stage.spec, stage.dataset, plans[-1] if plans else None))
    if job.stage is None:
        return replace(job, plan=plans[0])
    return replace(job, plan=plans[job.stage.number - 1], stage_plans=tuple(plans))


def plan_of(spec: JobSpec, dataset: Dataset, before: Plan | None = None) -> Plan:
    """Resolve the recipe on the dataset's numbers, which gives the job its identity.

    before: of the stage before, whose rows the model has seen too.
    """
    assert dataset.ref is not None, f"dataset {dataset.dataset_id} is {dataset.state} without a version"
    assert dataset.counts is not None, f"dataset {dataset.dataset_id} is {dataset.state} without counts"
    recipe, reasons = resolve_recipe(
        spec.recipe,
        rows=dataset.counts.rows,
        windows=dataset.counts.windows,
        num_devices=spec.resources.num_devices,
    )
    resolved = spec.model_copy(update={"recipe": recipe})
    return Plan(
        spec=resolved,
        dataset=dataset.ref,
        config_hash=config_hash(resolved, dataset.ref.version, after=before.config_hash if before else None),
        num_steps=num_steps(recipe, windows=dataset.counts.windows),
        template_sha256=dataset.template_sha256,
        benchmarks=_of_both(before.benchmarks, dataset.benchmarks) if before else dataset.benchmarks,
        suites=dataset.suites,
        kept_leaks=_in_all(before.kept_leaks if before else {}, dataset.counts.kept_leaks),
        recipe_reasons=reasons,
    )


def _of_both(earlier: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Benchmarks that the rows of all stages were compared with."""
    return {name: digest for name, digest in own.items() if earlier.get(name) == digest}


def _in_all(earlier: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    return {name: earlier.get(name, 0) + own.get(name, 0) for name in sorted(earlier.keys() | own.keys())}


def job_queued(job: Job, view: View, *, waiting_for: str = "") -> JobQueued:
    assert job.plan is not None, f"job {job.id} is queued without a plan"
    assert job.queued_at is not None, f"job {job.id} is queued since never"
    last = job.stage_plans[-1] if job.stage_plans else job.plan
    candidate = Candidate.of(job, queued_at=job.queued_at)
    return JobQueued(
        job_id=job.id,
        tenant=job.tenant,
        dataset=last.dataset,
        config_hash=last.config_hash,
        num_steps=job.num_steps,
        stages=stage_plans(job),
        waiting_for=waiting_for or why_waiting(candidate, view.ledger, now=view.now),
        duplicate_of=view.duplicate_of,
        recipe_reasons={} if job.stage_plans else dict(job.plan.recipe_reasons),
    )


def stage_plans(job: Job) -> tuple[StagePlan, ...]:
    """Return the plans of all stages; none where the job has no stages."""
    return tuple(plan.of_stage for plan in job.stage_plans)


def fail(
    job: Job, failure_class: FailureClass, code: str, message: str, *, param: str | None = None
) -> Decision:
    fact = JobFailed(
        job_id=job.id,
        tenant=job.tenant,
        failure_class=failure_class,
        code=code,
        message=message,
        param=param,
        attempt=job.attempt,
    )
    return Decision(job.to(JobState.FAILED), (fact,))


@dataclass(frozen=True)
class Mismatch:
    message: str
    param: str = "training_file"
    code: str = "dataset_mismatch"


def _mismatch(job: Job, spec: JobSpec, dataset: Dataset) -> Mismatch | None:
    """A tenant's own producer may name what it likes; the gateway writes both commands alike."""
    if dataset.tenant != job.tenant:
        return Mismatch(f"dataset {dataset.dataset_id} is not known to tenant {job.tenant}")
    if dataset.state is not DatasetState.READY:
        return None
    if dataset.base_sha != job.spec.base_sha:
        return Mismatch(
            f"dataset {dataset.dataset_id} was made for base model sha {dataset.base_sha[:12]}, "
            f"the job asks for {job.spec.base_sha[:12]}"
        )
    return _other_file(spec, dataset) or _unfit_holdout(spec, dataset) or _no_validation_rows(spec, dataset)


def _other_file(spec: JobSpec, dataset: Dataset) -> Mismatch | None:
    """Rows were checked against the dataset's holdout, so that the gate may ask no other."""
    if dataset.files is None:
        return None
    asked = {
        "training_file": spec.training_file,
        "validation_file": spec.validation_file,
        "holdout": spec.holdout,
    }
    files_of_dataset = (dataset.files.training, dataset.files.validation, dataset.files.holdout)
    for (param, file), expected in zip(asked.items(), files_of_dataset, strict=True):
        digest = file.sha256 if file else None
        if digest != expected:
            return Mismatch(
                f"{param}: found {_short(digest)}, but dataset {dataset.dataset_id} was made with {_short(expected)}",
                param,
            )
    return None


def _unfit_holdout(spec: JobSpec, dataset: Dataset) -> Mismatch | None:
    """Items that the gate could not judge by: reported before anything is trained."""
    counts, rule = dataset.counts, spec.gate.holdout
    if spec.holdout is None or counts is None or counts.holdout_rows is None:
        return None
    if counts.holdout_rows < rule.min_items:
        message = (
            f"without bad and repeated rows the holdout has {counts.holdout_rows} items, the gate needs at least "
            f"{rule.min_items}: add rows, or leave it out"
        )
        return Mismatch(message, "holdout", "holdout_too_small")
    if counts.holdout_texts and (refusal := check_holdout_of_texts(spec.gate)):
        return Mismatch(refusal.message, refusal.param, refusal.code)
    is_answered = rule.metric != "perplexity"
    if is_answered and counts.long_answers > MAX_LONG_ANSWERS * counts.holdout_rows:
        message = (
            f"{counts.long_answers} of {counts.holdout_rows} reference answers of the holdout have more than the "
            f"{counts.answer_tokens} tokens that the gate lets a model answer, so none can match them: shorten them, "
            "measure perplexity (gate.holdout.metric), or have EVALUATOR_MAX_NEW_TOKENS raised"
        )
        return Mismatch(message, "holdout", "answers_too_long")
    return None


def _no_validation_rows(spec: JobSpec, dataset: Dataset) -> Mismatch | None:
    counts = dataset.counts
    if not spec.recipe.has_validations or counts is None or counts.validation_rows:
        return None
    message = (
        "without bad rows the validation file has none, and the recipe goes by the loss on it: add rows, or leave "
        "out early_stopping, load_best_model_at_end and eval_every_steps"
    )
    return Mismatch(message, "validation_file", "no_validation_rows")


def _short(sha256: str | None) -> str:
    return f"sha256 {sha256[:12]}" if sha256 else "none"
