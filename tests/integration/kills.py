"""Making a service of the stack die at one place of its code."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from deploy.local.stack import Stack
from tests.chaos.scale import note

PATIENCE_SECONDS = 120.0


@asynccontextmanager
async def killed_at(
    stack: Stack, service: str, failpoint: str, *, at_pass: int = 1, env: Mapping[str, str]
) -> AsyncIterator[None]:
    """What is done inside makes the service pass this place, where it dies. It is down before and after."""
    await stack.stop(service)
    stack.supervise = False
    try:
        await stack.start(service, env={**env, "FAILPOINTS": f"{failpoint}=kill@{at_pass}"})
        yield
        child = stack._supervisor.child(service)
        try:
            code = await asyncio.wait_for(child.ended(), PATIENCE_SECONDS)
        except TimeoutError:
            raise AssertionError(f"{service} never passed {failpoint}; its log is {child.log}") from None
        assert code == -signal.SIGKILL, f"{service} ended with code {code}; its log is {child.log}"
        note("killed at a failpoint", kills=1)
    finally:
        stack.supervise = True
        await stack.stop(service)


async def alive(stack: Stack, service: str, *, env: Mapping[str, str]) -> None:
    await stack.start(service, env=env)
    await stack.wait_healthy(service)
