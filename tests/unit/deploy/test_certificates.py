"""Certificates of a local stack: made once, readable by their owner alone, and made again before they end."""

from datetime import timedelta

import pytest
from cryptography import x509

from deploy.local.certificates import (
    AUTHORITY,
    AUTHORITY_LIFETIME,
    RENEWED_BEFORE_END,
    SERVER_LIFETIME,
    renew_authority,
    server_certificate,
)
from shared.clock import utc_now

NOW = utc_now()
MOMENT = timedelta(minutes=1)


def certificate_of(path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture
def folder(tmp_path):
    renew_authority(tmp_path, now=NOW)
    return tmp_path


def test_keys_are_readable_by_their_owner_alone(folder):
    server_certificate(folder, "s3", now=NOW)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "ca.pem": 0o600,
        "authority.pem": 0o600,
        "s3.pem": 0o600,
    }
    assert b"PRIVATE" not in (folder / AUTHORITY).read_bytes()


def test_a_server_is_known_by_the_names_of_this_machine_for_a_limited_time(folder):
    certificate = certificate_of(server_certificate(folder, "s3", now=NOW))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert abs(certificate.not_valid_after_utc - NOW - SERVER_LIFETIME) < MOMENT
    certificate.verify_directly_issued_by(certificate_of(folder / AUTHORITY))


def test_a_certificate_is_kept_until_it_ends_soon(folder):
    first = server_certificate(folder, "s3", now=NOW).read_bytes()
    soon = NOW + SERVER_LIFETIME - RENEWED_BEFORE_END
    assert server_certificate(folder, "s3", now=soon - MOMENT).read_bytes() == first
    assert server_certificate(folder, "s3", now=soon + MOMENT).read_bytes() != first


def test_with_a_new_authority_every_certificate_is_new(folder):
    first, authority = (
        server_certificate(folder, "s3", now=NOW).read_bytes(),
        (folder / AUTHORITY).read_bytes(),
    )
    soon = NOW + AUTHORITY_LIFETIME - RENEWED_BEFORE_END
    renew_authority(folder, now=soon - MOMENT)
    assert (folder / AUTHORITY).read_bytes() == authority
    renew_authority(folder, now=soon + MOMENT)
    assert (folder / AUTHORITY).read_bytes() != authority
    second = server_certificate(folder, "s3", now=NOW)
    assert second.read_bytes() != first
    certificate_of(second).verify_directly_issued_by(certificate_of(folder / AUTHORITY))
