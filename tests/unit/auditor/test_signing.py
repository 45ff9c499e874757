"""Nothing but what the key has signed opens."""

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.audit import NOTHING_BEFORE, PartitionRead, Statement
from shared.audit.signing import BadSignature, PublicKey, SigningKey

STATEMENT = Statement(
    number=3,
    previous_sha256=NOTHING_BEFORE,
    signed_at=datetime(2027, 3, 1, 12, tzinfo=UTC),
    partitions=(PartitionRead(topic="t", partition=0, start_offset=0, next_offset=5, link="ab" * 32),),
)


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.make()


def test_what_was_signed_opens(key: SigningKey):
    assert key.public.open(key.sign(STATEMENT)) == STATEMENT


def test_a_key_is_made_once_and_read_by_its_owner_alone(tmp_path: Path):
    path = tmp_path / "new folder" / "signing.pem"
    first, again = SigningKey.read_or_make(path), SigningKey.read_or_make(path)
    assert first.public.sha256 == again.public.sha256
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    first.publish(tmp_path / "public.pem")
    assert PublicKey.read(tmp_path / "public.pem").open(again.sign(STATEMENT)) == STATEMENT
    assert os.listdir(path.parent) == ["signing.pem"]  # noqa: PTH208
    with pytest.raises(ValueError, match=r"signing\.pem|public key|PEM"):
        PublicKey.read(path)


def test_two_processes_that_start_at_once_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, others = tmp_path / "signing.pem", []
    make = SigningKey.make

    def make_while_another_starts() -> SigningKey:
        monkeypatch.setattr(SigningKey, "make", make)
        others.append(SigningKey.read_or_make(path))
        return make()

    monkeypatch.setattr(SigningKey, "make", make_while_another_starts)
    assert SigningKey.read_or_make(path).public.sha256 == others[0].public.sha256
    assert os.listdir(tmp_path) == ["signing.pem"]  # noqa: PTH208


def test_another_key_does_not_open_it(key: SigningKey):
    with pytest.raises(BadSignature, match=r"found the key .*…, expected"):
        SigningKey.make().public.open(key.sign(STATEMENT))


@pytest.mark.parametrize("field", ["statement", "signature"])
def test_every_byte_counts(key: SigningKey, field: str):
    document = json.loads(key.sign(STATEMENT))
    text = document[field]
    for index in range(0, len(text), 7):
        other = "A" if text[index] != "A" else "B"
        changed = document | {field: text[:index] + other + text[index + 1 :]}
        with pytest.raises(BadSignature):
            key.public.open(json.dumps(changed).encode())


def test_a_signature_without_its_purpose_is_none(key: SigningKey):
    document = json.loads(key.sign(STATEMENT))
    import base64

    bare = base64.b64encode(key._key.sign(document["statement"].encode())).decode()
    with pytest.raises(BadSignature, match="did not sign it"):
        key.public.open(json.dumps(document | {"signature": bare}).encode())


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b'{"statement": 1}', b"\xff"])
def test_what_is_no_statement_is_reported(key: SigningKey, document: bytes):
    with pytest.raises(BadSignature, match="it is no signed statement"):
        key.public.open(document)
