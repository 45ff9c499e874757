"""The broker, as the one who may change users, rights, quotas and tenants' topics."""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from schemas.rights import Right, copying_rights
from schemas.topics import tenant_topics
from services.accounts.model import KafkaUser
from services.accounts.settings import Settings
from shared.messaging.administration import (
    ClientQuotas,
    administrator,
    lock_user,
    replace_rights,
    scram_user,
    set_passwords,
    set_quotas,
)
from shared.messaging.login import Login
from shared.messaging.topics import create_topics
from shared.passwords import derived_password


class Broker(Protocol):
    async def apply(self, user: KafkaUser) -> None:
        """Give the user its password, rights and quotas, no more; or take all away."""

    async def set_quotas(self, users: Iterable[str]) -> None:
        """Set the quotas of these users to those of the settings."""

    async def remove_quotas(self, users: Iterable[str]) -> None: ...

    async def open_tenant(self, tenant: str) -> None:
        """Make the tenant's topics, or give existing ones the current settings."""


class KafkaBroker:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        login = Login.of(settings)
        self._administrator = partial(
            administrator, login.bootstrap, login.username, login.password, ca_file=login.ca_file
        )

    async def apply(self, user: KafkaUser) -> None:
        async with self._administrator() as admin:
            if not user.rights:
                await lock_user(admin, user.name)
            await set_quotas(admin, [user.name], self._settings.quotas if user.rights else ClientQuotas())
            await replace_rights(admin, user.rights, owns=lambda name, _: name == user.name)
            if user.rights:
                # After the rest: a login that works has all of its rights, and is bounded.
                secret = self._settings.password_secret.get_secret_value()
                password = derived_password(secret, user.name, user.nonce)
                await set_passwords(admin, [scram_user(user.name, password)])

    async def set_quotas(self, users: Iterable[str]) -> None:
        async with self._administrator() as admin:
            await set_quotas(admin, users, self._settings.quotas)

    async def remove_quotas(self, users: Iterable[str]) -> None:
        async with self._administrator() as admin:
            await set_quotas(admin, users, ClientQuotas())

    async def open_tenant(self, tenant: str) -> None:
        rights: list[Right] = copying_rights(tenant)
        names = {(right.user, right.name) for right in rights}
        async with self._administrator() as admin:
            await create_topics(admin, tenant_topics(tenant), self._settings.topics)
            await replace_rights(admin, rights, owns=lambda user, name: (user, name) in names)
