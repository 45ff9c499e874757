"""Users, topics and rights in a broker that allows nothing by default."""

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from aiokafka.admin import AIOKafkaAdminClient

from deploy.bootstrap.rights import (
    all_topics,
    former_rights_of_runners,
    kafka_rights,
    kafka_users,
    pool_user,
)
from deploy.bootstrap.site import KAFKA_SUPER_USER, Site
from schemas.topics import Topic
from shared.messaging import administration
from shared.messaging.administration import (
    list_rights,
    replace_rights,
    scram_user,
    set_passwords,
    set_quotas,
)
from shared.messaging.delivery import topic_named
from shared.messaging.topics import create_topics

OF_A_TENANT = re.compile(r"tenant\.[^.]+\.(commands|events)")
MADE_AT_RUN_TIME = ("tenant-", "subscriber-")
"""How names of users begin that the service `accounts` makes."""


def administrator(site: Site) -> AbstractAsyncContextManager[AIOKafkaAdminClient]:
    """A client with the rights of the broker itself."""
    password = site.kafka_password(KAFKA_SUPER_USER)
    return administration.administrator(
        site.kafka_bootstrap,
        KAFKA_SUPER_USER,
        password,
        ca_file=site.ca_file,
        mechanism=site.kafka_mechanism,
    )


async def set_up(site: Site, tenants: Iterable[str]) -> None:
    """Make users, topics and rights what the contract says; takes away what it no longer says.

    Users that were made while the platform ran keep theirs, and their tenants' topics get the settings of now.
    """
    tenants = tuple(tenants)
    pools = site.runner_pools
    users = [scram_user(user, site.kafka_password(user)) for user in kafka_users(tenants, pools)]
    async with administrator(site) as admin:
        await set_passwords(admin, users)
        declared = all_topics(tenants)
        await create_topics(admin, (*declared, *await _topics_of_others(admin, declared)), site.topics)
        await set_quotas(admin, map(pool_user, pools), site.runner_quotas)
        rights = {*kafka_rights(tenants, pools)}
        if site.former_runners:
            former = former_rights_of_runners(await list_rights(admin))
            rights |= {right for right in former if right.user in kafka_users(tenants, pools)}
        await replace_rights(admin, rights, owns=owned_rights(tenants, pools))


async def _topics_of_others(admin: AIOKafkaAdminClient, declared: Iterable[Topic]) -> list[Topic]:
    """Topics of tenants that were opened while the platform ran."""
    names = set(await admin.list_topics()) - {topic.name for topic in declared}
    return [topic_named(name) for name in sorted(names) if OF_A_TENANT.fullmatch(name)]


def owned_rights(tenants: Iterable[str], pools: Iterable[str] = ()) -> Callable[[str, str], bool]:
    """Whether a right of this user on this resource is decided here."""
    users, topics = set(kafka_users(tenants, pools)), {topic.name for topic in all_topics(tenants)}

    def owns(user: str, resource: str) -> bool:
        if user not in users:
            return not user.startswith(MADE_AT_RUN_TIME)
        return resource in topics or not OF_A_TENANT.fullmatch(resource)

    return owns
