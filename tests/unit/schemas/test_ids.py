"""Ids from outside become folders, keys and host names: no fact and no name can hold one that leads elsewhere."""

import pytest
from pydantic import ValidationError

from schemas import layout
from schemas.dataset import SubmitDataset
from schemas.generate.__main__ import all_messages
from schemas.generate.sample import sample_of
from schemas.job import JobMessage
from schemas.topics import TENANT_COMMAND_TYPES
from tests.unit.scheduler.test_commands import HOSTILE_IDS

COMMANDS_ON_JOBS = [each for each in TENANT_COMMAND_TYPES if issubclass(each, JobMessage)]
"""They are refused with a reason instead; see the scheduler's tests."""

hostile_ids = pytest.mark.parametrize("hostile", HOSTILE_IDS.values(), ids=HOSTILE_IDS)


def naming(field: str) -> list[type]:
    return [message for message in all_messages() if field in message.model_fields]


@hostile_ids
@pytest.mark.parametrize("field", ["job_id", "tenant", "dataset_id"])
def test_no_message_holds_a_bad_one(field, hostile):
    refusing = []
    for message in naming(field):
        sample = sample_of(message).model_dump(mode="json")
        try:
            message.model_validate(sample | {field: hostile})
        except ValidationError:
            refusing.append(message)
    accepting = set(naming(field)) - set(refusing)
    if field == "job_id":
        assert {message.type for message in accepting} <= {message.type for message in COMMANDS_ON_JOBS}
    else:
        assert {message.type for message in accepting} <= {"CommandRefused", "SubmitJob"}


def test_there_are_messages_to_look_at():
    assert SubmitDataset in naming("dataset_id")
    assert len(naming("job_id")) > 40


@pytest.mark.parametrize(
    "name", sorted(set(HOSTILE_IDS) - {"leading dash", "trailing dash", "too long by one", "empty"})
)
def test_no_attempt_has_a_name_that_is_no_label(name):
    with pytest.raises(AssertionError, match="expected a DNS label of at most 52 characters"):
        layout.attempt_name(HOSTILE_IDS[name], 1)
