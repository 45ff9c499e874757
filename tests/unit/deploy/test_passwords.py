"""The command that writes `.env`: a random password for each that is asked for, kept from then on."""

import re
import subprocess
import sys

import pytest

from deploy.bootstrap.__main__ import site_of
from deploy.bootstrap.rights import kafka_users, s3_users
from deploy.bootstrap.settings import Settings, settings_of_the_environment, variable
from deploy.images import passwords
from schemas.topics import SERVICES

COMPOSE = "a: ${SECRET_B:?x}\nb: ${SECRET_A:?}\nc: ${SECRET_B:?x}\nd: ${OTHER:-}\n"


def parsed(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_each_password_that_is_asked_for_is_made_once_and_at_random():
    first, second = (parsed(passwords.complete(COMPOSE, "")) for _ in range(2))
    assert list(first) == ["COMPOSE_PROFILES", "SECRET_A", "SECRET_B"]
    secrets = [variables[name] for variables in (first, second) for name in ("SECRET_A", "SECRET_B")]
    assert len(set(secrets)) == len(secrets)
    assert all(re.fullmatch(r"[0-9a-f]{40}", secret) for secret in secrets)


def test_what_is_known_stays():
    known = "COMPOSE_PROFILES=gpu\nSECRET_A=mine\nTIMING_HEARTBEAT=4\n"
    text = passwords.complete(COMPOSE, known)
    assert text.startswith(known)
    assert list(parsed(text)) == [*parsed(known), "SECRET_B"]
    assert passwords.complete(COMPOSE, text) == text


def test_the_file_is_its_owners_alone(tmp_path):
    (tmp_path / "docker-compose.yml").write_text(COMPOSE)
    passwords.main(tmp_path)
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert set(parsed((tmp_path / ".env").read_text())) == {"COMPOSE_PROFILES", "SECRET_A", "SECRET_B"}


@pytest.mark.parametrize("module", ["deploy.images.passwords", "deploy.kubernetes.passwords"])
def test_a_command_that_writes_passwords_needs_nothing_but_python(module):
    without_packages = (sys.executable, "-S", "-c", f"import {module}")
    subprocess.run(without_packages, cwd=passwords.REPOSITORY, check=True)


def test_all_that_is_required_is_made_and_all_that_provision_sets():
    text = (passwords.REPOSITORY / "docker-compose.yml").read_text()
    variables = set(parsed(passwords.complete(text, "")))
    required = set(re.findall(r"\$\{([A-Z0-9_]+):\?", text))
    assert required < variables
    names = [
        *(f"kafka:{user}" for user in ("broker", *kafka_users(("demo",)))),
        *(f"postgres:{role}" for role in ("postgres", "operator", *SERVICES)),
        *(f"s3:{user}" for user in ("root", *s3_users())),
    ]
    assert {variable(name) for name in names} <= variables
    assert "${" not in re.sub(r"\$\{[A-Z0-9_]+:[?-][^}]*\}", "", text), (
        "a variable may be neither set nor required"
    )


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """All that `python -m deploy.bootstrap` needs but passwords."""
    for name, value in {"KAFKA_BOOTSTRAP": "k:1", "POSTGRES_ADDRESS": "p:2", "S3_ENDPOINT": "s:3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TENANT", "demo")
    return monkeypatch


@pytest.mark.parametrize("name", ["kafka:scheduler", "kafka:tenant-demo", "admin-key", "api-key:demo"])
def test_a_password_is_found_in_its_variable(environment: pytest.MonkeyPatch, name: str):
    environment.setenv(variable(name), "mine")
    settings = settings_of_the_environment()
    assert site_of(settings).secret(name) == "mine"
    assert "mine" not in repr(settings)


def test_all_that_is_missing_is_named(environment: pytest.MonkeyPatch):
    environment.delenv("S3_ENDPOINT")
    environment.setenv("TENANT", "")
    with pytest.raises(SystemExit, match=r"(?s)^S3_ENDPOINT is not set; .*\nTENANT is not set; "):
        settings_of_the_environment()


def test_a_missing_password_is_named(environment: pytest.MonkeyPatch):
    site = site_of(Settings())
    with pytest.raises(SystemExit, match=r"^SECRET_KAFKA_TENANT_DEMO is not set; .*passwords from .env$"):
        site.kafka_password("tenant-demo")


def test_the_brokers_user_logs_in_as_the_environment_says(environment: pytest.MonkeyPatch):
    assert site_of(Settings()).kafka_mechanism == "SCRAM-SHA-512"
    environment.setenv("KAFKA_MECHANISM", "PLAIN")
    assert site_of(settings_of_the_environment()).kafka_mechanism == "PLAIN"
    environment.setenv("KAFKA_MECHANISM", "OAUTHBEARER")
    with pytest.raises(
        SystemExit, match=r"^KAFKA_MECHANISM: found 'OAUTHBEARER': .*'SCRAM-SHA-512' or 'PLAIN'$"
    ):
        settings_of_the_environment()
