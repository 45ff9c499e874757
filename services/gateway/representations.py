"""OpenAI's objects, made from rows of the read models. Ours is under `retune`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeVar

from schemas.alert import AlertsSpec
from schemas.specification import DpoSpec, Method
from schemas.training import BundleMetrics
from services.gateway import job_responses, memory, model, responses
from services.gateway.decide import STATUS_OF_STATE, VERDICTS, Ending, expected_end, seconds_left
from services.gateway.trained import name_of

T = TypeVar("T", bound=responses.Resource)


def unix(time: datetime) -> int:
    return int(time.timestamp())


def page(items: Sequence[T], *, size: int) -> responses.Page[T]:
    """The first `size` items; one more says that there are more."""
    shown = tuple(items[:size])
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return responses.Page(object="list", data=shown, has_more=len(items) > size, first_id=first, last_id=last)


def model_page(items: Sequence[responses.AnyModel], *, size: int) -> responses.ModelPage:
    """Make a page as `page` does; it continues after a version's own id: two with the same weights have one name."""
    shown = tuple(items[:size])
    ids = [each.retune.model_id if isinstance(each, responses.FineTunedModel) else each.id for each in shown]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return responses.ModelPage(
        object="list", data=shown, has_more=len(items) > size, first_id=first, last_id=last
    )


def file(row: model.StoredFile) -> responses.File:
    return responses.File(
        id=row.file_id,
        object="file",
        bytes=row.size_bytes,
        created_at=unix(row.created_at),
        filename=row.filename,
        purpose=row.purpose,
        status="processed",
        expires_at=None,
        retune=responses.FileExtensions(sha256=row.sha256, format=row.format),
    )


def deleted_file(file_id: str, state: str, needed_by: list[str]) -> responses.DeletedFile:
    if state == "deleted":
        return responses.DeletedFile(id=file_id, object="file", deleted=True)
    removal = responses.FileRemoval(status="deleting", needed_by=needed_by)
    return responses.DeletedFile(id=file_id, object="file", deleted=False, retune=removal)


def upload(
    row: model.Upload, stored: model.StoredFile | None, *, expires_at: datetime, now: datetime
) -> responses.Upload:
    is_expired = row.state == "pending" and expires_at < now
    return responses.Upload(
        id=row.upload_id,
        object="upload",
        bytes=row.size_bytes,
        created_at=unix(row.created_at),
        expires_at=unix(expires_at),
        filename=row.filename,
        purpose=row.purpose,
        status="expired" if is_expired else row.state,
        file=stored and file(stored),
    )


def job(row: model.Job) -> job_responses.Job:
    """`fine_tuned_model` names the version, passed or not: see docs/decisions/0020-what-a-blocked-job-shows.md."""
    spec, ending = row.spec, _ending(row)
    dials = _hyperparameters(spec.recipe)
    return job_responses.Job(
        id=row.job_id,
        object="fine_tuning.job",
        created_at=unix(row.created_at),
        finished_at=row.finished_at and unix(row.finished_at),
        estimated_finish=(end := expected_end(row)) and unix(end),
        model=spec.start_from.name if spec.start_from else spec.base_model,
        fine_tuned_model=row.fine_tuned_model if row.state == "succeeded" else None,
        organization_id=row.tenant,
        status=STATUS_OF_STATE[row.state],
        training_file=spec.training_file and spec.training_file.file_id,
        validation_file=spec.validation_file and spec.validation_file.file_id,
        result_files=row.result_files,
        trained_tokens=row.trained_tokens,
        seed=spec.seed,
        hyperparameters=dials,
        method=_method(spec.recipe, dials),
        integrations=(),
        metadata=spec.metadata,
        error=_job_error(row, ending),
        retune=_job_extensions(row, ending),
    )


def _hyperparameters(recipe: model.JsonObject) -> job_responses.Hyperparameters:
    return job_responses.Hyperparameters.model_validate(
        {
            "n_epochs": recipe.get("num_epochs", "auto"),
            "batch_size": recipe.get("batch_size", "auto"),
            "learning_rate_multiplier": recipe.get("learning_rate_multiplier", 1.0),
        }
    )


def _method(recipe: model.JsonObject, dials: job_responses.Hyperparameters) -> job_responses.JobMethod:
    """Return the method in OpenAI's words: whatever learns no preferences is supervised."""
    if recipe.get("method") != Method.DPO:
        supervised = job_responses.SupervisedMethod(hyperparameters=dials)
        return job_responses.JobMethod(type="supervised", supervised=supervised, dpo=None)
    beta = DpoSpec.model_validate(recipe.get("dpo") or {}).beta
    dpo = job_responses.DpoMethod(hyperparameters=job_responses.DpoHyperparameters(**dict(dials), beta=beta))
    return job_responses.JobMethod(type="dpo", supervised=None, dpo=dpo)


def new_job(row: model.Job, base_sha: str, detail: model.BaseModelDetail) -> job_responses.NewJob:
    shown = dict(job(row))
    extensions = job_responses.NewJobExtensions(
        **dict(shown.pop("retune")), base_model=base_model_facts(base_sha, detail)
    )
    return job_responses.NewJob(**shown, retune=extensions)


def _job_error(row: model.Job, ending: Ending) -> job_responses.JobProblem:
    if row.error:
        return job_responses.JobFailure(**dict(row.error))
    return job_responses.JobProblem(code=ending.problem, message=_why_unusable(row, ending), param=None)


def _progress(row: model.Job) -> responses.Progress | None:
    """How far what runs now is; None where nothing runs that counts."""
    if row.state == "evaluating":
        return _eval_progress(row.evaluation.progress if row.evaluation else None)
    if row.state not in ("running", "stopping") or not row.num_steps:
        return None
    return responses.Progress(
        activity="training",
        part="",
        side=None,
        done=row.last_step,
        total=row.num_steps,
        unit="steps",
        seconds_left=seconds_left(row.newest_steps, num_left=row.num_steps - row.last_step),
        valid_loss=row.valid_loss,
    )


def _eval_progress(progress: model.EvalProgress | None) -> responses.Progress | None:
    if progress is None:
        return None
    return responses.Progress(
        activity=progress.activity,
        part=progress.suite,
        side=progress.side,
        done=progress.items_done,
        total=progress.items_total,
        unit="items",
        seconds_left=progress.seconds_left,
    )


def _ending(row: model.Job) -> Ending:
    return Ending(
        state=row.state,
        has_model=row.model_id is not None,
        is_promoted=None if row.spec.trial else row.is_promoted,
        is_deployed=row.is_deployed,
        auto_deploy=row.spec.auto_deploy and not row.spec.trial,
        is_trial=row.spec.trial is not None,
        verdict=row.evaluation.outcome if row.evaluation else None,
    )


def _why_unusable(row: model.Job, ending: Ending) -> str | None:
    if row.state == "cancelled":
        return row.ending or None
    if ending.problem is None:
        return None
    reason = row.evaluation.reason if row.evaluation else ""
    return row.ending or reason or "its model was not promoted"


def _gate(row: model.Job, ending: Ending) -> job_responses.Gate:
    """The newest verdict. `failing_criteria`: the numbers that missed their rule, as in the evaluation's checks."""
    verdict = row.evaluation
    return job_responses.Gate(
        status=ending.gate,
        reason=verdict.reason if verdict and ending.gate in VERDICTS else _why_no_verdict(row, ending),
        eval_id=verdict and verdict.eval_id,
        failing_criteria=tuple(
            job_responses.FailingCriterion(check=check.check, **dict(criterion))
            for check in (verdict.checks if verdict else ())
            for criterion in check.criteria
            if not criterion.passed
        ),
    )


def _why_no_verdict(row: model.Job, ending: Ending) -> str:
    if ending.gate in VERDICTS:
        return ""
    if ending.gate == "not_asked":
        return row.ending or f"the job {row.state} before its gate"
    return "the gate is running" if ending.verdict == "running" else "the gate runs after training"


def _queue(entry: model.QueueEntry) -> job_responses.Queue:
    return job_responses.Queue(
        position=entry.position,
        reason=entry.reason,
        estimated_start=entry.estimated_start and unix(entry.estimated_start),
        as_of=unix(entry.as_of),
    )


def _stages(row: model.Job) -> tuple[job_responses.Stage, ...]:
    plans = row.stage_plans or (None,) * len(row.stages)
    before, stages = 0, []
    for number, (asked, plan) in enumerate(zip(row.stages, plans, strict=True), 1):
        stage = job_responses.Stage(
            number=number,
            status=_status_of_stage(row, number),
            training_file=asked.training_file.file_id,
            validation_file=asked.validation_file and asked.validation_file.file_id,
            dataset_id=asked.dataset_id,
            recipe=plan.recipe.model_dump(mode="json") if plan else asked.recipe,
            recipe_reasons=plan.recipe_reasons if plan else {},
            dataset_version=plan and plan.dataset.version,
            config_hash=plan and plan.config_hash,
            steps_before=before if plan else None,
            num_steps=plan and plan.num_steps,
        )
        before += plan.num_steps if plan else 0
        stages.append(stage)
    return tuple(stages)


def _status_of_stage(row: model.Job, number: int) -> Literal["waiting", "present", "trained"]:
    present = row.stage or 1
    if number == present:
        return "trained" if row.state in ("evaluating", "succeeded") else "present"
    return "trained" if number < present else "waiting"


def _open_alert(row: model.OpenAlert) -> job_responses.OpenAlert:
    return job_responses.OpenAlert(rule=row.rule, message=row.message, raised_at=unix(row.raised_at))


def _job_extensions(row: model.Job, ending: Ending) -> job_responses.JobExtensions:
    entry = row.queue_entry if row.state == "queued" else None
    return job_responses.JobExtensions(
        state=row.state,
        attempt=row.attempt,
        stage=row.stage,
        stages=_stages(row),
        waiting_for=entry.waiting_for if entry else row.waiting_for,
        queue=entry and _queue(entry),
        warnings=row.warnings,
        alerts=tuple(map(_open_alert, row.alerts)),
        alert_actions=AlertsSpec.model_validate(row.spec.alerts or {}).model_dump(mode="json"),
        num_steps=row.num_steps,
        last_step=row.last_step,
        progress=_progress(row),
        newest_step=recorded_step(row.newest_steps[0]) if row.newest_steps else None,
        dataset_id=row.dataset_id,
        dataset_version=row.dataset_version,
        config_hash=row.config_hash,
        duplicate_of=row.duplicate_of,
        retry_of=row.retry_of,
        start_from=row.spec.start_from,
        trial=row.spec.trial,
        model_id=row.model_id,
        is_deployed=row.is_deployed,
        estimated_memory=row.estimated_memory,
        estimated_times=row.estimated_times,
        preparation=row.preparation,
        resume_certificate=row.certificate,
        cost_usd=str(row.cost),
        running_cost_usd=None if row.running_cost is None else str(row.running_cost),
        max_cost=None if row.spec.max_cost is None else str(row.spec.max_cost),
        uncharged_cost_usd=str(row.uncharged_cost),
        has_holdout=row.spec.holdout is not None,
        recipe=row.spec.recipe,
        recipe_reasons=row.recipe_reasons,
        gate=_gate(row, ending),
        is_usable=ending.is_usable,
    )


def job_event(row: model.JobEvent) -> job_responses.JobEvent:
    return job_responses.JobEvent(
        id=f"ftevent-{row.id}",
        object="fine_tuning.job.event",
        created_at=unix(row.created_at),
        level=row.level,
        message=row.message,
        type="metrics" if row.type == model.METRICS else "message",
        data=row.data | {"type": row.type, "event_id": row.event_id},
    )


def checkpoint(row: model.Checkpoint) -> job_responses.Checkpoint:
    name = name_of(row)
    return job_responses.Checkpoint(
        id=name,
        object="fine_tuning.job.checkpoint",
        created_at=unix(row.created_at),
        fine_tuning_job_id=row.job_id,
        fine_tuned_model_checkpoint=name,
        step_number=row.step,
        metrics=job_responses.CheckpointMetrics(step=row.step, **dict(row.metrics)),
        retune=job_responses.CheckpointExtensions(
            attempt=row.attempt,
            kind=row.kind,
            state=row.state,
            manifest_sha256=row.manifest_sha256,
            is_best=row.is_best,
        ),
    )


def recorded_step(row: model.Step) -> job_responses.RecordedStep:
    validation = row.validation or BundleMetrics()
    numbers = {name: getattr(validation, name) for name in ("valid_loss", "full_valid_loss", "perplexity")}
    named = {"step": row.step, "attempt": row.attempt}
    return job_responses.RecordedStep.model_validate(row.metrics | numbers | named)


def base_model(row: model.RegisteredBase) -> responses.BaseModel:
    facts = base_model_facts(row.base_sha, row.detail)
    return responses.BaseModel(
        id=row.name,
        object="model",
        created=unix(row.registered_at),
        owned_by="retune",
        retune=responses.BaseModelExtensions(kind="base", **dict(facts)),
    )


def base_model_facts(base_sha: str, detail: model.BaseModelDetail) -> responses.BaseModelFacts:
    base = memory.Base.of(detail)
    return responses.BaseModelFacts(base_sha=base_sha, **dict(detail), memory=base and memory.of_base(base))


def fine_tuned_model(row: model.ModelVersion) -> responses.FineTunedModel:
    return responses.FineTunedModel(
        id=row.full_name,
        object="model",
        created=unix(row.created_at),
        owned_by=row.tenant,
        root=row.base_model,
        parent=row.detail.started_from.name if row.detail.started_from else row.base_model,
        retune=responses.FineTunedModelExtensions(
            kind="fine-tuned",
            model_id=row.model_id,
            stage=row.stage,
            digest=row.digest,
            job_id=row.job_id,
            is_stale=row.is_stale,
            has_holdout=row.has_holdout,
            approved_by=row.approved_by,
            approval_reason=row.approval_reason,
            accepted_without_holdout=row.accepted_without_holdout,
        ),
    )


def lineage(row: model.ModelVersion, verdict: model.Evaluation | None) -> responses.Lineage:
    return responses.Lineage(
        object="model.lineage",
        model=row.full_name,
        model_id=row.model_id,
        digest=row.digest,
        stage=row.stage,
        base_model=row.base_model,
        base_sha=row.base_sha,
        dataset_version=row.dataset_version,
        job_id=row.job_id,
        eval_id=row.eval_id,
        **dict(row.detail),
        has_holdout=row.has_holdout,
        approved_by=row.approved_by,
        approval_reason=row.approval_reason,
        accepted_without_holdout=row.accepted_without_holdout,
        evaluation=verdict
        and responses.LineageVerdict(
            eval_id=verdict.eval_id,
            outcome=verdict.outcome,
            reason=verdict.reason,
            evidence=verdict.evidence,
        ),
    )


def evaluation(row: model.Evaluation) -> responses.Evaluation:
    return responses.Evaluation(
        id=row.eval_id,
        object="evaluation",
        created_at=unix(row.created_at),
        job_id=row.job_id,
        model_id=row.model_id,
        outcome=row.outcome,
        reason=row.reason,
        checks=row.checks,
        number=row.number,
        evidence=row.evidence,
        progress=_eval_progress(row.progress),
    )


def suite(row: model.Suite) -> responses.Suite:
    return responses.Suite(
        id=row.name,
        object="suite",
        name=row.name,
        check=row.check,
        rows=row.rows,
        digest=row.digest,
        registered_at=unix(row.registered_at),
        retune=row.detail,
    )


def refusal(row: model.Refusal) -> responses.Refusal:
    return responses.Refusal(
        id=f"refusal-{row.id}",
        object="command.refusal",
        created_at=unix(row.refused_at),
        command=row.command,
        command_id=row.command_id,
        subject_id=row.subject_id,
        code=row.code,
        message=row.message,
        param=row.param,
    )


def dataset(row: model.Dataset) -> responses.Dataset:
    return responses.Dataset(
        id=row.dataset_id,
        object="dataset",
        created_at=unix(row.created_at),
        status=row.state,
        version=row.dataset_version,
        **{name: getattr(row.detail, name) for name in row.detail.model_fields_set},
    )


def kafka_user(row: model.KafkaUser) -> responses.KafkaUser:
    return responses.KafkaUser(
        id=row.name,
        object="kafka_user",
        username=row.name,
        tenant=row.tenant,
        reads=row.reads,
        writes=row.writes,
        group_prefix=row.group_prefix,
        changed_at=unix(row.changed_at),
    )
