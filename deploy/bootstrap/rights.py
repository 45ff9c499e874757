"""Who may do what in Kafka and S3, derived from the contract in `schemas` and from nothing else."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from schemas.access import tenant_user
from schemas.layout import Access
from schemas.rights import Operation, Right, tenant_user_rights
from schemas.topics import (
    LISTENS,
    READERS,
    SERVICES,
    TOPICS,
    Topic,
    is_audited,
    listens_to_tenants,
    tenant_topics,
)
from shared.messaging.administration import CLUSTER

OPERATOR = "admin"
RUNNER = "runner"
RUNNER_READS = ("agent.directives",)
ACCOUNTS = "accounts"
ANY = "*"


def kafka_users(tenants: Iterable[str]) -> tuple[str, ...]:
    return (*SERVICES, RUNNER, OPERATOR, *map(tenant_user, tenants))


def s3_users() -> tuple[str, ...]:
    return (*SERVICES, RUNNER, OPERATOR)


def all_topics(tenants: Iterable[str]) -> tuple[Topic, ...]:
    return (*TOPICS, *(topic for tenant in tenants for topic in tenant_topics(tenant)))


def kafka_rights(tenants: Iterable[str]) -> list[Right]:
    tenants = tuple(tenants)
    writing = [
        Right(user, "write", "topic", topic.name) for topic in all_topics(tenants) for user in topic.writers
    ]
    of_tenants = {right for tenant in tenants for right in tenant_user_rights(tenant_user(tenant), tenant)}
    others = (*_reading_of_services(), *_reading_of_others(), *_administering())
    return [*dict.fromkeys((*writing, *sorted(of_tenants, key=str), *others))]


def _reading_of_services() -> list[Right]:
    topics = [Right(user, "read", "topic", topic.name) for user, heard in LISTENS.items() for topic in heard]
    groups = [Right(user, "read", "group", user) for user, heard in LISTENS.items() if heard]
    audited = [
        Right(user, "read", "topic", topic.name)
        for user in READERS
        for topic in TOPICS
        if is_audited(topic.name)
    ]
    of_tenants = (*filter(listens_to_tenants, SERVICES), *READERS)
    tenants = [Right(user, "read", "topic", "tenant.", prefixed=True) for user in of_tenants]
    return [*topics, *groups, *audited, *tenants]


def _reading_of_others() -> list[Right]:
    return [
        *(Right(RUNNER, "read", "topic", topic) for topic in RUNNER_READS),
        Right(OPERATOR, "read", "topic", ANY),
        Right(OPERATOR, "describe", "group", ANY),
        Right(OPERATOR, "read", "group", "admin-", prefixed=True),
        # Users and rights; quotas.
        Right(OPERATOR, "describe", "cluster", CLUSTER),
        Right(OPERATOR, "describe_configs", "cluster", CLUSTER),
    ]


def _administering() -> list[Right]:
    """Return rights of the service that makes users and tenants' topics; one on the cluster is one to every right."""
    operations: tuple[Operation, ...] = ("create", "describe", "alter_configs")
    topics = [Right(ACCOUNTS, each, "topic", "tenant.", prefixed=True) for each in operations]
    # Users and rights; quotas.
    cluster = [
        Right(ACCOUNTS, "alter", "cluster", CLUSTER),
        Right(ACCOUNTS, "alter_configs", "cluster", CLUSTER),
    ]
    return [*cluster, *topics]


def bucket_policy(bucket: str, access: Mapping[str, Access]) -> str:
    """Write each user's prefixes as an S3 bucket policy; who is not in it may touch nothing.

    Kept short: the server stores it in one extended attribute, and ext4 has 4 KiB for all of them.
    """
    prefixes = sorted(
        {
            prefix
            for allowed in access.values()
            for prefix in (*allowed.reads, *allowed.writes, *allowed.appends)
        }
    )
    statements = _merged(
        statement for prefix in prefixes for statement in _statements(bucket, prefix, access)
    )
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _merged(statements: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Statements that allow the same users the same of several resources are one."""
    resources: dict[str, list[str]] = {}
    for statement in statements:
        rest = json.dumps({name: value for name, value in statement.items() if name != "Resource"})
        resources.setdefault(rest, []).append(statement["Resource"])
    return [
        json.loads(rest) | {"Resource": several if len(several) > 1 else several[0]}
        for rest, several in resources.items()
    ]


def _statements(bucket: str, prefix: str, access: Mapping[str, Access]) -> Iterator[dict[str, Any]]:
    objects = f"arn:aws:s3:::{bucket}/{prefix}*"
    if readers := [user for user, allowed in access.items() if prefix in allowed.reads]:
        # Who writes has the right to all that is done with an object, below.
        if readers_alone := [user for user in readers if prefix not in access[user].writes]:
            yield _allow(readers_alone, "s3:GetObject", objects)
        listing = _allow(readers, "s3:ListBucket", f"arn:aws:s3:::{bucket}")
        yield listing | {"Condition": {"StringLike": {"s3:prefix": f"{prefix}*"}}}
    if writers := [user for user, allowed in access.items() if prefix in allowed.writes]:
        yield _allow(writers, ["s3:*Object", "s3:Abort*"], objects)
    if appenders := [user for user, allowed in access.items() if prefix in allowed.appends]:
        yield _allow(appenders, "s3:PutObject", objects)


def _allow(users: list[str], actions: str | list[str], resource: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": users, "Action": actions, "Resource": resource}
