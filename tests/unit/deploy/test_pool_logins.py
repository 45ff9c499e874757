"""Logins of pools to Kafka, as an operator asks for them."""

import pytest

from deploy.bootstrap.settings import settings_of_the_environment
from shared.messaging.administration import ClientQuotas

ADDRESSES = {"KAFKA_BOOTSTRAP": "k:1", "POSTGRES_ADDRESS": "p:2", "S3_ENDPOINT": "s:3", "TENANT": "demo"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in ADDRESSES.items():
        monkeypatch.setenv(name, value)


def test_there_are_none_and_no_limits_unless_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("KAFKA_RUNNER_POOLS", "")
    settings = settings_of_the_environment()
    assert (settings.kafka_runner_pools, settings.runner_quotas) == ((), ClientQuotas())


def test_a_pools_password_is_a_variable_of_its_name(monkeypatch):
    monkeypatch.setenv("KAFKA_RUNNER_POOLS", '["h100-spot"]')
    monkeypatch.setenv("KAFKA_RUNNER_PRODUCER_BYTE_RATE", "1000000")
    monkeypatch.setenv("SECRET_KAFKA_RUNNER_H100_SPOT", "x")
    settings = settings_of_the_environment()
    assert settings.runner_quotas == ClientQuotas(producer_byte_rate=1_000_000)
    assert [settings.password(f"kafka:runner-{pool}") for pool in settings.kafka_runner_pools] == ["x"]


@pytest.mark.parametrize("pool", ["", "GPU", "a b", "a.b", "a_b", "-a"])
def test_a_name_that_is_no_part_of_a_users_is_refused(monkeypatch, pool):
    monkeypatch.setenv("KAFKA_RUNNER_POOLS", f'["{pool}"]')
    with pytest.raises(SystemExit, match="KAFKA_RUNNER_POOLS"):
        settings_of_the_environment()
