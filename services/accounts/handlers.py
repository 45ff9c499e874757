"""Commands change rows; a task brings the broker to what the row says, and then the fact is written."""

from datetime import timedelta

from schemas.access import (
    AddSubscriber,
    AddTenantUser,
    KafkaUserRemoved,
    RemoveKafkaUser,
    RotateKafkaUser,
    TenantOpened,
)
from schemas.base import CommandRefused
from services.accounts import decide, store
from services.accounts.clients import Broker
from services.accounts.model import KafkaUser, UserState
from shared.log import get_logger
from shared.messaging.unit import Task, Unit
from shared.service import Service

log = get_logger(__name__)

RENEW_QUOTAS_EVERY = timedelta(hours=1)


class ApplyUser(Task, frozen=True):
    """Bring the broker to one revision of a user. Each revision is a task of its own, so that none is taken for done
    by the one before it."""

    user: str
    revision: int
    command: str

    @property
    def key(self) -> str:
        return f"{self.user}@{self.revision}"


class Accounts:
    def __init__(self, service: Service, broker: Broker) -> None:
        self._service = service
        self._broker = broker

    async def add_tenant_user(self, command: AddTenantUser, unit: Unit) -> None:
        existing = await store.lock_user(unit.conn, command.user)
        await self._save(decide.tenant_user_of(command, existing), command.type, unit)

    async def add_subscriber(self, command: AddSubscriber, unit: Unit) -> None:
        existing = await store.lock_user(unit.conn, command.user)
        await self._save(decide.subscriber_of(command, existing), command.type, unit)

    async def rotate(self, command: RotateKafkaUser, unit: Unit) -> None:
        existing = await store.lock_user(unit.conn, command.user)
        await self._save(decide.rotated(existing, command.user, command.nonce), command.type, unit)

    async def remove(self, command: RemoveKafkaUser, unit: Unit) -> None:
        existing = await store.lock_user(unit.conn, command.user)
        await self._save(decide.removed(existing, command.user), command.type, unit)

    async def _save(self, user: KafkaUser, command: str, unit: Unit) -> None:
        await store.save_user(unit.conn, user)
        await unit.start_task(ApplyUser(user=user.name, revision=user.revision, command=command))

    async def apply(self, task: ApplyUser) -> KafkaUser:
        """Apply the user, and again where its row was changed meanwhile: another process may have applied that
        first."""
        user = await store.get_user(self._service.database, task.user)
        while True:
            if user.tenant is not None and user.rights:
                await self._broker.open_tenant(user.tenant)
            await self._broker.apply(user)
            latest = await store.get_user(self._service.database, task.user)
            if latest.revision == user.revision:
                return user
            user = latest

    async def applied(self, task: ApplyUser, user: KafkaUser, unit: Unit) -> None:
        existing = await store.lock_user(unit.conn, task.user)
        if existing is None or existing.revision != user.revision:
            await unit.start_task(task.model_copy(update={"revision": existing.revision if existing else 0}))
            return
        await store.save_user(unit.conn, user.applied)
        if user.applied.state is UserState.REMOVED:
            await unit.emit(KafkaUserRemoved(user=user.name, tenant=user.tenant))
            return
        if user.tenant is not None and await store.open_tenant(unit.conn, user.tenant):
            await unit.emit(TenantOpened(tenant=user.tenant))
        await unit.emit(user.ready)

    async def not_applied(self, task: ApplyUser, error: Exception, unit: Unit) -> None:
        log.error("kafka user could not be changed", user=task.user, error=str(error))
        await unit.emit(
            CommandRefused(
                subject_id=task.user,
                command=task.command,
                command_id=unit.correlation_id,
                code="not_applied",
                message=f"Kafka did not take the change of user {task.user}: {type(error).__name__}: {error}"[
                    :500
                ],
            )
        )

    async def renew_quotas(self) -> None:
        """Give users that were made under other settings the quotas of the current ones."""
        users = await store.list_users(self._service.database)
        await self._broker.set_quotas(users)
        removed_meanwhile = users - await store.list_users(self._service.database)
        await self._broker.remove_quotas(removed_meanwhile)


def register(service: Service, broker: Broker) -> None:
    accounts = Accounts(service, broker)
    service.on(AddTenantUser, accounts.add_tenant_user)
    service.on(AddSubscriber, accounts.add_subscriber)
    service.on(RotateKafkaUser, accounts.rotate)
    service.on(RemoveKafkaUser, accounts.remove)
    service.every(RENEW_QUOTAS_EVERY, accounts.renew_quotas, singleton=True)
    service.on_task(ApplyUser, work=accounts.apply, done=accounts.applied, failed=accounts.not_applied)
