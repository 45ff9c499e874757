"""The rights follow from the contract and from nothing else."""

import json

import pytest

from deploy.bootstrap.kafka import owned_rights
from deploy.bootstrap.rights import ANY, bucket_policy, kafka_rights, kafka_users
from schemas.layout import ACCESS, FORMER_ACCESS, Access
from schemas.rights import Right
from schemas.topics import LISTENS, READERS, SERVICES, TOPICS

EXT4_ATTRIBUTES_BYTES = 3800
"""What ext4 leaves for the policy beside the other attributes of the bucket: 3874 bytes were stored, 3924 were not."""


def writers(topic: str) -> set[str]:
    return {
        right.user for right in kafka_rights(["demo"]) if (right.operation, right.name) == ("write", topic)
    }


def test_exactly_the_writers_of_a_topic_may_write_it():
    assert {topic.name: writers(topic.name) for topic in TOPICS} == {
        topic.name: set(topic.writers) for topic in TOPICS
    }


def test_every_writer_is_a_user():
    assert {user for topic in TOPICS for user in topic.writers} <= set(kafka_users(["demo"]))


def test_a_service_reads_what_it_listens_to_in_its_own_group():
    for service in set(SERVICES) - set(READERS):
        read = {
            right.name
            for right in kafka_rights(["demo"])
            if (right.user, right.operation) == (service, "read")
        }
        own = {topic.name for topic in LISTENS[service]} | {service}
        assert read == (own | {"tenant."} if service == "gateway" else own)


def test_a_reader_reads_what_is_audited_in_no_group_and_writes_nothing():
    rights = [right for right in kafka_rights(["demo"]) if right.user == "auditor"]
    assert {(right.operation, right.resource) for right in rights} == {("read", "topic")}
    audited = {topic.name for topic in TOPICS} - {"run.metrics"}
    assert {right.name for right in rights} == audited | {"tenant."}


def test_a_tenant_writes_one_topic_and_reads_another():
    rights = {right for right in kafka_rights(["acme", "other"]) if right.user == "tenant-acme"}
    assert rights == {
        Right("tenant-acme", "write", "topic", "tenant.acme.commands"),
        Right("tenant-acme", "read", "topic", "tenant.acme.events"),
        Right("tenant-acme", "read", "group", "tenant-acme.", prefixed=True),
    }


def test_only_accounts_may_change_rights():
    rights = [right for right in kafka_rights(["acme"]) if right.operation not in ("read", "write")]
    assert {(right.user, right.resource, right.name) for right in rights} == {
        ("accounts", "cluster", "kafka-cluster"),
        ("accounts", "topic", "tenant."),
        ("admin", "cluster", "kafka-cluster"),
        ("admin", "group", ANY),
    }
    seeing = {(right.operation, right.resource) for right in rights if right.user == "admin"}
    assert seeing == {("describe", "cluster"), ("describe_configs", "cluster"), ("describe", "group")}


@pytest.mark.parametrize(
    ("user", "resource", "is_ours"),
    [
        ("gateway", "job.events", True),
        ("gateway", "tenant.demo.events", True),
        ("tenant-demo", "tenant-demo.", True),
        ("a-former-service", "job.events", True),
        ("gateway", "tenant.acme.events", False),
        ("tenant-acme", "tenant.acme.commands", False),
        ("tenant-demo.ci", "tenant.demo.events", False),
        ("subscriber-billing", "cost.events", False),
    ],
)
def test_the_set_up_leaves_alone_what_was_made_at_run_time(user: str, resource: str, is_ours: bool):
    assert owned_rights(["demo"])(user, resource) == is_ours


def test_only_the_operator_has_a_right_on_everything():
    everything = [right for right in kafka_rights(["demo"]) if right.name == ANY]
    assert {(right.user, right.operation) for right in everything} == {
        ("admin", "read"),
        ("admin", "describe"),
    }


def test_the_policy_gives_each_user_its_prefixes():
    policy = json.loads(
        bucket_policy("b", {"ann": Access(reads=("x/",), writes=("y/",)), "bob": Access(reads=("x/",))})
    )
    assert policy["Statement"] == [
        {
            "Effect": "Allow",
            "Principal": ["ann", "bob"],
            "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::b/x/*",
        },
        {
            "Effect": "Allow",
            "Principal": ["ann", "bob"],
            "Action": "s3:ListBucket",
            "Resource": "arn:aws:s3:::b",
            "Condition": {"StringLike": {"s3:prefix": "x/*"}},
        },
        {
            "Effect": "Allow",
            "Principal": ["ann"],
            "Action": ["s3:*Object", "s3:Abort*"],
            "Resource": "arn:aws:s3:::b/y/*",
        },
    ]


def test_who_appends_may_put_and_not_delete():
    policy = json.loads(bucket_policy("b", {"ann": Access(appends=("x/",)), "bob": Access(writes=("x/",))}))
    writing, denied = policy["Statement"]
    assert (writing["Principal"], writing["Effect"]) == (["ann", "bob"], "Allow")
    assert denied == {
        "Effect": "Deny",
        "Principal": ["ann"],
        "Action": "s3:DeleteObject",
        "Resource": "arn:aws:s3:::b/*",
    }


@pytest.mark.parametrize("former", [{}, FORMER_ACCESS], ids=["new", "upgraded"])
def test_the_policy_fits_into_the_attributes_of_ext4(former):
    assert len(bucket_policy("retune", ACCESS | former)) < EXT4_ATTRIBUTES_BYTES
