"""Reading a record is total: whatever the bytes are, there is a message or a reason, and it can be stored."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schemas.envelope import MAX_COMMAND_BYTES, MAX_FACT_BYTES, MAX_NAME_BYTES, Envelope, to_headers
from schemas.job import CancelJob
from schemas.node import PreemptNode
from schemas.topics import (
    JOB_COMMANDS,
    JOB_EVENTS,
    NODE_COMMANDS,
    TENANT_EVENTS,
    tenant_commands,
    tenant_events,
)
from shared.errors import Refused, TooLarge
from shared.messaging.batches import UnreadableBatch
from shared.messaging.delivery import (
    MAX_VALUE_BYTES,
    Delivery,
    Unreadable,
    read,
    refusal_of,
    require_obeyed,
    topic_named,
)
from shared.messaging.parking import KEPT_HEADER_BYTES, KEPT_KEY_BYTES, KEPT_VALUE_BYTES, cut
from shared.messaging.unit import require_size
from shared.messaging.waiting import headers_to_json, record_of
from shared.record import Record
from shared.text import storable

ENVELOPE = Envelope(
    id="c-1", type="CancelJob", version=1, source="/retune/gateway", time=datetime.now(UTC), key="ftjob-1"
)


def a_record(**changed: object) -> Record:
    envelope = replace(ENVELOPE, **{name: value for name, value in changed.items() if name != "payload"})
    message = CancelJob(job_id=envelope.key, tenant="acme").model_dump(mode="json")
    value = json.dumps(changed.get("payload", message)).encode()
    return Record("job.commands", 0, 7, envelope.key.encode(), tuple(to_headers(envelope)), value)


def test_a_good_record_is_read():
    assert isinstance(read(a_record()), Delivery)


def test_a_tenants_topic_has_its_name():
    for topic in (JOB_COMMANDS, tenant_commands("acme"), tenant_events("acme")):
        assert topic_named(topic.name) == topic


NUL_INSIDE = {
    "in a field": {"payload": {"job_id": "ftjob-1", "tenant": "ac\0me"}},
    "in a foreign field": {"payload": {"job_id": "ftjob-1", "tenant": "acme", "x": [{"y": "\0"}]}},
    "in a field's name": {"payload": {"job_id": "ftjob-1", "tenant": "acme", "\0": 1}},
    "in a header": {"correlation_id": "\0"},
    "in the id": {"id": "\0"},
    "in the key": {"key": "ftjob-\0"},
}


@pytest.mark.parametrize("changed", NUL_INSIDE.values(), ids=NUL_INSIDE)
def test_what_postgres_cannot_store_is_unreadable_and_can_be_stored_as_such(changed):
    result = read(a_record(**changed))
    assert isinstance(result, Unreadable)
    assert "\0" not in f"{result.aggregate_id}{result.event_id}{result.detail}"
    assert "\0" not in json.dumps(headers_to_json(result.record), ensure_ascii=False)
    assert result.aggregate_id == changed.get("key", "ftjob-1").replace("\0", "\ufffd")


def test_the_reason_of_an_unreadable_record_can_be_stored():
    result = read(a_record(payload={"job_id": "\ud800" * 5000, "tenant": "acme"}))
    assert isinstance(result, Unreadable)
    assert result.detail.encode()
    assert storable("\ud800\0" * 5000) == "?\ufffd" * 500


@pytest.mark.parametrize("payload", [{"job_id": "\ud800"}, {"x": ["\udfff"]}, {"\ud800": 1}])
def test_half_a_surrogate_pair_is_unreadable_wherever_it_is(payload):
    result = read(a_record(payload={"job_id": "ftjob-1", "tenant": "acme"} | payload))
    assert isinstance(result, Unreadable)
    assert (result.reason, result.detail, result.event_id) == (
        "bad_payload",
        "found U+0000 or half a surrogate pair in a text",
        "c-1",
    )


def test_text_of_any_language_is_read():
    assert isinstance(
        read(a_record(payload={"job_id": "ftjob-1", "tenant": "acme", "x": "😀 ü 漢"})), Delivery
    )


@pytest.mark.parametrize("name", ["correlation_id", "causation_id", "traceparent", "source"])
def test_no_attribute_is_endless(name):
    assert isinstance(read(a_record(**{name: "x" * MAX_NAME_BYTES})), Delivery)
    result = read(a_record(**{name: "x" * (MAX_NAME_BYTES + 1)}))
    assert isinstance(result, Unreadable)
    assert f"found {MAX_NAME_BYTES + 1} bytes, expected at most {MAX_NAME_BYTES}" in result.detail


def test_a_large_command_is_refused_and_its_payload_is_not_read():
    record = replace(a_record(), value=b"{" * (MAX_COMMAND_BYTES + 1))
    result = read(record)
    assert isinstance(result, Delivery)
    assert isinstance(result.refused, TooLarge)
    assert result.record == record
    refusal = refusal_of(result, result.refused)
    assert (refusal.code, refusal.command, refusal.command_id) == ("too_large", "CancelJob", "c-1")
    assert refusal.message == "CancelJob: found 65537 bytes, expected at most 65536"
    of_the_limit = read(replace(record, value=b"{" * MAX_COMMAND_BYTES))
    assert isinstance(of_the_limit, Unreadable)
    assert of_the_limit.reason != "too_large"


def test_a_refusal_repeats_no_more_than_a_sentence_of_what_was_sent():
    refused = Refused("unknown_file", repr("\x7f" * 240_000), param="p" * 240_000)
    refusal = refusal_of(read(a_record()), refused)
    require_size(TENANT_EVENTS, refusal.type, {}, refusal.model_dump_json().encode())
    assert len(refusal.model_dump_json()) < 3_000


@pytest.mark.parametrize(
    ("topic", "tenant"), [(JOB_COMMANDS, "acme"), (tenant_commands("other"), "other"), (NODE_COMMANDS, None)]
)
def test_a_refusal_names_the_parameter_and_whose_command_it_was(topic, tenant):
    delivery = read(a_record())
    if tenant is None:
        delivery = replace(delivery, message=PreemptNode(node_id="node-1"))
    refusal = refusal_of(replace(delivery, topic=topic), Refused("bad", "why", param="spec.x"))
    assert (refusal.param, refusal.tenant, refusal.subject_id) == ("spec.x", tenant, "ftjob-1")
    assert refusal_of(delivery, Refused("bad", "why", subject_id="ftjob-9")).subject_id == "ftjob-9"


@pytest.mark.parametrize(
    ("topic", "limit"), [(JOB_COMMANDS, MAX_COMMAND_BYTES), (JOB_EVENTS, MAX_FACT_BYTES)]
)
def test_what_is_written_is_bounded_with_its_headers(topic, limit):
    require_size(topic, "X", {"ab": "ä"}, b"x" * (limit - 4))
    with pytest.raises(
        TooLarge, match=f"X on {topic.name}: found {limit + 1} bytes, expected at most {limit}"
    ):
        require_size(topic, "X", {"ab": "ä"}, b"x" * (limit - 3))


UNREADABLE = {
    "unknown_type": ({"type": "NoSuchThing"}, "job.commands carries no retune.NoSuchThing.v1"),
    "newer_version": ({"version": 99}, "found retune.CancelJob.v99, known is version 1"),
    "bad_payload": ({"payload": ["no object"]}, "found a JSON list, expected an object"),
    "wrong_key": (
        {"key": "ftjob-2", "payload": {"job_id": "ftjob-1", "tenant": "acme"}},
        "record key is 'ftjob-2', job_id is 'ftjob-1'",
    ),
}


@pytest.mark.parametrize(
    ("reason", "changed", "detail"),
    [(reason, *case) for reason, case in UNREADABLE.items()],
    ids=UNREADABLE,
)
def test_what_is_parked_names_its_message_and_why(reason, changed, detail):
    result = read(a_record(sequence=7, **changed))
    assert isinstance(result, Unreadable)
    key = changed.get("key", "ftjob-1")
    assert (result.reason, result.event_id, result.aggregate_id, result.sequence) == (reason, "c-1", key, 7)
    assert result.detail == detail


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "bad_json"),
        (b"", "bad_json"),
        (b"7", "bad_payload"),
        (b"x" * (MAX_VALUE_BYTES + 1), "too_large"),
    ],
    ids=["no value", "no bytes", "no object", "too large"],
)
def test_a_fact_without_a_payload_names_its_message_too(value, reason):
    fact = replace(a_record(sequence=7), topic=JOB_EVENTS.name)
    envelope = replace(ENVELOPE, type="JobCancelled", sequence=7)
    result = read(replace(fact, headers=tuple(to_headers(envelope)), value=value))
    assert isinstance(result, Unreadable)
    assert (result.reason, result.event_id, result.aggregate_id, result.sequence) == (
        reason,
        "c-1",
        "ftjob-1",
        7,
    )


def test_of_a_payload_that_is_not_as_declared_the_first_field_and_what_was_found_are_said():
    result = read(a_record(payload={"job_id": "ftjob-1", "tenant": ["x" * 100], "reason": "user"}))
    assert isinstance(result, Unreadable)
    excerpt = str(["x" * 100])[:80]
    assert (result.reason, result.detail, result.event_id) == (
        "bad_payload",
        f"tenant: Input should be a valid string, found {excerpt!r}",
        "c-1",
    )


def test_a_field_inside_another_is_named_with_its_path():
    payload = {"job_id": "ftjob-1", "tenant": "acme", "dataset_id": "ds-1", "spec": {}}
    result = read(a_record(type="SubmitJob", payload=payload))
    assert isinstance(result, Unreadable)
    assert result.detail == "spec.base_model: Field required, found '{}'"


def test_a_fact_of_an_event_stream_needs_its_place_there():
    envelope = replace(ENVELOPE, type="JobCancelled")
    result = read(replace(a_record(), topic=JOB_EVENTS.name, headers=tuple(to_headers(envelope))))
    assert isinstance(result, Unreadable)
    assert (result.reason, result.event_id, result.sequence) == ("bad_envelope", "c-1", None)


def test_a_record_without_an_envelope_is_named_by_its_place():
    record = replace(a_record(), headers=())
    result = read(record)
    assert isinstance(result, Unreadable)
    assert (result.reason, result.event_id, result.aggregate_id) == (
        "bad_envelope",
        record.location,
        "ftjob-1",
    )


def test_a_batch_that_cannot_be_read_is_parked_as_such():
    record = replace(a_record(), key=None, headers=(), value=UnreadableBatch(b"raw", "no such codec"))
    result = read(record)
    assert isinstance(result, Unreadable)
    assert (result.reason, result.detail, result.event_id, result.aggregate_id) == (
        "unreadable_batch",
        "no such codec",
        record.location,
        "",
    )


def test_of_what_cannot_be_read_a_bounded_part_is_kept():
    large = replace(
        a_record(),
        key=b"k" * 1_000_000,
        headers=(("a", b"x" * KEPT_HEADER_BYTES), ("b", b"x" * 1_000_000), ("c", None)),
        value=UnreadableBatch(b"v" * 1_000_000, ""),
    )
    kept = cut(large)
    assert (len(kept.key), len(kept.value), type(kept.value)) == (KEPT_KEY_BYTES, KEPT_VALUE_BYTES, bytes)
    assert kept.headers == ()
    assert cut(a_record()) == a_record()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_constant_that_json_does_not_know_is_unreadable(number):
    result = read(a_record(payload={"job_id": "ftjob-1", "tenant": "acme", "x": number}))
    assert isinstance(result, Unreadable)
    assert result.reason == "bad_json"


@pytest.mark.parametrize("name", ["id", "key"])
def test_a_name_that_no_index_takes_is_unreadable(name):
    assert isinstance(read(a_record(**{name: "é" * (MAX_NAME_BYTES // 2)})), Delivery)
    result = read(a_record(**{name: "é" * MAX_NAME_BYTES}))
    assert isinstance(result, Unreadable)
    assert f"found {2 * MAX_NAME_BYTES} bytes, expected at most {MAX_NAME_BYTES}" in result.detail
    assert len(result.aggregate_id.encode()) <= MAX_NAME_BYTES


def test_a_payload_too_deep_to_look_through_is_unreadable():
    record = a_record()
    assert record.value is not None
    deep = b'{"x": ' + b"[" * 900 + b"]" * 900 + b"," + record.value[1:]
    assert isinstance(read(replace(record, value=deep)), Unreadable)


def test_headers_come_back_from_the_table_byte_for_byte():
    record = replace(a_record(), headers=(("any", bytes(range(256))), ("none", None), ("n\0ul", b"\0")))
    kept = json.loads(json.dumps(headers_to_json(record)))
    row = {name: getattr(record, name) for name in ("topic", "partition", "offset", "key", "value")}
    assert record_of(row | {"headers": kept}) == record


class TestTheAgeOfACommand:
    """Records of `job.commands` are kept for 30 days."""

    NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)

    def ask(self, *, written: timedelta, recorded: timedelta | None = None) -> None:
        """Ages; None where the record's own time was not kept, as in rows."""
        recorded_ms = -1 if recorded is None else int((self.NOW - recorded).timestamp() * 1000)
        delivery = read(replace(a_record(time=self.NOW - written), timestamp_ms=recorded_ms))
        assert isinstance(delivery, Delivery)
        require_obeyed(delivery, now=self.NOW)

    def test_counts_from_when_it_was_written(self):
        self.ask(written=timedelta(days=30), recorded=timedelta(0))
        with pytest.raises(Refused, match=r"^CancelJob of 2026-06-01T11:59\+00:00: ") as refused:
            self.ask(written=timedelta(days=30, minutes=1))
        assert refused.value.code == "expired"

    def test_counts_from_when_it_was_recorded_though_its_writer_names_a_later_time(self):
        self.ask(written=timedelta(days=-5000), recorded=timedelta(days=30))
        with pytest.raises(Refused):
            self.ask(written=timedelta(days=-5000), recorded=timedelta(days=30, minutes=1))
        with pytest.raises(Refused):
            self.ask(written=timedelta(0), recorded=self.NOW - datetime(1970, 1, 1, tzinfo=UTC))

    @pytest.mark.parametrize("year", [1, 9999])
    def test_any_time_that_can_be_read_can_be_judged(self, year):
        delivery = read(a_record(time=datetime(year, 1, 1, tzinfo=UTC)))
        assert isinstance(delivery, Delivery)
        if year == 9999:
            require_obeyed(delivery, now=self.NOW)
        else:
            with pytest.raises(Refused):
                require_obeyed(delivery, now=self.NOW)

    def test_does_not_matter_for_a_fact(self):
        old = replace(read_fact(), envelope=replace(ENVELOPE, time=self.NOW - timedelta(days=4000)))
        require_obeyed(old, now=self.NOW)


def read_fact() -> Delivery:
    delivery = read(a_record())
    assert isinstance(delivery, Delivery)
    return replace(delivery, topic=JOB_EVENTS)
