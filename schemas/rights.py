"""What users of Kafka that are made while the platform runs may do; nothing is allowed without a right."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from schemas.topics import tenant_commands, tenant_events

Operation = Literal["read", "write", "create", "alter", "alter_configs", "describe", "describe_configs"]


@dataclass(frozen=True)
class Right:
    """One allowed operation of one Kafka user."""

    user: str
    operation: Operation
    resource: Literal["topic", "group", "cluster"]
    name: str
    prefixed: bool = False


def group_prefix(user: str) -> str:
    """Return the prefix of the user's consumer groups, which begins no group of another owner's.

    No name of a user has a dot before the one that ends its owner's.
    """
    return f"{user.partition('.')[0]}."


def user_rights(user: str, *, reads: Iterable[str], writes: Iterable[str]) -> list[Right]:
    return [
        *(Right(user, "read", "topic", topic) for topic in reads),
        *(Right(user, "write", "topic", topic) for topic in writes),
        Right(user, "read", "group", group_prefix(user), prefixed=True),
    ]


def tenant_user_rights(user: str, tenant: str) -> list[Right]:
    reads, writes = tenant_events(tenant).name, tenant_commands(tenant).name
    return user_rights(user, reads=[reads], writes=[writes])


def copying_rights(tenant: str) -> list[Right]:
    """Return the rights of the service that copies the tenant's facts."""
    topic = tenant_events(tenant)
    return [Right(writer, "write", "topic", topic.name) for writer in topic.writers]
