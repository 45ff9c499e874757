"""How a stopped attempt ends, and what becomes of its job: paused, cancelled, queued again or failed."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

from schemas.base import BundleRef, FailureClass
from schemas.job import Artifact, JobCancelled, JobPaused, JobRequeued, PauseReason, StopReason
from schemas.lifecycle import JobState
from services.scheduler.decide.admission import fail, stage_plans
from services.scheduler.decide.decision import Decision, View
from services.scheduler.decide.stop import last_facts_due, strengthen
from services.scheduler.model import Job, Plan, Stop

MAX_DOUBLINGS = 16
"""More would not change a pause that has a bound, and a number that grows for ever fits no column."""


def noticed(job: Job, view: View) -> Decision | None:
    """stopping: a notice may bring the deadline forward."""
    preemption = job.facts.preemption
    if preemption is None:
        return None
    decision = strengthen(job, Stop(StopReason.PREEMPT, view.now, preemption.deadline, preemption.message))
    return decision if decision.events else None


def excused(job: Job, view: View) -> Decision | None:
    """stopping: what was blamed on a node was the platform's fault, and costs no budget."""
    stop, failure = job.present.stop, job.facts.failure
    assert stop is not None, f"job {job.id} is stopping without a reason"
    is_excuse = failure is not None and failure.failure_class is FailureClass.PLATFORM
    if stop.failure_class is not FailureClass.INFRA or failure is None or not is_excuse:
        return None
    forgiven = replace(stop, failure_class=FailureClass.PLATFORM, message=failure.message)
    return Decision(job.with_run(stop=forgiven))


def over(job: Job, view: View) -> Decision | None:
    """stopping -> paused, cancelled, queued or failed, by the reason."""
    stop = job.present.stop
    assert stop is not None, f"job {job.id} is stopping without a reason"
    if not _is_over(job, view):
        return None
    match stop.reason:
        case StopReason.CANCEL:
            return cancelled(job, stop.cancel_reason)
        case StopReason.BUDGET:
            return cancelled(job, "budget")
        case StopReason.PAUSE:
            return paused(job, stop.pause_reason or PauseReason.USER)
        case StopReason.GROW:
            return requeue_or_fail(job, FailureClass.RESIZED, stop.message, view)
        case StopReason.PREEMPT:
            return requeue_or_fail(job, FailureClass.PREEMPTED, stop.message, view)
        case StopReason.FAILURE:
            return requeue_or_fail(job, stop.failure_class or FailureClass.INFRA, stop.message, view)


def paused(job: Job, reason: PauseReason) -> Decision:
    fact = JobPaused(job_id=job.id, tenant=job.tenant, attempt=job.attempt, reason=reason, resume=job.resume)
    return Decision(job.to(JobState.PAUSED), (fact,))


def cancelled(job: Job, reason: Literal["user", "budget", "alert", "prune"]) -> Decision:
    """The newest verified bundle of its own is kept as a `dev` version, which nobody asked to have served; of a trial
    none is.
    """
    newest = job.resume if job.resume and job.resume.job_id is None else None
    fields = artifact_fields(job, newest) if newest else _fields_of_stage_before(job)
    kept = Artifact(**fields | {"auto_deploy": False}) if fields and job.spec.trial is None else None
    fact = JobCancelled(
        job_id=job.id,
        tenant=job.tenant,
        reason=reason,
        artifact=kept,
        last_step=_last_step(job),
        attempt=job.attempt,
    )
    return Decision(job.to(JobState.CANCELLED), (fact,))


def _less_memory(plan: Plan | None) -> tuple[str | None, str]:
    """The parameter to change, and the nearest value of it with which a step needs less."""
    if plan is None:
        return None, ""
    recipe, devices = plan.spec.recipe, plan.spec.resources.devices_per_node
    if not recipe.gradient_checkpointing:
        param, nearest = "recipe.gradient_checkpointing", "recipe.gradient_checkpointing true"
    elif recipe.micro_batch_size > 1:
        half = recipe.micro_batch_size // 2
        param, nearest = "recipe.micro_batch_size", f"recipe.micro_batch_size {half}"
    else:
        param = "policy.max_seq_length"
        nearest = (
            f"a smaller {param}, more resources.devices_per_node than {devices}, or a pool of larger devices"
        )
    return param, f". Nearest that needs less: {nearest}"


def _changed(plan: Plan) -> str:
    """How the next attempt needs less memory, for people."""
    before, after = plan.spec.recipe, plan.with_least_memory.spec.recipe
    words = {
        "activations are computed again": before.gradient_checkpointing != after.gradient_checkpointing,
        "micro batches are of one window": before.micro_batch_size_auto,
        "the optimizer is in the host's memory": before.sharded.offload_optimizer_auto,
    }
    return ", ".join(word for word, is_changed in words.items() if is_changed)


def requeue_or_fail(job: Job, failure_class: FailureClass, message: str, view: View) -> Decision:
    """Requeue the job or fail it, as the budget of its failure class says."""
    before = job.requeued(failure_class)
    if not job.may_requeue(failure_class):
        history = f" (requeued {before} times for class {failure_class} before)" if before else ""
        param, nearest = _less_memory(job.plan) if failure_class is FailureClass.OOM else (None, "")
        return fail(job, failure_class, failure_class.value, f"{message}{history}{nearest}", param=param)
    plan = job.plan
    if plan is not None and failure_class is FailureClass.OOM:
        plan, message = plan.with_least_memory, f"{message}; {_changed(plan)} from now on"
    preempted_at = _recent_preemptions(job, failure_class, view)
    not_before = view.now + _back_off(failure_class, before, len(preempted_at), view)
    queued = job.to(
        JobState.QUEUED,
        plan=plan,
        requeues={**job.requeues, failure_class: before + 1},
        preempted_at=preempted_at,
        not_before=not_before,
    )
    fact = JobRequeued(
        job_id=job.id,
        tenant=job.tenant,
        attempt=job.attempt,
        failure_class=failure_class,
        resume=job.resume,
        not_before=not_before,
        message=message,
    )
    return Decision(queued, (fact,))


def _fields_of_stage_before(job: Job) -> dict[str, Any] | None:
    """Describe what the stage before trained, where this one saved nothing; None where another job trained it."""
    stage = job.stage
    if stage is None or stage.start is None or stage.start.job_id != job.id:
        return None
    before = stage.model_copy(update={"number": stage.number - 1})
    return artifact_fields(
        replace(job, stage=before, plan=job.stage_plans[before.number - 1]), stage.start.bundle
    )


def artifact_fields(job: Job, bundle: BundleRef | None) -> dict[str, Any]:
    """What the evaluator and the registry must know of the model in this bundle, the last one, or in the best one of
    its run, where the recipe asks for that.
    """
    assert job.plan is not None, f"job {job.id} has a bundle without a plan"
    best = job.best if bundle == job.resume else None
    spec, recipe = job.spec, job.plan.spec.recipe
    return {
        "job_id": job.id,
        "tenant": job.tenant,
        "attempt": job.attempt,
        "bundle": best.bundle if best else bundle,
        "dataset": job.plan.dataset,
        "config_hash": job.plan.config_hash,
        "base_model": spec.base_model,
        "base_sha": spec.base_sha,
        "template_sha256": job.plan.template_sha256,
        "kind": recipe.kind,
        "rank": recipe.lora.rank if recipe.kind == "adapter" else 0,
        "full_name": f"ft:{spec.base_model}:{job.tenant}:{spec.suffix}:",
        "auto_deploy": spec.auto_deploy,
        "holdout": spec.holdout,
        "gate": spec.gate,
        "benchmarks": job.plan.benchmarks,
        "suites": job.plan.suites,
        "kept_leaks": job.plan.kept_leaks,
        "started_from": spec.start_from,
        "best_valid_loss": best.valid_loss if best else None,
        "stages": stage_plans(job)[: job.stage.number] if job.stage else (),
        "trial": spec.trial,
    }


def _is_over(job: Job, view: View) -> bool:
    """The nodes are gone, the last fact is in and all bundles are judged; or enough was waited for that."""
    facts = job.facts
    if facts.released_at is None:
        return False
    if facts.ending is not None and all(job.is_judged(bundle) for bundle in facts.named):
        return True
    return view.now >= last_facts_due(job.present, view.policy)


def _recent_preemptions(job: Job, failure_class: FailureClass, view: View) -> tuple[datetime, ...]:
    since = view.now - view.policy.preemption_window
    recent = tuple(at for at in job.preempted_at if at > since)
    return (*recent, view.now) if failure_class is FailureClass.PREEMPTED else recent


def _back_off(failure_class: FailureClass, before: int, preemptions: int, view: View) -> timedelta:
    policy = view.policy
    if failure_class is FailureClass.RESIZED:
        return timedelta()
    if failure_class is not FailureClass.PREEMPTED:
        doubled = policy.failure_backoff * ((1 << min(before, MAX_DOUBLINGS)) - 1)
        return min(doubled, policy.longest_failure_backoff)
    beyond = preemptions - policy.many_preemptions
    return policy.preemption_backoff * (1 << beyond) if beyond >= 0 else timedelta()


def _last_step(job: Job) -> int:
    begins_at = job.stage.steps_before if job.stage else 0
    if job.run is not None and job.run.facts.ending is not None:
        return max(begins_at, job.run.facts.ending.last_step)
    return job.resume.step if job.resume else begins_at
