"""A user of Kafka as it should be."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from schemas.access import KafkaUserReady
from schemas.rights import Right, group_prefix, user_rights


class UserState(StrEnum):
    CHANGING = "changing"  # the broker may not have it yet
    ACTIVE = "active"
    REMOVING = "removing"
    REMOVED = "removed"


@dataclass(frozen=True)
class KafkaUser:
    name: str
    tenant: str | None
    """Tenant that the user belongs to; None for an internal team's."""
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    nonce: str
    state: UserState = UserState.CHANGING
    revision: int = 1

    def changed(self, **changes: Any) -> Self:
        return replace(self, revision=self.revision + 1, **changes)

    @property
    def applied(self) -> Self:
        gone = self.state in (UserState.REMOVING, UserState.REMOVED)
        return replace(self, state=UserState.REMOVED if gone else UserState.ACTIVE)

    @property
    def rights(self) -> list[Right]:
        if self.state in (UserState.REMOVING, UserState.REMOVED):
            return []
        return user_rights(self.name, reads=self.reads, writes=self.writes)

    @property
    def ready(self) -> KafkaUserReady:
        return KafkaUserReady(
            user=self.name,
            tenant=self.tenant,
            reads=self.reads,
            writes=self.writes,
            group_prefix=group_prefix(self.name),
        )
