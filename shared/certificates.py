"""Certificates that programs make for themselves: no authority signs them, and callers take exactly that one."""

import hashlib
import ssl
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

FOREVER = (datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""A certificate lives as long as its program, and no machine's clock is part of that."""
MAX_NAME = 64


def new_pair(name: str) -> bytes:
    """Return a key and a certificate that it signs itself, as PEM."""
    key = Ed25519PrivateKey.generate()
    own_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:MAX_NAME])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(own_name)
        .issuer_name(own_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(FOREVER[0])
        .not_valid_after(FOREVER[1])
        .sign(key, None)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


def digest_of(pair: bytes) -> str:
    """Return the sha256 of the certificate in PEM."""
    certificate = x509.load_pem_x509_certificate(pair)
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def context_for(digest: str) -> ssl.SSLContext:
    """Return a client's context that speaks to who has the key of the certificate with this digest, wherever that is.

    TLS proves the key, whoever signed the certificate. Anything else ends the handshake, before a byte of a request.
    """

    class Exact(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            digest_shown = hashlib.sha256(self.getpeercert(binary_form=True) or b"").hexdigest()
            if digest_shown != digest:
                message = f"the server's certificate is {digest_shown}, expected {digest}"
                raise ssl.SSLCertVerificationError(ssl.SSLErrorNumber.SSL_ERROR_SSL, message)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslobject_class = Exact
    return context
