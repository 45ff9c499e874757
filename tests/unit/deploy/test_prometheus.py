"""Prometheus of a local stack: what it is given, and what is refused."""

from pathlib import Path

import pytest

from deploy.local.state import State
from deploy.prometheus.cli import main
from deploy.prometheus.server import targets_of


def test_a_folder_without_a_stack_is_named_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    state = tmp_path / "state"
    assert main(["up", str(tmp_path / "kept"), "--state", str(state)]) == 1
    assert f"--state {state}: no local stack was started there" in capsys.readouterr().err
    assert not state.exists()


def test_every_process_of_a_service_is_a_target(tmp_path: Path):
    state = State(tmp_path)
    targets = targets_of(state, {"gateway": ("gateway", "gateway-1")})
    assert targets == {"gateway": [f"127.0.0.1:{state.port(name)}" for name in ("gateway", "gateway-1")]}
