"""Facts about one job that is mirrored to MLflow."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from schemas.base import CapacityType, FailureClass
from schemas.evaluation import CheckResult, Criterion, EvalFailed, EvalPassed
from schemas.job import JobEvaluating, JobRequeued, JobScheduled, JobSucceeded
from schemas.model import ModelPromoted, ModelRegistered, Stage
from schemas.specification import LoraSpec, Method, Recipe
from schemas.training import BundleKind, CheckpointWritten, StepMetrics, StepsRecorded, StepValidated
from tests.builders import NOON, TENANT, a_bundle, a_dataset_ref, a_job_spec, a_sha

JOB_ID = "ftjob-mirrored"
RECIPE = Recipe(
    method=Method.LORA,
    lora=LoraSpec(rank=4),
    learning_rate=3e-4,
    num_epochs=2,
    batch_size=4,
    eval_every_steps=10,
)


def scheduled(
    job_id: str = JOB_ID, *, attempt: int = 1, resumed_at: int | None = None, **spec: Any
) -> JobScheduled:
    return JobScheduled(
        job_id=job_id,
        tenant=TENANT,
        attempt=attempt,
        spec=a_job_spec(recipe=spec.pop("recipe", RECIPE), **spec),
        base_sha=a_sha("tiny"),
        dataset=a_dataset_ref(),
        config_hash=a_sha("config"),
        resume=None if resumed_at is None else a_bundle(resumed_at),
        pool="cpu-spot",
        capacity_type=CapacityType.SPOT,
        nodes=1,
        devices_per_node=1,
        grace_seconds=10,
        start_deadline=NOON,
    )


def recorded(
    steps: Iterable[int], job_id: str = JOB_ID, *, attempt: int = 1, validated: Iterable[int] = ()
) -> StepsRecorded:
    """The loss tells who recorded the step: 2.03 is step 3 of attempt 2."""
    rows = [
        StepMetrics(
            step=step,
            time=NOON + timedelta(seconds=step, milliseconds=attempt),
            loss=attempt + step / 100,
            learning_rate=2e-4,
            grad_norm=1.0,
            num_tokens=512,
            tokens_per_second=800.0,
            memory_bytes=1024,
            epoch=step / 10,
        )
        for step in steps
    ]
    validations = tuple(
        StepValidated(step=step, metrics={"full_valid_loss": step / 10}) for step in validated
    )
    return StepsRecorded(
        job_id=job_id, tenant=TENANT, attempt=attempt, steps=tuple(rows), validations=validations
    )


def written(step: int, job_id: str = JOB_ID, *, attempt: int = 1, **metrics: float) -> CheckpointWritten:
    return CheckpointWritten(
        job_id=job_id,
        tenant=TENANT,
        attempt=attempt,
        bundle=a_bundle(step, attempt=attempt),
        kind=BundleKind.PERIODIC,
        metrics=metrics,
    )


def requeued(job_id: str = JOB_ID) -> JobRequeued:
    return JobRequeued(
        job_id=job_id,
        tenant=TENANT,
        attempt=1,
        failure_class=FailureClass.PREEMPTED,
        resume=a_bundle(20),
        not_before=NOON,
        message="the node was taken away",
    )


def evaluating(job_id: str = JOB_ID) -> JobEvaluating:
    return JobEvaluating(
        job_id=job_id,
        tenant=TENANT,
        attempt=2,
        bundle=a_bundle(50, attempt=2),
        dataset=a_dataset_ref(),
        config_hash=a_sha("config"),
        base_model="tiny",
        base_sha=a_sha("tiny"),
        template_sha256=a_sha("template"),
        kind="adapter",
        rank=4,
        full_name=f"ft:tiny:{TENANT}::",
        auto_deploy=True,
        holdout=None,
        gate=a_job_spec().gate,
        benchmarks={},
        suites={},
    )


def _verdict(job_id: str, outcome: str, number: int) -> dict[str, Any]:
    criterion = Criterion(
        name="held out rows",
        metric="loss",
        value=1.25,
        baseline=2.5,
        threshold=2.0,
        count=40,
        passed=outcome == "passed",
    )
    return {
        "eval_id": f"eval-{number}",
        "tenant": TENANT,
        "job_id": job_id,
        "model_id": "mv-1",
        "digest": a_sha("model"),
        "base_sha": a_sha("tiny"),
        "number": number,
        "checks": (CheckResult(check="holdout", outcome=outcome, criteria=(criterion,)),),
    }


def passed(job_id: str = JOB_ID, *, number: int = 1) -> EvalPassed:
    return EvalPassed(**_verdict(job_id, "passed", number))


def not_passed(job_id: str = JOB_ID, *, number: int = 1) -> EvalFailed:
    return EvalFailed(**_verdict(job_id, "failed", number), reason="worse than the base")


def registered(job_id: str = JOB_ID) -> ModelRegistered:
    return ModelRegistered(
        model_id="mv-1",
        tenant=TENANT,
        job_id=job_id,
        digest=a_sha("model"),
        full_name=f"ft:tiny:{TENANT}::abc",
        kind="adapter",
        rank=4,
        base_model="tiny",
        base_sha=a_sha("tiny"),
        dataset_version=a_dataset_ref().version,
        config_hash=a_sha("config"),
        template_sha256=a_sha("template"),
        bundle=a_bundle(50, attempt=2),
    )


def promoted(job_id: str = JOB_ID) -> ModelPromoted:
    return ModelPromoted(
        model_id="mv-1",
        tenant=TENANT,
        job_id=job_id,
        digest=a_sha("model"),
        full_name=f"ft:tiny:{TENANT}::abc",
        stage=Stage.STAGING,
        eval_id="eval-1",
    )


def succeeded(job_id: str = JOB_ID) -> JobSucceeded:
    return JobSucceeded(
        job_id=job_id,
        tenant=TENANT,
        fine_tuned_model=f"ft:tiny:{TENANT}::abc",
        model_id="mv-1",
        promoted=True,
        deployed=True,
        message="served",
    )
