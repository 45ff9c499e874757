"""Readers of version N-1 and of N on facts of N-1 and of N: applied or parked, never dropped or mistaken."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from schemas import upcasters
from schemas.base import Message
from schemas.envelope import Envelope, to_headers
from schemas.generate.__main__ import all_messages
from schemas.generate.sample import sample_of
from schemas.topics import TENANT_COMMAND_TYPES, TOPICS, Topic
from shared.messaging import delivery
from shared.messaging.delivery import Delivery, Record, Unreadable, read
from tests.chaos.scale import note

CARRIED = [(topic, message) for topic in TOPICS for message in topic.messages]
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
ADDED = "field_of_the_next_version"


@pytest.fixture(scope="module")
def cases() -> Iterator[Counter[str]]:
    """What was read and what was refused, counted where it was."""
    cases: Counter[str] = Counter()
    yield cases
    note("versions", **cases)


def successor_of(message: type[Message]) -> type[Message]:
    """The next version of a message, which has a required field that the present one has not."""
    fields = {
        "__annotations__": {ADDED: str},
        "__module__": message.__module__,
        "version": message.version + 1,
    }
    return type(message)(message.__name__, (message,), fields)


def record_of(topic: Topic, message: Message, version: int, **added: object) -> Record:
    envelope = Envelope(
        id="event-1",
        type=message.type,
        version=version,
        source="/retune/test",
        time=NOON,
        key=message.key,
        sequence=1 if topic.is_event_stream else None,
    )
    value = json.dumps(json.loads(message.model_dump_json()) | added).encode()
    return Record(topic.name, 0, 0, message.key.encode(), tuple(to_headers(envelope)), value)


def name_of(case: Any) -> str:
    return case.name if isinstance(case, Topic) else case.type


@pytest.mark.parametrize(("topic", "message"), CARRIED, ids=name_of)
class TestEveryMessage:
    def test_a_reader_applies_its_own_version_and_parks_the_next(
        self, topic: Topic, message: type[Message], cases: Counter[str]
    ):
        sample = sample_of(message)
        now = read(record_of(topic, sample, message.version))
        assert isinstance(now, Delivery)
        assert now.message == sample
        newer = read(record_of(topic, sample, message.version + 1, **{ADDED: "new"}))
        assert isinstance(newer, Unreadable)
        assert newer.reason == "newer_version"
        assert newer.record.value, "what it could not read is kept"
        cases.update(read=1, unreadable=1)

    def test_a_reader_applies_a_field_that_was_added_without_a_new_version(
        self, topic: Topic, message: type[Message], cases: Counter[str]
    ):
        sample = sample_of(message)
        result = read(record_of(topic, sample, message.version, **{ADDED: "new"}))
        assert isinstance(result, Delivery)
        assert result.message == sample
        cases.update(read=1)

    def test_the_next_reader_applies_both_versions(
        self,
        topic: Topic,
        message: type[Message],
        monkeypatch: pytest.MonkeyPatch,
        cases: Counter[str],
    ):
        successor = successor_of(message)
        messages = tuple(successor if each is message else each for each in topic.messages)
        monkeypatch.setitem(delivery._TOPICS, topic.name, replace(topic, messages=messages))
        step = {(message.type, message.version): lambda payload: payload | {ADDED: "as before"}}
        monkeypatch.setattr(upcasters, "UPCASTS", upcasters.UPCASTS | step)
        sample = sample_of(message)
        for version, added, expected in (
            (message.version, {}, "as before"),
            (successor.version, {ADDED: "new"}, "new"),
        ):
            result = read(record_of(topic, sample, version, **added))
            assert isinstance(result, Delivery), result
            assert getattr(result.message, ADDED) == expected
            cases.update(read=1)

    def test_the_next_reader_parks_the_present_version_where_its_step_is_missing(
        self,
        topic: Topic,
        message: type[Message],
        monkeypatch: pytest.MonkeyPatch,
        cases: Counter[str],
    ):
        messages = tuple(successor_of(message) if each is message else each for each in topic.messages)
        monkeypatch.setitem(delivery._TOPICS, topic.name, replace(topic, messages=messages))
        result = read(record_of(topic, sample_of(message), message.version))
        assert isinstance(result, Unreadable)
        assert result.reason == "bad_payload"
        cases.update(unreadable=1)


@pytest.mark.parametrize("topic", TOPICS, ids=name_of)
def test_every_type_on_a_topic_that_does_not_carry_it_is_unreadable(topic: Topic, cases: Counter[str]):
    foreign = {message for _, message in CARRIED} - set(topic.messages)
    for message in sorted(foreign, key=lambda each: each.type):
        result = read(record_of(topic, sample_of(message), message.version))
        assert isinstance(result, Unreadable), f"{topic.name} reads {message.type}"
        assert (result.reason, result.event_id) == ("unknown_type", "event-1")
        cases.update(unreadable=1)


def test_no_fact_is_read_from_a_tenants_topic():
    facts = {message for topic, message in CARRIED if not topic.is_commands}
    assert not facts & set(TENANT_COMMAND_TYPES)
    for message in all_messages():
        if message not in TENANT_COMMAND_TYPES:
            topic = delivery.topic_named("tenant.acme.commands")
            result = read(record_of(topic, sample_of(message), message.version))
            assert isinstance(result, Unreadable), f"a tenant may say {message.type}"
            assert result.reason == "unknown_type"
