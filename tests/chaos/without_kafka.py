"""Kafka is stopped and stays away, while services keep what they have to say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.local.stack import Stack
from tests.chaos.without_postgres import metric
from tests.waiting import until


@asynccontextmanager
async def kafka_down(stack: Stack) -> AsyncIterator[None]:
    await stack.stop("kafka")
    try:
        yield
    finally:
        await stack.start("kafka")
        await stack.wait_healthy("kafka")


async def until_kept(stack: Stack, service: str, *, for_seconds: float) -> None:
    """What it has to say, as its metric says."""

    async def is_kept() -> bool:
        return await metric(stack, service, "outbox_oldest_row_seconds") >= for_seconds

    await until(is_kept, f"{service} to keep its facts", seconds=2 * for_seconds + 60)
