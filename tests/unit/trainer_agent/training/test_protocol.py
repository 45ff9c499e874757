from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.artifacts import ResumeCertificate
from schemas.base import FailureClass
from schemas.specification import Method, Recipe
from schemas.training import BundleMetrics, StepNumbers
from services.trainer_agent.protocol import (
    Best,
    BundleKind,
    Ended,
    Outcome,
    Progressed,
    ResumeChecked,
    Saved,
    Started,
    Stepped,
    TrainingOrder,
    Validated,
    bundle_manifest,
    counted_after,
    parse_reports,
)

STEPPED = Stepped(
    step=1,
    loss=2.5,
    learning_rate=1e-4,
    grad_norm=0.5,
    num_tokens=9,
    tokens_per_second=3.0,
    memory_bytes=7,
    epoch=0.1,
)
ENDED = Ended(outcome=Outcome.FAILED, failure_class=FailureClass.OOM, message="no memory", last_step=1)


def lines(*reports: Stepped | Ended) -> bytes:
    return b"".join(report.model_dump_json().encode() + b"\n" for report in reports)


def an_order(**changes: object) -> TrainingOrder:
    order = TrainingOrder(
        job_id="job-1",
        attempt=3,
        recipe=Recipe(method=Method.SFT),
        base_dir=Path("base"),
        dataset_dir=Path("dataset"),
        base_sha="a" * 64,
        dataset_version="b" * 64,
        config_hash="c" * 64,
    )
    return order.model_copy(update=changes)


class TestParseReports:
    def test_reads_each_line_as_its_own_kind(self):
        data = lines(STEPPED, ENDED)
        assert parse_reports(data) == ((STEPPED, ENDED), len(data))

    @pytest.mark.parametrize("cut", range(1, 40, 7))
    def test_leaves_a_half_written_last_line_for_the_next_read(self, cut):
        data = lines(STEPPED, ENDED)
        reports, taken = parse_reports(data[:-cut])
        assert reports == (STEPPED,)
        assert parse_reports(data[taken:]) == ((ENDED,), len(data) - taken)

    def test_refuses_a_whole_line_that_is_no_report(self):
        with pytest.raises(ValueError, match="kind"):
            parse_reports(b'{"kind":"gossip"}\n')


class TestCountedAfter:
    """A child counts the steps of its stage, everybody else those of the job."""

    def test_each_step_is_counted_with_those_of_the_stages_before(self):
        saved = Saved(
            step=5,
            bundle=BundleKind.FINAL,
            directory=Path("bundles/5"),
            parts=(),
            best=Best(step=3, valid_loss=1.0),
        )
        started = Started(num_steps=8, start_step=2, world_size=1)
        measured = Validated(step=5, metrics=BundleMetrics(), is_last=False)
        reports = [counted_after(each, 100) for each in (started, STEPPED, measured, saved, ENDED)]
        steps = (reports[0].start_step, reports[0].num_steps, *(each.step for each in reports[1:4]))
        assert (*steps, reports[4].last_step) == (102, 108, 101, 105, 105, 101)
        assert (reports[3].best.step, reports[3].directory) == (103, saved.directory)

    def test_so_is_the_place_of_a_certificate(self):
        certificate = ResumeCertificate(exact=True, step=2, reason="equal")
        assert counted_after(ResumeChecked(certificate=certificate), 100).certificate.step == 102

    def test_what_has_no_step_stays(self):
        assert counted_after(Progressed(done=1, total=2), 100) == Progressed(done=1, total=2)


def test_a_steps_metrics_have_every_number_of_the_report():
    numbers = {name: float(count) for count, name in enumerate(StepNumbers.model_fields, 1)}
    report = Stepped.model_validate({"step": 3, **numbers})
    metrics = report.metrics(time=datetime(2027, 3, 1, tzinfo=UTC))
    assert metrics.model_dump(exclude={"time"}) == {"step": 3, **numbers}


def test_an_order_survives_its_file():
    order = an_order(resume_dir=Path("resume"), nodes=2, devices_per_node=4)
    assert TrainingOrder.model_validate_json(order.model_dump_json()) == order
    assert order.world_size == 8


def test_a_bundle_manifest_names_the_writing_attempt_and_every_part():
    saved = Saved(step=5, bundle=BundleKind.FINAL, directory=Path("bundles/5"), parts=(), all_parts=())
    manifest = bundle_manifest(an_order(nodes=2), saved)
    assert (manifest.attempt, manifest.step, manifest.world_size) == (3, 5, 2)
    assert manifest.method is Method.SFT
