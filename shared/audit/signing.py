"""Ed25519 signatures of statements, which the auditor makes and holders of the public key check."""

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from schemas.audit import SignedStatement, Statement
from shared.files import create_whole, write_whole

PURPOSE = b"retune.audit.statement.v1\0"
"""Prefix of the signed bytes, so that a signature serves no other purpose."""


class BadSignature(ValueError):
    """A statement was not signed by this key; the text gives the reason."""


class PublicKey:
    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        self.sha256 = hashlib.sha256(key.public_bytes_raw()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> "PublicKey":
        """Read the key from a PEM file. Raises OSError, or ValueError if it holds no Ed25519 public key."""
        key = load_pem_public_key(path.read_bytes())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError(f"{path}: found a {type(key).__name__}, expected an Ed25519 public key")  # noqa: TRY004
        return cls(key)

    def pem(self) -> bytes:
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def open(self, document: bytes) -> Statement:
        """Check a signed object and return its statement. Raises BadSignature."""
        try:
            signed = SignedStatement.model_validate_json(document)
            signature = base64.b64decode(signed.signature, validate=True)
        except ValueError as error:
            raise BadSignature(f"it is no signed statement: {type(error).__name__}") from error
        if signed.key_sha256 != self.sha256:
            raise BadSignature(f"found the key {signed.key_sha256[:16]}…, expected {self.sha256[:16]}…")
        try:
            self._key.verify(signature, PURPOSE + signed.statement.encode())
            return Statement.model_validate_json(signed.statement)
        except InvalidSignature:
            raise BadSignature(f"the key {self.sha256[:16]}… did not sign it as it is") from None
        except ValueError as error:
            raise BadSignature(f"what was signed is no statement: {type(error).__name__}") from error


class SigningKey:
    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    @classmethod
    def make(cls) -> "SigningKey":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read_or_make(cls, path: Path) -> "SigningKey":
        """Read the key from a PEM file that only its owner may read, or make it if there is none yet.

        Of two processes that start at once, one makes it for both. Raises ValueError if it is no Ed25519 key.
        """
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            create_whole(path, cls.make().pem())
        key = load_pem_private_key(path.read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path}: found a {type(key).__name__}, expected an Ed25519 private key")  # noqa: TRY004
        return cls(key)

    def pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def publish(self, path: Path) -> None:
        """Write the public key to a PEM file for the operator."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, self.public.pem(), mode=0o644)

    def sign(self, statement: Statement) -> bytes:
        """Return the signed statement as the JSON object to store."""
        text = statement.model_dump_json(exclude_none=True)
        signature = self._key.sign(PURPOSE + text.encode())
        signed = SignedStatement(
            statement=text,
            signature=base64.b64encode(signature).decode(),
            key_sha256=self.public.sha256,
        )
        return signed.model_dump_json().encode()
