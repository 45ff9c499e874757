"""Ed25519 signatures of records and requests: who has a writer's public key knows that it wrote one, and wrote it so.

All of a record is signed but its place: topic, key, headers and value, as they are and not as they are read; of a
request over HTTP its body. Keys are 32 bytes in hexadecimal.
"""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.envelope import SIGNATURE, Headers
from shared.errors import Rejected
from shared.record import Record

PURPOSE = b"retune.record.v1\0"
"""Prefix of the signed bytes, so that a signature serves no other purpose."""
REQUEST_PURPOSE = b"retune.request.v1\0"
LENGTH_BYTES = 8


class PrivateKey:
    """What a writer signs its records with. Raises ValueError where the text is no key."""

    def __init__(self, text: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
        self.public_key = self._key.public_key().public_bytes_raw().hex()

    def signed(self, headers: Headers, *, topic: str, key: bytes, value: bytes) -> Headers:
        """Return the headers with the signature of the record that they are sent with."""
        signature = self._key.sign(_content(topic, key, headers, value))
        return [*headers, (SIGNATURE, base64.b64encode(signature))]

    def signature_of(self, body: bytes) -> str:
        """Return the signature of a request with this body, as its header has it."""
        return base64.b64encode(self._key.sign(REQUEST_PURPOSE + body)).decode()


@dataclass(frozen=True)
class Signed:
    """The bytes that are signed, and the signature that came with them; an empty one where none did."""

    content: bytes
    signature: bytes

    def is_by(self, public_key: str) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(self.signature, self.content)
        except InvalidSignature:
            return False
        return True


def signed_part(record: Record) -> Signed:
    """Return what `Signed.is_by` needs, which may be kept and asked later."""
    headers = [(name, value or b"") for name, value in record.headers if name != SIGNATURE]
    content = _content(record.topic, record.key or b"", headers, record.value or b"")
    return Signed(content, _signature(record))


def signed_request(body: bytes, signature: str) -> Signed:
    return Signed(REQUEST_PURPOSE + body, _decoded(signature.encode()))


def require_signature(record: Record | None, public_key: str | None) -> None:
    """Raise Rejected unless the holder of the key signed the record. None: nobody has a key, and nothing is asked."""
    assert record is not None, "what is signed comes as a record"
    if public_key is not None and not signed_part(record).is_by(public_key):
        raise Rejected(f"it is not signed by the node with the public key {public_key[:16]}…")


def _content(topic: str, key: bytes, headers: Iterable[tuple[str, bytes]], value: bytes) -> bytes:
    """Each part behind its length: no two records have the same bytes. Headers have no order."""
    parts = [topic.encode(), key, value]
    for name, text in sorted(headers):
        parts += [name.encode(), text]
    return PURPOSE + b"".join(len(part).to_bytes(LENGTH_BYTES, "big") + part for part in parts)


def _signature(record: Record) -> bytes:
    return _decoded(dict(record.headers).get(SIGNATURE) or b"")


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
