"""Ids from outside become folders, keys and host names: no fact and no name can hold one that leads elsewhere."""

import contextlib

import pytest
from pydantic import ValidationError

from schemas import layout
from schemas.base import Message
from schemas.dataset import SubmitDataset
from schemas.generate.__main__ import all_messages
from schemas.generate.sample import sample_of
from schemas.job import JobMessage
from schemas.topics import TENANT_COMMAND_TYPES
from tests.unit.scheduler.test_commands import HOSTILE_IDS

COMMANDS_ON_JOBS = [each for each in TENANT_COMMAND_TYPES if issubclass(each, JobMessage)]
"""They are refused with a reason instead; see the scheduler's tests."""


def naming(field: str) -> list[type]:
    return [message for message in all_messages() if field in message.model_fields]


@pytest.mark.parametrize(
    ("field", "holders"),
    [
        ("job_id", {message.type for message in COMMANDS_ON_JOBS}),
        ("tenant", {"CommandRefused", "SubmitJob"}),
        ("dataset_id", {"CommandRefused", "SubmitJob", "SubmitSweep"}),
    ],
)
def test_no_message_holds_a_bad_one(field, holders):
    samples = {message: sample_of(message).model_dump(mode="json") for message in naming(field)}
    for what, hostile in HOSTILE_IDS.items():
        held = {
            message.type
            for message, sample in samples.items()
            if is_valid(message, sample | {field: hostile})
        }
        assert held <= holders, f"{what}: {hostile!r}"


def is_valid(message: type[Message], payload: dict) -> bool:
    try:
        message.model_validate(payload)
    except ValidationError:
        return False
    return True


def test_there_are_messages_to_look_at():
    assert SubmitDataset in naming("dataset_id")
    assert len(naming("job_id")) > 40


def test_no_attempt_has_a_name_that_is_no_label():
    named = {}
    for what in HOSTILE_IDS.keys() - {"leading dash", "trailing dash", "too long by one", "empty"}:
        with contextlib.suppress(AssertionError):
            named[what] = layout.attempt_name(HOSTILE_IDS[what], 1)
    assert named == {}
    with pytest.raises(AssertionError, match="expected a DNS label of at most 52 characters"):
        layout.attempt_name("../x", 1)
