"""What anybody on the machine may read of a platform that works."""

import json

import pytest

from schemas.topics import SERVICES
from tests.e2e.conftest import Platform
from tests.e2e.processes import command_lines, running

pytestmark = [pytest.mark.stack, pytest.mark.torch]
REPLICA = "services.serving_controller.clients.server"


async def test_no_process_has_a_secret_among_its_arguments(platform: Platform):
    """Of the services, and of what they start, such as the replica of the base model."""
    await running(platform, REPLICA)
    commands = [line for _, line in command_lines(platform)]
    for program in (*(f"services.{name}.app" for name in SERVICES), REPLICA):
        assert any(program in command for command in commands), program
    secrets = json.loads((platform.stack.state.root / "secrets.json").read_text())
    assert len(secrets) > 3 * len(SERVICES)
    assert [name for name, secret in secrets.items() if any(secret in command for command in commands)] == []
