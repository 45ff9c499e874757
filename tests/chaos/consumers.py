"""The consumers of all services with their own handlers, in this process: records in, state out."""

import importlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import pytest

from deploy.local.stack import Stack
from schemas.base import Message
from schemas.envelope import Envelope, to_headers
from schemas.generate.sample import sample_of
from schemas.topics import LISTENS, Topic, listens_to_tenants, tenant_commands
from services.gateway import handlers
from services.gateway.settings import Settings as GatewaySettings
from shared.clock import utc_now
from shared.record import Record
from shared.service import Service
from tests.chaos import pipeline

TENANT = "demo"
NOT_FREE = "service"
LISTENERS = tuple(name for name, topics in LISTENS.items() if topics)
HEARD = tuple(
    (service, topic)
    for service in LISTENERS
    for topic in (*LISTENS[service], *((tenant_commands(TENANT),) if listens_to_tenants(service) else ()))
)
offsets = itertools.count(10**9)
"""Beyond what any record of the log has."""


@asynccontextmanager
async def consumers(stack: Stack) -> AsyncIterator[dict[str, Service]]:
    """None of them runs: no loop, task or timer of theirs does anything."""
    await pipeline.migrated(stack, *LISTENERS)
    async with AsyncExitStack() as closing:
        services = {}
        for name in LISTENERS:
            services[name] = _build(stack, name)
            await services[name].database.open()
            closing.push_async_callback(services[name].database.close)
        yield services


def _build(stack: Stack, name: str) -> Service:
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in stack.service_env(name).items():
            patch.setenv(variable, value)
        if name == "gateway":
            settings = GatewaySettings()
            service = Service("gateway", settings)
            handlers.register(service, settings.quotas)
            return service
        return importlib.import_module(f"services.{name}.app").build()


def sample(message: type[Message]) -> Message:
    """Of the tenant whose topic it may come from, about an aggregate of its own."""
    original, key = sample_of(message), uuid4().hex
    changed = {"tenant": TENANT} if "tenant" in message.model_fields else {}
    if message.keyed_by != NOT_FREE:
        changed[message.keyed_by] = 2 * key if len(original.key) == len(2 * key) else f"x-{key}"
    return original.model_copy(update=changed)


def record_of(
    topic: Topic, message: Message, *, event_id: str = "", sequence: int = 1, **added: object
) -> Record:
    """As its writer sends it; `added` fields are foreign ones of the payload."""
    envelope = Envelope(
        id=event_id or uuid4().hex,
        type=message.type,
        version=message.version,
        source=f"/retune/{topic.writers[0]}",
        time=utc_now(),
        key=message.key,
        sequence=sequence if topic.is_event_stream else None,
    )
    value = json.dumps(json.loads(message.model_dump_json()) | added).encode()
    return Record(topic.name, 0, next(offsets), message.key.encode(), tuple(to_headers(envelope)), value)
