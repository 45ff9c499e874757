"""Who has a writer's public key knows that it wrote a record, and wrote it so."""

import base64
from dataclasses import replace

import pytest

from schemas.envelope import SIGNATURE, from_headers
from shared.errors import Rejected
from shared.record import Record
from shared.signatures import PURPOSE, PrivateKey, Signed, require_signature, signed_part

WRITER, OTHER = PrivateKey("1" * 64), PrivateKey("2" * 64)
HEADERS = [
    ("ce_id", b"e-1"),
    ("ce_type", b"retune.RunnerStopped.v1"),
    ("ce_source", b"/retune/runner/a-x-e1-n0"),
    ("ce_time", b"2027-03-01T12:00:00+00:00"),
    ("content-type", b"application/json"),
]


def a_record(signer: PrivateKey | None = WRITER) -> Record:
    record = Record("agent.reports", 3, 7, b"ftjob-1", tuple(HEADERS), b'{"a": 1}')
    if signer is None:
        return record
    return replace(
        record, headers=tuple(signer.signed(HEADERS, topic=record.topic, key=record.key, value=record.value))
    )


def with_header(record: Record, name: str, value: bytes) -> Record:
    return replace(record, headers=tuple({**dict(record.headers), name: value}.items()))


def test_a_record_is_by_its_writer_wherever_it_is_in_the_log():
    record = replace(a_record(), partition=5, offset=99, timestamp_ms=12)
    assert signed_part(record).is_by(WRITER.public_key)
    require_signature(record, WRITER.public_key)


def test_headers_have_no_order():
    record = a_record()
    turned = replace(record, headers=tuple(reversed(record.headers)))
    assert signed_part(turned).is_by(WRITER.public_key)


@pytest.mark.parametrize("signer", [None, OTHER], ids=["nobody", "another"])
def test_it_is_by_nobody_else(signer):
    record = a_record(signer)
    assert not signed_part(record).is_by(WRITER.public_key)
    with pytest.raises(Rejected, match=WRITER.public_key[:16]):
        require_signature(record, WRITER.public_key)


def test_where_nobody_has_a_key_nothing_is_asked():
    require_signature(a_record(None), None)


@pytest.mark.parametrize(
    "changed",
    [
        lambda record: replace(record, topic="run.metrics"),
        lambda record: replace(record, key=b"ftjob-2"),
        lambda record: replace(record, value=b'{"a": 2}'),
        lambda record: replace(record, value=b'{"a":1}'),
        lambda record: replace(record, headers=(*record.headers, ("ce_sequence", b"1"))),
        lambda record: replace(record, headers=record.headers[1:]),
        *(
            lambda record, name=name, value=value: with_header(record, name, value + b"x")
            for name, value in HEADERS
        ),
    ],
)
def test_what_is_changed_is_by_nobody(changed):
    assert not signed_part(changed(a_record())).is_by(WRITER.public_key)


@pytest.mark.parametrize(
    "signature", [b"", b"?", b"\xff", base64.b64encode(b"x"), base64.b64encode(b"\0" * 64)]
)
def test_what_is_no_signature_proves_nothing(signature):
    assert not signed_part(with_header(a_record(), SIGNATURE, signature)).is_by(WRITER.public_key)


def test_parts_do_not_run_into_each_other():
    """What moves from one part to the next makes other bytes, though all of them together are the same."""
    one = Record("t", 0, 0, b"ab", (("n", b"cd"),), b"e")
    others = [
        replace(one, key=b"a", value=b"be"),
        replace(one, headers=(("nc", b"d"),)),
        replace(one, headers=(("n", b"c"), ("d", b""))),
        replace(one, topic="ta", key=b"b"),
    ]
    contents = {signed_part(record).content for record in (one, *others)}
    assert len(contents) == 1 + len(others)
    assert all(content.startswith(PURPOSE) for content in contents)


def test_a_signed_part_that_was_kept_is_judged_as_it_was():
    kept = signed_part(a_record())
    assert Signed(bytes(kept.content), bytes(kept.signature)).is_by(WRITER.public_key)


def test_an_envelope_passes_over_the_signature():
    record = a_record()
    assert from_headers(record.headers, key=record.key) == from_headers(HEADERS, key=record.key)


def test_a_key_that_is_none_is_refused():
    with pytest.raises(ValueError, match="hex"):
        PrivateKey("no key")
