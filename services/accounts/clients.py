"""The broker, as the one who may change users, rights and tenants' topics."""

from typing import Protocol

from schemas.rights import Right, copying_rights
from schemas.topics import tenant_topics
from services.accounts.model import KafkaUser
from services.accounts.settings import Settings
from shared.messaging.administration import (
    administrator,
    delete_user,
    replace_rights,
    scram_user,
    set_passwords,
)
from shared.messaging.topics import create_topics
from shared.passwords import derived_password


class Broker(Protocol):
    async def apply(self, user: KafkaUser) -> None:
        """Give the user its password and its rights, no more; or take both away."""

    async def open_tenant(self, tenant: str) -> None:
        """Make the tenant's topics, or give them the settings of now."""


class KafkaBroker:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        password = settings.kafka_password.get_secret_value()
        self._login = (settings.kafka_bootstrap, settings.kafka_username, password)

    async def apply(self, user: KafkaUser) -> None:
        async with administrator(*self._login) as admin:
            if not user.rights:
                await delete_user(admin, user.name)
            await replace_rights(admin, user.rights, owns=lambda name, _: name == user.name)
            if user.rights:
                # After the rights: a login that works has all of them.
                secret = self._settings.password_secret.get_secret_value()
                password = derived_password(secret, user.name, user.nonce)
                await set_passwords(admin, [scram_user(user.name, password)])

    async def open_tenant(self, tenant: str) -> None:
        rights: list[Right] = copying_rights(tenant)
        names = {(right.user, right.name) for right in rights}
        async with administrator(*self._login) as admin:
            await create_topics(admin, tenant_topics(tenant), self._settings.topics)
            await replace_rights(admin, rights, owns=lambda user, name: (user, name) in names)
