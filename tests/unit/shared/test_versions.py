"""Readers of version N-1 and of N on facts of N-1 and of N: applied or parked, never dropped or mistaken."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from schemas import upcasters
from schemas.base import Message
from schemas.envelope import Envelope, to_headers
from schemas.generate.__main__ import all_messages
from schemas.generate.sample import sample_of
from schemas.topics import TENANT_COMMAND_TYPES, TOPICS, Topic
from shared.messaging import delivery
from shared.messaging.delivery import Delivery, Unreadable, read
from shared.record import Record
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
        # Looking for this file among all modules of the process took most of these tests' time.
        "model_config": {"use_attribute_docstrings": False},
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


@pytest.fixture
def with_successor(monkeypatch: pytest.MonkeyPatch) -> Callable[[Topic, type[Message]], type[Message]]:
    """Makes this process a reader of the next version of the one message, without a step from the present one."""

    def become(topic: Topic, message: type[Message]) -> type[Message]:
        successor = successor_of(message)
        messages = tuple(successor if each is message else each for each in topic.messages)
        monkeypatch.setitem(delivery._TOPICS, topic.name, replace(topic, messages=messages))
        return successor

    return become


def test_a_reader_applies_its_own_version_and_parks_the_next(cases: Counter[str]):
    for topic, message in CARRIED:
        where, sample = f"{message.type} on {topic.name}", sample_of(message)
        now = read(record_of(topic, sample, message.version))
        assert isinstance(now, Delivery), where
        assert now.message == sample, where
        newer = read(record_of(topic, sample, message.version + 1, **{ADDED: "new"}))
        assert isinstance(newer, Unreadable), where
        assert newer.reason == "newer_version", where
        assert newer.record.value, f"{where}: what could not be read is kept"
        cases.update(read=1, unreadable=1)


def test_a_reader_applies_a_field_that_was_added_without_a_new_version(cases: Counter[str]):
    for topic, message in CARRIED:
        sample = sample_of(message)
        result = read(record_of(topic, sample, message.version, **{ADDED: "new"}))
        assert isinstance(result, Delivery), f"{message.type} on {topic.name}"
        assert result.message == sample, f"{message.type} on {topic.name}"
        cases.update(read=1)


def test_the_next_reader_applies_both_versions(
    with_successor: Callable[[Topic, type[Message]], type[Message]],
    monkeypatch: pytest.MonkeyPatch,
    cases: Counter[str],
):
    for topic, message in CARRIED:
        successor, sample = with_successor(topic, message), sample_of(message)
        step = {(message.type, message.version): lambda payload: payload | {ADDED: "as before"}}
        monkeypatch.setattr(upcasters, "UPCASTS", upcasters.UPCASTS | step)
        for version, added, expected in (
            (message.version, {}, "as before"),
            (successor.version, {ADDED: "new"}, "new"),
        ):
            where = f"version {version} of {message.type} on {topic.name}"
            result = read(record_of(topic, sample, version, **added))
            assert isinstance(result, Delivery), f"{where}: {result}"
            assert getattr(result.message, ADDED) == expected, where
            cases.update(read=1)


def test_the_next_reader_parks_the_present_version_where_its_step_is_missing(
    with_successor: Callable[[Topic, type[Message]], type[Message]], cases: Counter[str]
):
    for topic, message in CARRIED:
        with_successor(topic, message)
        result = read(record_of(topic, sample_of(message), message.version))
        assert isinstance(result, Unreadable), f"{message.type} on {topic.name}"
        assert result.reason == "bad_payload", f"{message.type} on {topic.name}"
        cases.update(unreadable=1)


def test_every_type_on_a_topic_that_does_not_carry_it_is_unreadable(cases: Counter[str]):
    samples = {message: sample_of(message) for _, message in CARRIED}
    for topic in TOPICS:
        for message in sorted(samples.keys() - set(topic.messages), key=lambda each: each.type):
            result = read(record_of(topic, samples[message], message.version))
            assert isinstance(result, Unreadable), f"{topic.name} reads {message.type}"
            assert (result.reason, result.event_id) == ("unknown_type", "event-1"), message.type
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
