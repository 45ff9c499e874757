"""A service as a process of the stack: its settings, its health, its death."""

import signal
from collections.abc import AsyncIterator

import pytest

from deploy.local.errors import StackError
from deploy.local.stack import Stack

pytestmark = pytest.mark.stack

SERVICE = "tracker"


@pytest.fixture(autouse=True)
async def stopped_again(stack: Stack) -> AsyncIterator[None]:
    yield
    await stack.stop(SERVICE)


async def test_a_killed_service_comes_back_healthy(stack: Stack):
    await stack.start(SERVICE)
    await stack.wait_healthy(SERVICE)
    before = stack.pid(SERVICE)
    await stack.kill(SERVICE, signal.SIGKILL)
    await stack.wait_healthy(SERVICE)
    assert stack.pid(SERVICE) != before


async def test_a_service_that_cannot_start_is_named_with_its_log(stack: Stack):
    await stack.start(SERVICE, env={"TRACKER_HTTP_PORT": "none"})
    with pytest.raises(StackError) as error:
        await stack.wait_healthy(SERVICE)
    message = str(error.value)
    assert message.startswith(
        f"{SERVICE} exited with code 1 before it was ready; its log {stack.log(SERVICE)} ends:"
    )
    assert "http_port" in message


async def test_a_failed_migration_is_named(stack: Stack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stack.state, "secret", lambda name: "wrong")
    with pytest.raises(StackError, match="the migrations of tracker failed: password authentication failed"):
        await stack.start(SERVICE)
