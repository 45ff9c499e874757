"""`events timeline` and `events tail`: the story of a job as Kafka has it, in order of time over all topics."""

import json

from schemas.artifacts import DatasetCounts
from schemas.base import BundleRef
from schemas.dataset import DatasetReady
from schemas.evaluation import CheckResult, EvalCheckCompleted
from schemas.job import JobSubmitted
from schemas.training import TrainingResumed
from shared.messaging.delivery import read
from shared.record import Record
from tests.builders import NOON, TENANT, a_bundle, a_job_spec, a_sha, delivered
from tests.unit.cli.commandline import lines
from tests.unit.scheduler import incoming

BUNDLE: BundleRef = a_bundle(10)


def tell(retune) -> None:
    """Each topic in its own order, as a reader gets them, and another job's fact among them."""
    other = incoming.started().model_copy(update={"job_id": "ftjob-2"})
    resumed = TrainingResumed(
        job_id="ftjob-1",
        tenant=TENANT,
        attempt=2,
        certificate={"exact": True, "step": 10, "reason": "equal"},
    )
    judged = EvalCheckCompleted(
        eval_id="ev-1",
        tenant=TENANT,
        job_id="ftjob-1",
        model_id="mv-1",
        digest=a_sha("model"),
        base_sha=a_sha("tiny"),
        result=CheckResult(check="safety", outcome="passed"),
    )
    retune.topics = [
        delivered(incoming.started(), minute=0),
        delivered(incoming.written(BUNDLE), minute=2),
        delivered(resumed, minute=5),
        delivered(other, minute=1),
        delivered(incoming.verified(BUNDLE), minute=3),
        delivered(incoming.lost(), minute=4),
        delivered(judged, minute=6),
    ]


def test_it_is_in_order_of_time_and_of_this_job_alone(retune):
    tell(retune)
    code, out, err = retune.run("events", "timeline", "ftjob-1")
    assert (code, err) == (0, "")
    assert lines(out) == [
        "time topic event",
        "12:00:00.000 training.events TrainingStarted attempt=1",
        "12:02:00.000 training.events CheckpointWritten attempt=1 bundle=1/10",
        "12:03:00.000 checkpoint.events CheckpointVerified bundle=1/10",
        "12:04:00.000 node.events NodeLost attempt=1 message=pid gone",
        "12:05:00.000 training.events TrainingResumed attempt=2 step=10 exact=true",
        "12:06:00.000 eval.events EvalCheckCompleted check=safety outcome=passed",
    ]


def test_the_answer_of_the_jobs_dataset_is_part_of_it(retune):
    submitted = JobSubmitted(
        job_id="ftjob-1", tenant=TENANT, dataset_id="ds-1", spec=a_job_spec(), submitted_at=NOON
    )
    counts = DatasetCounts(rows=8, windows=1, tokens=9, loss_tokens=3, rejected_rows=2, training_file_rows=10)
    ready = DatasetReady(
        dataset_id=submitted.dataset_id,
        tenant=TENANT,
        dataset_version=a_sha("version"),
        manifest_sha256=a_sha("manifest"),
        base_sha=a_sha("tiny"),
        template_sha256=a_sha("template"),
        counts=counts,
        benchmarks={},
        suites={},
    )
    other = ready.model_copy(update={"dataset_id": "ds-other"})
    retune.topics = [delivered(ready, minute=1), delivered(other, minute=1), delivered(submitted, minute=0)]
    _, out, _ = retune.run("events", "timeline", submitted.job_id)
    shown = " ".join(lines(out)[2:])
    assert shown == f"12:01:00.000 dataset.events DatasetReady {counts.summary}"


def test_machines_get_envelope_and_payload(retune):
    tell(retune)
    _, out, _ = retune.run("--json", "events", "timeline", "ftjob-1")
    first, *rest = json.loads(out)
    assert len(rest) == 5
    assert {name: first[name] for name in ("topic", "type", "key", "sequence", "time")} == {
        "topic": "training.events",
        "type": "retune.TrainingStarted.v1",
        "key": "ftjob-1",
        "sequence": 1,
        "time": "2027-03-01T12:00:00+00:00",
    }
    assert first["data"] == incoming.started().model_dump(mode="json")


def test_a_job_that_nobody_spoke_of_has_an_empty_timeline(retune):
    tell(retune)
    code, out, _ = retune.run("--json", "events", "timeline", "ftjob-9")
    assert (code, json.loads(out)) == (0, [])


class TestTail:
    def test_it_prints_one_line_each(self, retune):
        tell(retune)
        _, out, _ = retune.run("events", "tail", "--from-start", "--topic", "checkpoint.events")
        assert lines(out) == ["12:03:00 checkpoint.events ftjob-1 CheckpointVerified bundle=1/10"]

    def test_machines_get_one_object_a_line(self, retune):
        tell(retune)
        _, out, _ = retune.run("--json", "events", "tail", "--from-start")
        assert [json.loads(line)["type"] for line in out.splitlines()][:2] == [
            "retune.TrainingStarted.v1",
            "retune.CheckpointWritten.v1",
        ]

    def test_what_cannot_be_read_is_shown_with_its_place_and_reason(self, retune):
        retune.topics = [read(Record("job.events", 0, 41, b"ftjob-1", (), b"{}"))]
        _, out, _ = retune.run("events", "tail", "--from-start")
        assert out.startswith("job.events/0@41 bad_envelope: header content-type is missing")
        _, out, _ = retune.run("--json", "events", "tail", "--from-start")
        shown = json.loads(out)
        assert shown.pop("detail").startswith("header content-type is missing")
        assert shown == {
            "topic": "job.events",
            "partition": 0,
            "offset": 41,
            "id": "job.events/0@41",
            "key": "ftjob-1",
            "reason": "bad_envelope",
        }
