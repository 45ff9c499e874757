"""I14 on histories in which something waits."""

from datetime import timedelta

import pytest

from ops.doctor.history import Waiting
from schemas.dataset import DatasetAccepted, DatasetDeleted
from schemas.deployment import DeploymentStopped
from tests.builders import TENANT, a_sha
from tests.unit.ops.histories import READ_AT, Publisher, a_history, alarms, history_of, with_kernel
from tests.unit.serving_controller.builders import approved, withdrawn

LONG_AGO = READ_AT - timedelta(minutes=31)
LATELY = READ_AT - timedelta(minutes=29)
POOL = {"pool": "tiny", "base_sha": a_sha("tiny")}


def accepted(dataset_id: str = "ds-9") -> DatasetAccepted:
    return DatasetAccepted(dataset_id=dataset_id, tenant=TENANT, base_sha=a_sha("tiny"))


def deleted(dataset_id: str = "ds-9") -> DatasetDeleted:
    return DatasetDeleted(dataset_version=a_sha("version"), tenant=TENANT, dataset_ids=(dataset_id,))


def stopped(generation: int) -> DeploymentStopped:
    approval = approved()
    return DeploymentStopped(
        **POOL,
        slot=approval.slot,
        tenant=approval.tenant,
        digest=approval.digest,
        generation=generation,
        model_id=approval.model_id,
    )


def waits(*messages, since=LONG_AGO) -> list[str]:
    """What is found to wait where these were published, the first at that time."""

    def publish(publisher: Publisher) -> None:
        publisher.now = since
        for writer, message in messages:
            publisher.publish(writer, message)

    return [finding.found for finding in alarms(history_of(publish)).get("I14", [])]


def test_a_whole_story_leaves_nothing_waiting():
    assert "I14" not in alarms(a_history())


class TestDatasets:
    def test_that_nobody_validates(self):
        (text,) = waits(("ingest", accepted()))
        assert text == f"waits since {LONG_AGO + timedelta(seconds=1)} for its validation"

    @pytest.mark.parametrize("messages", [[accepted(), deleted()], [accepted(), accepted(), deleted()]])
    def test_that_were_answered(self, messages):
        assert waits(*(("ingest", message) for message in messages)) == []

    def test_that_have_not_waited_for_long(self):
        assert waits(("ingest", accepted()), since=LATELY) == []


class TestDeployments:
    def test_that_nobody_answers(self):
        (text,) = waits(("registry", approved(generation=2)), ("serving_controller", stopped(1)))
        assert text.endswith("for an answer of the serving controller")

    def test_that_were_answered_or_withdrawn(self):
        approval = ("registry", approved(generation=2))
        assert waits(approval, ("serving_controller", stopped(2))) == []
        assert waits(approval, ("registry", withdrawn(3))) == []


@pytest.mark.parametrize(("since", "is_found"), [(LONG_AGO, True), (LATELY, False)])
class TestOfAService:
    def test_a_task_whose_needs_are_away(self, since, is_found):
        away = (("CopyArtifact", "ftjob-1", since, "StorageUnavailable: PUT"),)
        findings = alarms(with_kernel(a_history(), "registry", tasks_away=away)).get("I14", [])
        expected = [
            (
                "registry.task CopyArtifact ftjob-1",
                f"waits since {since} for what is away: StorageUnavailable: PUT",
            )
        ]
        assert [(each.where, each.found) for each in findings] == (expected if is_found else [])

    def test_a_message_past_its_time(self, since, is_found):
        waiting = (Waiting("job.events", 0, 7, "event-1", since),)
        history = with_kernel(a_history(), "tracker", waiting=waiting)
        assert len(alarms(history).get("I14", [])) == is_found
