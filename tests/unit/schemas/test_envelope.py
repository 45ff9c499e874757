from datetime import UTC, datetime

import pytest

from schemas.envelope import Envelope, MalformedEnvelope, from_headers, to_headers

ENVELOPE = Envelope(
    id="e-1",
    type="JobQueued",
    version=2,
    source="/retune/scheduler",
    time=datetime(2026, 11, 21, 12, tzinfo=UTC),
    key="ftjob-1",
    sequence=7,
    correlation_id="c-1",
    traceparent="00-aa-bb-01",
)


def test_an_envelope_survives_the_wire():
    assert from_headers(to_headers(ENVELOPE), key=b"ftjob-1") == ENVELOPE


def test_header_names_are_read_in_any_case():
    headers = [(name.upper(), value) for name, value in to_headers(ENVELOPE)]
    assert from_headers(headers, key=b"ftjob-1") == ENVELOPE


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ce_id", b"", "ce_id is missing"),
        ("ce_type", b"JobQueued", "found 'JobQueued', expected retune"),
        ("ce_time", b"noon", "found 'noon', expected an RFC 3339 time"),
        ("ce_time", b"2026-11-21T12:00:00", "with an offset"),
        ("ce_sequence", b"0", "found '0', expected a whole number from 1"),
        ("ce_sequence", "٧".encode(), "expected a whole number"),
        ("content-type", b"text/plain", "found 'text/plain'"),
        ("x-anything", b"\xff", "expected UTF-8"),
        ("x-anything", None, "has no value"),
    ],
)
def test_what_is_wrong_is_said(name, value, told):
    headers = [each for each in to_headers(ENVELOPE) if each[0] != name] + [(name, value)]
    with pytest.raises(MalformedEnvelope, match=told):
        from_headers(headers, key=b"ftjob-1")


def test_key_and_partition_key_must_agree():
    with pytest.raises(MalformedEnvelope, match="ce_partitionkey"):
        from_headers(to_headers(ENVELOPE), key=b"ftjob-2")
