"""Reading a record is total: whatever the bytes are, there is a message or a reason, and it can be stored."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from schemas.envelope import MAX_NAME_BYTES, Envelope, to_headers
from schemas.job import CancelJob
from shared.messaging.delivery import Delivery, Record, Unreadable, read, storable
from shared.messaging.waiting import headers_to_json, record_of

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
    found = read(a_record(**changed))
    assert isinstance(found, Unreadable)
    assert "\0" not in f"{found.aggregate_id}{found.event_id}{found.detail}"
    assert "\0" not in json.dumps(headers_to_json(found.record), ensure_ascii=False)


def test_the_reason_of_an_unreadable_record_can_be_stored():
    found = read(a_record(payload={"job_id": "\ud800" * 5000, "tenant": "acme"}))
    assert isinstance(found, Unreadable)
    assert found.detail.encode()
    assert storable("\ud800\0" * 5000) == "?\ufffd" * 500


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_constant_that_json_does_not_know_is_unreadable(number):
    found = read(a_record(payload={"job_id": "ftjob-1", "tenant": "acme", "x": number}))
    assert isinstance(found, Unreadable)
    assert found.reason == "bad_json"


@pytest.mark.parametrize("name", ["id", "key"])
def test_a_name_that_no_index_takes_is_unreadable(name):
    assert isinstance(read(a_record(**{name: "é" * (MAX_NAME_BYTES // 2)})), Delivery)
    found = read(a_record(**{name: "é" * MAX_NAME_BYTES}))
    assert isinstance(found, Unreadable)
    assert f"found {2 * MAX_NAME_BYTES} bytes, expected at most {MAX_NAME_BYTES}" in found.detail
    assert len(found.aggregate_id.encode()) <= MAX_NAME_BYTES


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
