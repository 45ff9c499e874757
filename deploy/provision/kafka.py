"""Users, topics and rights in a broker that allows nothing by default."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError

from deploy.provision.kafka_requests import ScramUser, replace_rights, set_passwords
from deploy.provision.rights import all_topics, kafka_rights, kafka_users
from deploy.provision.site import KAFKA_SUPER_USER, Site
from schemas.topics import Topic

SCRAM_ITERATIONS = 4096
TOPIC_EXISTS = 36
DAY_MS = 24 * 3600 * 1000


@asynccontextmanager
async def administrator(site: Site) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client with the rights of the broker itself."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=site.kafka_bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=KAFKA_SUPER_USER,
        sasl_plain_password=site.kafka_password(KAFKA_SUPER_USER),
    )
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def provision(site: Site, tenants: Iterable[str]) -> None:
    """Make users, topics and rights what the contract says; takes away what it no longer says."""
    tenants = tuple(tenants)
    users = [scram_user(user, site.kafka_password(user)) for user in kafka_users(tenants)]
    async with administrator(site) as admin:
        await set_passwords(admin, users)
        await _create_topics(admin, all_topics(tenants))
        await replace_rights(admin, kafka_rights(tenants))


def scram_user(name: str, secret: str) -> ScramUser:
    salt = secrets.token_bytes(24)
    salted = hashlib.pbkdf2_hmac("sha512", secret.encode(), salt, SCRAM_ITERATIONS)
    return ScramUser(name, SCRAM_ITERATIONS, salt, salted)


async def _create_topics(admin: AIOKafkaAdminClient, topics: tuple[Topic, ...]) -> None:
    wanted = [
        NewTopic(
            topic.name,
            topic.partitions,
            replication_factor=1,
            topic_configs={"retention.ms": str(topic.retention_days * DAY_MS)},
        )
        for topic in topics
    ]
    response = await admin.create_topics(wanted)
    existing = set()
    for name, code, *message in response.topic_errors:
        if code == TOPIC_EXISTS:
            existing.add(name)
        elif code != 0:
            raise KafkaError(f"topic {name} was not created: error {code} {message}")
    await _widen_topics(admin, [topic for topic in topics if topic.name in existing])


async def _widen_topics(admin: AIOKafkaAdminClient, topics: list[Topic]) -> None:
    """Partitions that the contract has gained since the topics were made."""
    if not topics:
        return
    found = await admin.describe_topics([topic.name for topic in topics])
    counts = {topic["topic"]: len(topic["partitions"]) for topic in found}
    narrow = [topic for topic in topics if counts[topic.name] < topic.partitions]
    if narrow:
        await admin.create_partitions({topic.name: NewPartitions(topic.partitions) for topic in narrow})
