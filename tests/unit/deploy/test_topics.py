"""Topics are made with the settings of the site, and what differs and cannot be changed is said."""

import pytest

from deploy.bootstrap.settings import settings_of_the_environment
from schemas.envelope import MAX_BATCH_BYTES
from schemas.topics import JOB_EVENTS, PARKED_COMMANDS, tenant_commands, tenant_events
from shared.messaging.topics import KafkaTopics, differences, topic_configs

ADDRESSES = {"KAFKA_BOOTSTRAP": "k:1", "POSTGRES_ADDRESS": "p:2", "S3_ENDPOINT": "s:3", "TENANT": "demo"}


@pytest.fixture
def topics_of(monkeypatch):
    """The settings of topics in an environment with these variables."""

    def read(variables):
        for name, value in (ADDRESSES | variables).items():
            monkeypatch.setenv(name, value)
        return settings_of_the_environment().topics

    return read


@pytest.mark.parametrize("variables", [{}, {"KAFKA_MIN_INSYNC_REPLICAS": "", "KAFKA_REPLICATION_FACTOR": ""}])
def test_one_broker_is_the_default(topics_of, variables):
    assert topics_of(variables) == KafkaTopics(1, 1, MAX_BATCH_BYTES)


def test_of_three_copies_two_are_in_sync_unless_something_else_is_said(topics_of):
    assert topics_of({"KAFKA_REPLICATION_FACTOR": "3"}) == KafkaTopics(3, 2, MAX_BATCH_BYTES)
    settings = topics_of({"KAFKA_REPLICATION_FACTOR": "3", "KAFKA_MIN_INSYNC_REPLICAS": "1"})
    assert settings.min_insync_replicas == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"KAFKA_REPLICATION_FACTOR": "two"},
            "^KAFKA_REPLICATION_FACTOR: found 'two': Input should be a valid integer",
        ),
        ({"KAFKA_REPLICATION_FACTOR": "0"}, "found 1, expected 1 to KAFKA_REPLICATION_FACTOR"),
        ({"KAFKA_MIN_INSYNC_REPLICAS": "2"}, "found 2, expected 1 to KAFKA_REPLICATION_FACTOR"),
        ({"KAFKA_MAX_MESSAGE_BYTES": "1000"}, "found 1000, expected at least 1048576"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(topics_of, environment, expected):
    with pytest.raises(SystemExit, match=expected):
        topics_of(environment)


def test_a_topic_is_made_as_the_settings_say():
    assert topic_configs(JOB_EVENTS, KafkaTopics(3, 2, 2_000_000)) == {
        "retention.ms": "2592000000",
        "min.insync.replicas": "2",
        "max.message.bytes": "2000000",
        "message.timestamp.after.max.ms": "86400000",
    }


def test_what_only_a_person_can_change_is_said():
    copies = {"job.events": [3, 3, 3, 3], "parked.commands": [1]}
    lines = list(differences([JOB_EVENTS, PARKED_COMMANDS], copies, KafkaTopics(3, 2)))
    assert lines == [
        "topic job.events: found 4 partitions, expected 3; Kafka cannot take partitions away",
        "topic parked.commands: found 1 copies of a partition, expected 3; move it with kafka-reassign-partitions",
    ]
    assert list(differences([JOB_EVENTS], {"job.events": [3, 3]}, KafkaTopics(3, 2))) == []


def test_a_tenants_facts_are_kept_as_long_as_is_set(topics_of):
    topics = topics_of({"KAFKA_TENANT_RETENTION_DAYS": "9"})
    assert topic_configs(tenant_events("acme"), topics)["retention.ms"] == str(9 * 24 * 3600 * 1000)
    assert topic_configs(tenant_commands("acme"), topics)["retention.ms"] == str(30 * 24 * 3600 * 1000)


def test_facts_are_kept_at_least_as_long_as_in_the_outbox(topics_of):
    with pytest.raises(SystemExit, match="KAFKA_TENANT_RETENTION_DAYS: found 6, expected at least 7"):
        topics_of({"KAFKA_TENANT_RETENTION_DAYS": "6"})
