"""Files of TLS that are none, and addresses in plain text, stop a process with a sentence about what to change."""

from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from deploy.local import certificates
from shared.clock import utc_now
from shared.http_client import http_client
from shared.tls import Tls, client_context, require_https

CERTIFICATE_END = "-----END PRIVATE KEY-----\n"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    certificates.renew_authority(tmp_path, now=utc_now())
    return tmp_path / certificates.AUTHORITY


@pytest.fixture
def pair(authority: Path) -> tuple[Path, Path]:
    """A certificate and its key in files of their own."""
    both = certificates.server_certificate(authority.parent, "s3", now=utc_now()).read_text()
    key, certificate = authority.with_name("key"), authority.with_name("certificate")
    end = both.index(CERTIFICATE_END) + len(CERTIFICATE_END)
    key.write_text(both[:end])
    certificate.write_text(both[end:])
    return certificate, key


def test_without_authorities_nothing_is_verified_and_any_address_will_do():
    assert client_context(None) is None
    require_https(None, S3_ENDPOINT="http://s3")


def test_with_authorities_servers_and_their_names_are_verified(authority):
    context = client_context(authority)
    assert context.check_hostname
    assert [each["subject"] for each in context.get_ca_certs()] == [
        ((("commonName", "retune local authority"),),)
    ]


@pytest.mark.parametrize("content", [None, "", "no certificate", CERTIFICATE_END])
def test_a_file_without_an_authority_is_named_with_its_setting(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(
        ValidationError, match=rf"RETUNE_CA_FILE: found (no file )?{path}.*expected a PEM file"
    ):
        Tls(ca_file=path)


def test_what_is_empty_is_not_set(monkeypatch):
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"RETUNE_{name}_FILE", "")
    assert Tls().ca_file is Tls().cert_file is Tls().key_file is None


def test_a_certificate_has_its_key_beside_it_or_within(pair, authority):
    Tls(cert_file=pair[0], key_file=pair[1])
    Tls(cert_file=authority.with_name("s3.pem"))


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("none", "key", "RETUNE_CERT_FILE: found no file"),
        ("certificate", "none", "RETUNE_KEY_FILE: found no file"),
        (None, "key", "RETUNE_CERT_FILE: found nothing, expected a file because RETUNE_KEY_FILE is set"),
        ("certificate", None, "RETUNE_CERT_FILE: found .*certificate with the key of .*certificate"),
        ("certificate", "authority.pem", "RETUNE_CERT_FILE: found .*certificate with the key of .*authority"),
        ("key", "key", "RETUNE_CERT_FILE: found .*key with the key of .*key"),
    ],
)
def test_what_is_no_certificate_with_its_key_is_named(pair, cert, key, message):
    folder = pair[0].parent
    with pytest.raises(ValidationError, match=message):
        Tls(cert_file=cert and folder / cert, key_file=key and folder / key)


def test_a_plain_address_is_named_with_its_setting(authority):
    require_https(authority, S3_ENDPOINT="https://s3", OTHER="")
    with pytest.raises(ValueError, match="S3_ENDPOINT: found http://s3, expected https://"):
        require_https(authority, S3_ENDPOINT="http://s3")


async def test_no_replica_is_asked_in_plain_text_where_it_could_be_verified(authority):
    async with http_client(Tls(ca_file=authority)) as client:
        with pytest.raises(httpx.UnsupportedProtocol, match="RETUNE_CA_FILE"):
            await client.get("http://127.0.0.1:1/health")
