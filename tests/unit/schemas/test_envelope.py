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
    ("name", "value", "message"),
    [
        ("ce_id", b"", "ce_id is missing"),
        ("ce_type", b"JobQueued", "found 'JobQueued', expected retune"),
        ("ce_time", b"noon", "found 'noon', expected an RFC 3339 time"),
        ("ce_time", b"2026-11-21T12:00:00", "with an offset"),
        ("ce_type", b"retune.JobQueued.v1\n", "expected retune"),
        ("ce_type", b"retune.JobQueued.v" + b"9" * 5000, "expected retune"),
        ("ce_sequence", b"0", "found '0', expected a whole number from 1"),
        ("ce_sequence", "٧".encode(), "expected a whole number"),
        ("ce_sequence", str(2**63).encode(), "expected a whole number from 1 to 9223372036854775807"),
        ("ce_sequence", b"9" * 5000, "expected a whole number"),
        ("content-type", b"text/plain", "found 'text/plain'"),
        ("x-anything", b"\xff", "expected UTF-8"),
        ("x-anything", None, "has no value"),
    ],
)
def test_what_is_wrong_is_said(name, value, message):
    headers = [each for each in to_headers(ENVELOPE) if each[0] != name] + [(name, value)]
    with pytest.raises(MalformedEnvelope, match=message):
        from_headers(headers, key=b"ftjob-1")


@pytest.mark.parametrize("name", ["ce_id", "CE_ID"])
def test_a_header_that_comes_twice_is_refused(name):
    with pytest.raises(MalformedEnvelope, match="ce_id comes twice"):
        from_headers([*to_headers(ENVELOPE), (name, b"e-2")], key=b"ftjob-1")


def test_a_record_with_thousands_of_headers_is_refused():
    more = [(f"x-{number}", b"1") for number in range(5_000)]
    with pytest.raises(MalformedEnvelope, match="headers, expected at most 100"):
        from_headers([*to_headers(ENVELOPE), *more], key=b"ftjob-1")


def test_the_largest_number_that_a_column_takes_is_read():
    headers = [each for each in to_headers(ENVELOPE) if each[0] != "ce_sequence"]
    envelope = from_headers([*headers, ("ce_sequence", str(2**63 - 1).encode())], key=b"ftjob-1")
    assert envelope.sequence == 2**63 - 1


def test_key_and_partition_key_must_agree():
    with pytest.raises(MalformedEnvelope, match="ce_partitionkey"):
        from_headers(to_headers(ENVELOPE), key=b"ftjob-2")
