"""The certificate authority of one stack and the certificates of its servers, for this machine's own names.

<folder>/ca.pem         the authority, which clients verify servers with
         authority.pem  its private key and certificate
         <server>.pem   a server's private key and certificate
"""

from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.local import files
from shared.files import write_whole

AUTHORITY = "ca.pem"
SIGNER = "authority.pem"
NAMES = (
    x509.DNSName("localhost"),
    x509.IPAddress(ip_address("127.0.0.1")),
    x509.IPAddress(ip_address("::1")),
)
AUTHORITY_LIFETIME = timedelta(days=365)
SERVER_LIFETIME = timedelta(days=90)
RENEWED_BEFORE_END = timedelta(days=30)
"""An `up` makes a certificate again that ends within this time."""
BACKDATED = timedelta(hours=1)
"""For clients whose clock is behind."""

Key = ec.EllipticCurvePrivateKey


def renew_authority(folder: Path, *, now: datetime) -> None:
    """Make the authority if there is none, or if it ends soon: then every certificate is made again as well."""
    files.folder(folder)
    signer = folder / SIGNER
    if not signer.exists() or ends_soon(_certificate(signer), now=now):
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("retune local authority")
        request = _request(name, name, key, now, AUTHORITY_LIFETIME)
        usage = x509.BasicConstraints(ca=True, path_length=0)
        _write(signer, key, request.add_extension(usage, critical=True).sign(key, hashes.SHA256()))
    write_whole(folder / AUTHORITY, _pem(_certificate(signer)))


def server_certificate(folder: Path, server: str, *, now: datetime) -> Path:
    """Return the file of a certificate that the authority signed and that does not end soon, made if need be."""
    path = folder / f"{server}.pem"
    authority = _certificate(folder / SIGNER)
    if not path.exists() or not _is_good(_certificate(path), authority, now):
        key = ec.generate_private_key(ec.SECP256R1())
        request = _request(_name(server), authority.subject, key, now, SERVER_LIFETIME)
        for extension, is_critical in (
            (x509.SubjectAlternativeName(NAMES), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                False,
            ),
        ):
            request = request.add_extension(extension, critical=is_critical)
        _write(path, key, request.sign(_key(folder / SIGNER), hashes.SHA256()))
    return path


def ends_soon(certificate: x509.Certificate, *, now: datetime) -> bool:
    return certificate.not_valid_after_utc - now < RENEWED_BEFORE_END


def _is_good(certificate: x509.Certificate, authority: x509.Certificate, now: datetime) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return not ends_soon(certificate, now=now)


def _request(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _write(path: Path, key: Key, certificate: x509.Certificate) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(path, private.decode() + _pem(certificate))


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _key(path: Path) -> Key:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), f"{path}: we make keys of elliptic curves alone"
    return key
