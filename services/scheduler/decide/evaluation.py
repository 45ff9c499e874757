"""Rows of the table about a trained model: what the gate, the registry and serving say."""

from dataclasses import replace

from schemas.job import JobSucceeded
from services.scheduler.decide.decision import Decision, DeploymentOverdue, Timer, View
from services.scheduler.model import Deployment, Evaluation, Job, JobState


def not_passed(job: Job, view: View) -> Decision | None:
    """evaluating -> succeeded, as soon as it is known which version stays in `dev`."""
    said = job.evaluation
    if said.denial is None or (said.model is None and not said.denial.without_model):
        return None
    return _succeeded(job, said.denial.message)


def passed(job: Job, view: View) -> Decision | None:
    """evaluating -> succeeded: passed, promoted and, if it is to be served, answered by serving."""
    said = job.evaluation
    if not (said.passed and said.promoted):
        return None
    if not job.spec.auto_deploy:
        return _succeeded(job, "passed the gate; not deployed, as asked")
    if answer := _answer(said):
        message = "passed the gate and is served" if answer.is_ready else f"not deployed: {answer.message}"
        return _succeeded(job, message, deployed=answer.is_ready)
    if said.gated_at is None:
        return _wait_for_serving(job, view)
    if view.now >= said.gated_at + view.policy.deploy_within:
        return _succeeded(job, f"passed the gate; serving has not answered for {view.policy.deploy_within}")
    return None


def _answer(said: Evaluation) -> Deployment | None:
    """What serving said about this job's approval or a later one of the same slot."""
    if said.approval is None or said.deployment is None:
        return None
    return said.deployment if said.deployment.generation >= said.approval.generation else None


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
