"""Which parts are set up, and in what order."""

import pytest

from deploy.bootstrap import __main__ as command
from deploy.bootstrap import kafka, postgres, s3
from deploy.bootstrap.site import Site
from schemas.topics import SERVICES

SITE = Site("kafka:1", "postgres:2", "http://s3:3", secret=lambda name: name)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was set up, in the place of doing so."""
    done: list[str] = []

    def noting(name: str):
        async def work(*_: object, **__: object) -> list[str]:
            done.append(name)
            return []

        return work

    for part, name in ((s3, "S3"), (postgres, "Postgres"), (kafka, "Kafka")):
        monkeypatch.setattr(part, "set_up", noting(name))
    monkeypatch.setattr(command, "migrate", noting("tables"))
    return done


async def test_topics_come_last_for_services_wait_for_them(done: list[str]):
    await command.bootstrap(SITE, "demo", with_s3=True)
    assert done == ["S3", "Postgres", *["tables"] * len(SERVICES), "Kafka"]


async def test_a_store_whose_accounts_others_make_is_left_alone(done: list[str]):
    await command.bootstrap(SITE, "demo", with_s3=False)
    assert "S3" not in done
    assert done[-1] == "Kafka"


def test_accounts_are_made_unless_the_environment_says_no(monkeypatch: pytest.MonkeyPatch):
    for name in ("KAFKA_BOOTSTRAP", "POSTGRES_ADDRESS", "S3_ENDPOINT", "TENANT"):
        monkeypatch.setenv(name, "x")
    assert command.settings_of_the_environment().s3_accounts
    monkeypatch.setenv("S3_ACCOUNTS", "false")
    assert not command.settings_of_the_environment().s3_accounts


def test_the_key_that_nodes_shared_stays_for_as_long_as_its_password_is_known(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("KAFKA_BOOTSTRAP", "POSTGRES_ADDRESS", "S3_ENDPOINT", "TENANT", "SECRET_S3_GATEWAY"):
        monkeypatch.setenv(name, "x")
    assert command.site_of(command.settings_of_the_environment()).former_s3_users == ()
    monkeypatch.setenv("SECRET_S3_RUNNER", "x")
    assert command.site_of(command.settings_of_the_environment()).former_s3_users == ("runner",)
