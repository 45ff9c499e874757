"""Creation, change and check of the broker's topics by the contract and the operator's settings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from schemas.envelope import MAX_BATCH_BYTES
from schemas.topics import Topic

TOPIC_EXISTS = 36
DAY_MS = 24 * 3600 * 1000
MIN_RETENTION_DAYS = 7
MAX_AHEAD_MS = DAY_MS
"""How far a record's time, set by its producer's clock, may be ahead of the broker's before it is refused."""


@dataclass(frozen=True)
class KafkaTopics:
    """Settings with which every topic of the platform is made and checked."""

    replication_factor: int = 1
    """Number of brokers that have a copy."""
    min_insync_replicas: int = 1
    """Number of copies that have a record before it is acknowledged."""
    max_message_bytes: int = MAX_BATCH_BYTES
    """Limit of a batch as it is sent, after compression."""
    tenant_retention_days: int = 30
    """Number of days for which `tenant.<t>.events` keeps a fact."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_insync_replicas <= self.replication_factor:
            raise ValueError(
                f"KAFKA_MIN_INSYNC_REPLICAS: found {self.min_insync_replicas}, expected 1 to "
                f"KAFKA_REPLICATION_FACTOR ({self.replication_factor})"
            )
        if self.max_message_bytes < MAX_BATCH_BYTES:
            raise ValueError(
                f"KAFKA_MAX_MESSAGE_BYTES: found {self.max_message_bytes}, expected at least {MAX_BATCH_BYTES}, "
                "which producers of the platform may send"
            )
        if self.tenant_retention_days < MIN_RETENTION_DAYS:
            raise ValueError(
                f"KAFKA_TENANT_RETENTION_DAYS: found {self.tenant_retention_days}, expected at least "
                f"{MIN_RETENTION_DAYS}, for which outboxes keep what they sent"
            )


async def create_topics(admin: AIOKafkaAdminClient, topics: Sequence[Topic], settings: KafkaTopics) -> None:
    """Create these topics, or change them, to match the contract and the settings."""
    new_topics = [
        NewTopic(
            topic.name,
            topic.partitions,
            replication_factor=settings.replication_factor,
            topic_configs=topic_configs(topic, settings),
        )
        for topic in topics
    ]
    response = await admin.create_topics(new_topics)
    existing = set()
    for name, code, *message in response.topic_errors:
        if code == TOPIC_EXISTS:
            existing.add(name)
        elif code != 0:
            raise KafkaError(f"topic {name} was not created: error {code} {message}")
    await _update_topics(admin, [topic for topic in topics if topic.name in existing], settings)


def topic_configs(topic: Topic, settings: KafkaTopics) -> dict[str, str]:
    days = settings.tenant_retention_days if topic.is_copy else topic.retention_days
    return {
        "retention.ms": str(days * DAY_MS),
        "min.insync.replicas": str(settings.min_insync_replicas),
        "max.message.bytes": str(settings.max_message_bytes),
        "message.timestamp.after.max.ms": str(MAX_AHEAD_MS),
    }


async def _update_topics(admin: AIOKafkaAdminClient, topics: list[Topic], settings: KafkaTopics) -> None:
    """Add partitions to existing topics and change their settings. Raises WrongTopics if that cannot be done here."""
    if not topics:
        return
    described = await admin.describe_topics([topic.name for topic in topics])
    copies = {each["topic"]: [len(part["replicas"]) for part in each["partitions"]] for each in described}
    if problems := list(differences(topics, copies, settings)):
        raise WrongTopics("; ".join(problems))
    narrow = [topic for topic in topics if len(copies[topic.name]) < topic.partitions]
    if narrow:
        await admin.create_partitions({topic.name: NewPartitions(topic.partitions) for topic in narrow})
    configs = {topic.name: topic_configs(topic, settings) for topic in topics}
    await _alter_configs(admin, configs)


class WrongTopics(RuntimeError):
    """A topic does not match the contract or the settings, and only a person can change it."""


def differences(
    topics: Iterable[Topic], copies: Mapping[str, Sequence[int]], settings: KafkaTopics
) -> Iterator[str]:
    """Yield the problems of topics; `copies` maps a topic to the number of replicas of each of its partitions."""
    for topic in topics:
        replicas = copies[topic.name]
        if len(replicas) > topic.partitions:
            yield (
                f"topic {topic.name}: found {len(replicas)} partitions, expected {topic.partitions}; "
                "Kafka cannot take partitions away"
            )
        if min(replicas) < settings.replication_factor:
            yield (
                f"topic {topic.name}: found {min(replicas)} copies of a partition, expected "
                f"{settings.replication_factor}; move it with kafka-reassign-partitions"
            )


async def _alter_configs(admin: AIOKafkaAdminClient, configs: Mapping[str, Mapping[str, str]]) -> None:
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, config) for name, config in configs.items()]
    for response in await admin.alter_configs(resources):
        for code, message, _, name in response.resources:
            if code != 0:
                raise KafkaError(f"topic {name} was not changed: error {code} {message}")
