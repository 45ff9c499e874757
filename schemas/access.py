"""access.commands and access.events: Kafka users that are made while the platform runs."""

from typing import Annotated

from pydantic import Field

from schemas.base import LABEL, Message, Reference, TenantName

Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""Random. The password follows from it, from the user's name and from a secret that no message carries."""
UserName = Annotated[str, Field(pattern=LABEL)]
MAX_READABLE = 64


def tenant_user(tenant: str, name: str = "") -> str:
    """Return the Kafka user of a tenant; without a name the one that the tenant was opened with."""
    return f"tenant-{tenant}.{name}" if name else f"tenant-{tenant}"


def subscriber_user(name: str) -> str:
    """Return the Kafka user of an internal team, which only reads."""
    return f"subscriber-{name}"


class KafkaUserCommand(Message):
    keyed_by = "user"
    user: Reference
    """Name in Kafka: `tenant-<tenant>`, `tenant-<tenant>.<name>` or `subscriber-<name>`."""


class AddTenantUser(KafkaUserCommand):
    """Let a program of a tenant write the tenant's commands and read its events; make the topics where they lack."""

    tenant: TenantName
    nonce: Nonce
    """Random; the password follows from it and a secret that no message carries."""


class AddSubscriber(KafkaUserCommand):
    """Let an internal team read topics."""

    topics: Annotated[tuple[Reference, ...], Field(max_length=MAX_READABLE)] = ()
    """Lifecycle topics (`*.events`), of all tenants."""
    tenants: Annotated[tuple[TenantName, ...], Field(max_length=MAX_READABLE)] = ()
    """Tenants whose `tenant.<tenant>.events` it reads."""
    nonce: Nonce
    """Random; the password follows from it and a secret that no message carries."""


class RotateKafkaUser(KafkaUserCommand):
    """Give a user another password; the old one opens no further connection."""

    nonce: Nonce
    """Random; the password follows from it and a secret that no message carries."""


class RemoveKafkaUser(KafkaUserCommand):
    """Take a user's rights and password away."""


class TenantOpened(Message):
    """`tenant.<tenant>.commands` and `tenant.<tenant>.events` exist; facts of the tenant are copied from here on."""

    keyed_by = "tenant"
    tenant: TenantName


class KafkaUserFact(Message):
    keyed_by = "user"
    user: str
    """Name in Kafka."""
    tenant: TenantName | None = None
    """Whose user it is; None for an internal team's."""


class KafkaUserReady(KafkaUserFact):
    """The user has its newest password and exactly these rights."""

    reads: tuple[str, ...]
    """Topics that it reads."""
    writes: tuple[str, ...]
    """Topics that it writes."""
    group_prefix: str
    """Beginning of the names of its consumer groups."""


class KafkaUserRemoved(KafkaUserFact):
    """The user has no right any more and cannot log in."""
