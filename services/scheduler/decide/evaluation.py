"""Rows of the table about a trained model: what the gate, the registry and serving say."""

from dataclasses import replace

from schemas.job import JobSucceeded
from schemas.lifecycle import JobState
from services.scheduler.decide.decision import Decision, DeploymentOverdue, Timer, View
from services.scheduler.model import Deployment, Evaluation, Job


def not_asked(job: Job, view: View) -> Decision | None:
    """evaluating -> succeeded at once: of a sweep's trials the best one alone goes to the gate, later."""
    if job.spec.trial is None:
        return None
    return _succeeded(job, f"trained as trial {job.spec.trial.number} of {job.spec.trial.sweep_id}")


def not_passed(job: Job, view: View) -> Decision | None:
    """evaluating -> succeeded, as soon as it is known which version stays in `dev`."""
    evaluation = job.evaluation
    if evaluation.denial is None or (evaluation.model is None and not evaluation.denial.without_model):
        return None
    return _succeeded(job, evaluation.denial.message)


def passed(job: Job, view: View) -> Decision | None:
    """evaluating -> succeeded: passed, promoted and, if it is to be served, answered by serving."""
    evaluation = job.evaluation
    if not (evaluation.passed and evaluation.promoted):
        return None
    if not job.spec.auto_deploy:
        return _succeeded(job, "passed the gate; not deployed, as asked")
    if answer := _answer(evaluation):
        message = "passed the gate and is served" if answer.is_ready else f"not deployed: {answer.message}"
        return _succeeded(job, message, deployed=answer.is_ready)
    if evaluation.gated_at is None:
        return _wait_for_serving(job, view)
    if view.now >= evaluation.gated_at + view.policy.deploy_within:
        return _succeeded(job, f"passed the gate; serving has not answered for {view.policy.deploy_within}")
    return None


def _answer(evaluation: Evaluation) -> Deployment | None:
    """What serving said about this job's approval or a later one of the same slot."""
    if evaluation.approval is None or evaluation.deployment is None:
        return None
    return (
        evaluation.deployment if evaluation.deployment.generation >= evaluation.approval.generation else None
    )


def _wait_for_serving(job: Job, view: View) -> Decision:
    waiting = replace(job, evaluation=replace(job.evaluation, gated_at=view.now))
    overdue = Timer(DeploymentOverdue(job_id=job.id), view.now + view.policy.deploy_within)
    return Decision(waiting, timers=(overdue,))


def _succeeded(job: Job, message: str, *, deployed: bool = False) -> Decision:
    model = job.evaluation.model
    fact = JobSucceeded(
        job_id=job.id,
        tenant=job.tenant,
        fine_tuned_model=model.full_name if model else None,
        model_id=model.model_id if model else None,
        promoted=job.evaluation.promoted,
        deployed=deployed,
        message=message,
    )
    return Decision(job.to(JobState.SUCCEEDED), (fact,))
