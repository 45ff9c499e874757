"""What people read of a dataset in the timeline of a job."""

import pytest

from schemas.artifacts import DatasetCounts, ResumeCertificate
from schemas.base import BestBundle, BundleRef
from schemas.dataset import DatasetReady, DatasetRejected
from schemas.evaluation import CheckResult, EvalCheckCompleted, EvalProgressed
from schemas.training import (
    BundleKind,
    CheckpointWritten,
    PackingDistances,
    PackingVerdict,
    TrainingCompleted,
    TrainingPrepared,
    TrainingResumed,
)
from services.gateway.timeline import sentence
from tests.builders import a_bundle, a_preparation, a_sha

NOTHING = "0 bad, 0 exact duplicates, 0 near duplicates, 0 contaminated"
LEAKS = "rows of the gate's own sources are trained on: arc 3"
FOUND = {
    "rejected_rows": 4,
    "exact_duplicates": 2,
    "near_duplicates": 1,
    "contaminated_rows": 2,
    "contaminated_by_source": {"holdout": 1, "arc": 1},
    "training_file_rows": 69,
}


def ready(**counts: object) -> DatasetReady:
    fields = {"rows": 60, "windows": 1, "tokens": 9, "loss_tokens": 3} | counts
    return DatasetReady(
        dataset_id="ds-1",
        tenant="acme",
        dataset_version=a_sha("version"),
        manifest_sha256=a_sha("manifest"),
        base_sha=a_sha("base"),
        template_sha256=a_sha("template"),
        counts=DatasetCounts(**fields),
        benchmarks={},
        suites={},
    )


@pytest.mark.parametrize(
    ("counts", "level", "message"),
    [
        (
            FOUND,
            "info",
            "kept 60 of 69 rows: 4 bad, 2 exact duplicates, 1 near duplicate, 2 contaminated by arc 1, holdout 1",
        ),
        ({}, "info", f"kept 60 rows: {NOTHING}"),
        (
            {"safety_rows": 10, "kept_leaks": {"arc": 3}, "training_file_rows": 50},
            "warn",
            f"kept 50 of 50 rows: {NOTHING}; 10 rows of the safety mix added; {LEAKS}",
        ),
    ],
)
def test_a_ready_dataset_says_how_many_rows_were_kept_and_why_not_the_others(
    counts: dict[str, object], level: str, message: str
) -> None:
    assert sentence(ready(**counts)) == (level, f"dataset ready: {message}")


def test_a_refused_dataset_says_why() -> None:
    rejected = DatasetRejected(dataset_id="ds-1", tenant="acme", code="too_many_dropped", message="24 % are.")
    assert sentence(rejected) == ("error", "dataset refused (too_many_dropped): 24 % are.")


@pytest.mark.parametrize(
    ("fields", "level", "message"),
    [
        ({"exact": True, "reason": "equal"}, "info", "resumed exactly at step 9"),
        (
            {"exact": True, "reason": "equal", "state_exact": True, "is_repeatable": True},
            "info",
            "resumed exactly at step 9",
        ),
        (
            {"exact": True, "reason": "equal", "state_exact": True, "is_repeatable": False},
            "info",
            "resumed exactly at step 9; this device rounds differently each time",
        ),
        (
            {"exact": False, "reason": "torch: expected 1, found 2", "state_exact": True},
            "warn",
            "resumed at step 9 with equal state in another environment: torch: expected 1, found 2",
        ),
        (
            {"exact": False, "reason": "packing: expected True, found False", "state_exact": False},
            "warn",
            "resumed at step 9, not exact: packing: expected True, found False",
        ),
    ],
)
def test_a_resume_says_what_was_equal(fields: dict[str, object], level: str, message: str) -> None:
    certificate = ResumeCertificate.model_validate({"step": 9} | fields)
    resumed = TrainingResumed(job_id="ftjob-1", tenant="acme", attempt=2, certificate=certificate)
    assert sentence(resumed) == (level, message)


def test_what_training_measured_before_its_first_step_is_shown() -> None:
    preparation = a_preparation(
        device="NVIDIA H100 80GB HBM3",
        world_size=2,
        precision="bfloat16",
        num_parameters=8_030_261_248,
        num_trainable=83_886_080,
        batch_size=32,
        gradient_checkpointing=True,
        distances=PackingDistances(packed=0.0251, noise=0.018, leak=3.29),
        memory_bytes=18 * 2**30,
        device_memory_bytes=80 * 2**30,
    )
    fact = TrainingPrepared(job_id="ftjob-1", tenant="acme", attempt=1, preparation=preparation)
    assert sentence(fact) == (
        "info",
        (
            "ready to train: 2 x NVIDIA H100 80GB HBM3 in bfloat16, packing proved (packed 0.025, rounding 0.018, a leak "
            "3.3 nats per token); 83,886,080 of 8,030,261,248 parameters are trained, 32 windows per step by 1 per device, "
            "activations recomputed; 18.0 GiB of 80.0 GiB in use"
        ),
    )


def test_refused_packing_is_a_warning_with_what_was_measured() -> None:
    refused = a_preparation(
        packing=PackingVerdict.REFUSED, distances=PackingDistances(packed=None, noise=0.01, leak=2)
    )
    level, message = sentence(
        TrainingPrepared(job_id="ftjob-1", tenant="acme", attempt=1, preparation=refused)
    )
    assert level == "warn"
    assert "packing refused (packed not a number, rounding 0.01, a leak 2 nats per token)" in message


@pytest.mark.parametrize(
    ("best", "message"),
    [
        (None, "checkpoint written: step 20 of attempt 1 (periodic)"),
        (a_bundle(10), "checkpoint written: step 20 of attempt 1 (periodic)"),
        (
            a_bundle(20),
            "checkpoint written: step 20 of attempt 1 (periodic), the best so far: validation loss 1.2500",
        ),
    ],
)
def test_a_checkpoint_says_whether_it_is_the_best_so_far(best: BundleRef | None, message: str) -> None:
    named = best and BestBundle(bundle=best, valid_loss=1.25)
    fields = {"bundle": a_bundle(20), "kind": BundleKind.PERIODIC, "metrics": {}, "best": named}
    assert sentence(CheckpointWritten(**ATTEMPT, **fields)) == ("info", message)


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("", "training complete at step 20"),
        ("ended early at step 20 of 400: the reason", "training ended early at step 20 of 400: the reason"),
    ],
)
def test_training_says_why_it_ended_before_its_last_step(why: str, message: str) -> None:
    fact = TrainingCompleted(**ATTEMPT, bundle=a_bundle(20), last_step=20, message=why)
    assert sentence(fact) == ("info", message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activity": "loading"}, "the gate: loading"),
        (
            {
                "activity": "over_refusal",
                "suite": "benign",
                "side": "base",
                "items_done": 7,
                "items_total": 1200,
            },
            "the gate: over refusal benign of the base model: 7 of 1,200 items",
        ),
        ({"activity": "holdout", "side": "candidate", "items_done": 7}, "the gate: holdout"),
    ],
)
def test_a_running_gate_says_what_is_measured(fields: dict[str, object], message: str) -> None:
    assert sentence(EvalProgressed(**EVALUATION, **fields)) == ("info", message)


@pytest.mark.parametrize(
    ("outcome", "reason", "expected"),
    [
        ("passed", "", ("info", "gate check over refusal passed")),
        ("not_requested", "no judge", ("info", "gate check over refusal not asked: no judge")),
        ("failed", "too many", ("warn", "gate check over refusal failed: too many")),
    ],
)
def test_a_check_of_the_gate_is_a_sentence(outcome: str, reason: str, expected: tuple[str, str]) -> None:
    result = CheckResult(check="over_refusal", outcome=outcome, reason=reason)
    assert sentence(EvalCheckCompleted(**EVALUATION, result=result)) == expected


ATTEMPT = {"job_id": "ftjob-1", "tenant": "acme", "attempt": 1}
EVALUATION = {
    "eval_id": "eval-1",
    "tenant": "acme",
    "job_id": "ftjob-1",
    "model_id": "mv-1",
    "digest": a_sha("model"),
    "base_sha": a_sha("base"),
}
