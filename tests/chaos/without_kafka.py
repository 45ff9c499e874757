"""Kafka is stopped and stays away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.local.stack import Stack


@asynccontextmanager
async def kafka_down(stack: Stack) -> AsyncIterator[None]:
    await stack.stop("kafka")
    try:
        yield
    finally:
        await stack.start("kafka")
        await stack.wait_healthy("kafka")
