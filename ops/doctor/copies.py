"""I15: what a tenant's own consumers read is all that happened to the tenant."""

from collections.abc import Iterator, Mapping

from ops.doctor.finding import Finding
from ops.doctor.history import Entry, EventStream, History, Kernel, Limits
from schemas.topics import LISTENS, TENANT_FACT_TYPES, tenant_events

COPIED = frozenset(topic.name for topic in LISTENS["gateway"] if topic.is_event_stream)
TYPES = frozenset(message.type for message in TENANT_FACT_TYPES)


def copied(history: History, limits: Limits) -> Iterator[Finding]:
    """I15: every fact of a tenant that the gateway has applied has its copy, in the tenant's topic or the outbox."""
    gateway = history.kernels.get("gateway", Kernel())
    facts = [entry for entry in history.ids.values() if _is_of_a_tenant(entry, history)]
    first = _first_copied(facts, gateway, history)
    for entry in facts:
        begins = first.get((entry.topic, entry.key))
        is_applied = gateway.positions.get((entry.topic, entry.key), 0) >= (entry.sequence or 0)
        is_held = (entry.topic, entry.event_id) in gateway.held_ids
        if begins is None or entry.offset < begins or not is_applied or is_held:
            continue
        if not _has_copy(entry, gateway, history):
            where = f"{entry.location} {entry.type} of {entry.key!r}"
            yield Finding(where, "no copy", f"one in {tenant_events(entry.tenant).name}")


def _is_of_a_tenant(entry: Entry, history: History) -> bool:
    return entry.tenant in history.snapshot.tenants and entry.topic in COPIED and entry.type in TYPES


def _first_copied(facts: list[Entry], gateway: Kernel, history: History) -> Mapping[EventStream, int]:
    """EventStream -> offset of its first fact that has a copy: earlier ones may be from before the tenant had topics.

    Retention takes the oldest copies of a key first.
    """
    first: dict[EventStream, int] = {}
    for entry in facts:
        if _has_copy(entry, gateway, history):
            stream = (entry.topic, entry.key)
            first[stream] = min(entry.offset, first.get(stream, entry.offset))
    return first


def _has_copy(entry: Entry, gateway: Kernel, history: History) -> bool:
    copy = (tenant_events(entry.tenant).name, entry.event_id)
    return copy in history.ids or copy in gateway.by_id
