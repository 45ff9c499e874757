"""What a child gets of our environment is a list of what it needs, not a list of what it must not have."""

import pytest

from shared.processes.environment import inherited
from tests.unit.shared.environments import NEEDED, SECRETS


@pytest.fixture(autouse=True)
def shell(monkeypatch):
    for name, value in {**NEEDED, **SECRETS}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", NEEDED)
def test_what_programs_need_is_passed_on(name):
    assert inherited()[name] == NEEDED[name]


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_is(name):
    assert name not in inherited()


def test_a_family_is_passed_on_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("RUNNER_HEARTBEAT_EVERY", "PT1S")
    assert "RUNNER_HEARTBEAT_EVERY" not in inherited()
    assert inherited("RUNNER_")["RUNNER_HEARTBEAT_EVERY"] == "PT1S"
