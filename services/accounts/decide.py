"""What a command makes of a user. Raises Refused."""

import re
from collections.abc import Iterable

from schemas.access import AddSubscriber, AddTenantUser, subscriber_user, tenant_user
from schemas.base import LABEL
from schemas.topics import TOPICS, tenant_commands, tenant_events
from services.accounts.model import KafkaUser, UserState
from shared.errors import Refused

READABLE = frozenset(topic.name for topic in TOPICS if topic.is_event_stream)
"""Lifecycle topics, which carry facts, and neither commands nor what passes between nodes and services."""
_NAME = re.compile(LABEL)


def tenant_user_of(command: AddTenantUser, existing: KafkaUser | None) -> KafkaUser:
    first = tenant_user(command.tenant)
    name = command.user.removeprefix(f"{first}.")
    if command.user != first and command.user != tenant_user(command.tenant, _label(name)):
        raise Refused("wrong_user", f"user: found {command.user[:80]!r}, expected {first} or {first}.<name>")
    reads, writes = tenant_events(command.tenant).name, tenant_commands(command.tenant).name
    return _new(KafkaUser(command.user, command.tenant, (reads,), (writes,), command.nonce), existing)


def subscriber_of(command: AddSubscriber, existing: KafkaUser | None) -> KafkaUser:
    name = command.user.removeprefix(subscriber_user(""))
    if command.user != subscriber_user(_label(name)):
        raise Refused(
            "wrong_user", f"user: found {command.user[:80]!r}, expected {subscriber_user('<name>')}"
        )
    reads = (*_readable(command.topics), *(tenant_events(tenant).name for tenant in command.tenants))
    if not reads:
        raise Refused(
            "nothing_to_read", "topics: found none and no tenant, expected at least one", param="topics"
        )
    return _new(KafkaUser(command.user, None, tuple(dict.fromkeys(reads)), (), command.nonce), existing)


def rotated(existing: KafkaUser | None, user: str, nonce: str) -> KafkaUser:
    if existing is None or existing.state not in (UserState.ACTIVE, UserState.CHANGING):
        raise _unknown(user)
    return existing.changed(nonce=nonce, state=UserState.CHANGING)


def removed(existing: KafkaUser | None, user: str) -> KafkaUser:
    if existing is None or existing.state is UserState.REMOVED:
        raise _unknown(user)
    return existing.changed(state=UserState.REMOVING)


def _new(user: KafkaUser, existing: KafkaUser | None) -> KafkaUser:
    if existing is None:
        return user
    if existing.state is UserState.ACTIVE:
        raise Refused(
            "user_exists", f"user {user.name!r} exists; rotate it for another password", param="user"
        )
    return existing.changed(reads=user.reads, writes=user.writes, nonce=user.nonce, state=UserState.CHANGING)


def _readable(topics: Iterable[str]) -> tuple[str, ...]:
    for topic in topics:
        if topic not in READABLE:
            expected = ", ".join(sorted(READABLE))
            raise Refused(
                "no_lifecycle_topic", f"topics: found {topic[:80]!r}, expected of {expected}", param="topics"
            )
    return tuple(topics)


def _label(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused(
            "wrong_name",
            f"name: found {name[:80]!r}, expected lower-case letters, digits and dashes, 40 at most",
            param="name",
        )
    return name


def _unknown(user: str) -> Refused:
    return Refused("unknown_user", f"Kafka user {user[:80]!r} was not made here or is removed", param="user")
