"""Who may do what in Kafka and S3, derived from the contract in `schemas` and from nothing else."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
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
READ_BY_FORMER_RUNNERS = "agent.directives"
"""Topic that runners of an older release read."""
ACCOUNTS = "accounts"
ANY = "*"
WRITING = ["s3:*Object", "s3:Abort*"]
MOST_ALONE = 3
"""Users of the bucket's policy whose prefixes may be statements of their own, where it is shorter that way."""
Statement = dict[str, Any]


def pool_user(pool: str) -> str:
    """Return the login of the nodes of a pool that does not use the one of all pools."""
    return f"{RUNNER}-{pool}"


def kafka_users(tenants: Iterable[str], pools: Iterable[str] = ()) -> tuple[str, ...]:
    """`pools`: those with a login of their own."""
    return (*SERVICES, RUNNER, *map(pool_user, pools), OPERATOR, *map(tenant_user, tenants))


def s3_users() -> tuple[str, ...]:
    return (*SERVICES, OPERATOR)


def all_topics(tenants: Iterable[str]) -> tuple[Topic, ...]:
    return (*TOPICS, *(topic for tenant in tenants for topic in tenant_topics(tenant)))


def kafka_rights(tenants: Iterable[str], pools: Iterable[str] = ()) -> list[Right]:
    """`pools`: those with a login of their own, which may do what the login of all pools may."""
    tenants = tuple(tenants)
    writing = [
        Right(user, "write", "topic", topic.name) for topic in all_topics(tenants) for user in topic.writers
    ]
    of_tenants = {right for tenant in tenants for right in tenant_user_rights(tenant_user(tenant), tenant)}
    others = (*_reading_of_services(), *_reading_of_others(), *_administering())
    rights = [*dict.fromkeys((*writing, *sorted(of_tenants, key=str), *others))]
    of_runners = [right for right in rights if right.user == RUNNER]
    return [*rights, *(replace(right, user=pool_user(pool)) for pool in pools for right in of_runners)]


def former_rights_of_runners(granted: Iterable[Right]) -> set[Right]:
    """Return those of these rights that runners of an older release need, and no other runner."""
    return {
        right
        for right in granted
        if (right.user == RUNNER or right.user.startswith(pool_user("")))
        and (right.operation, right.resource, right.name) == ("read", "topic", READ_BY_FORMER_RUNNERS)
    }


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
    writing = {user: {*allowed.writes, *allowed.appends} for user, allowed in access.items()}
    listing = {user: {*allowed.reads} for user, allowed in access.items()}
    # Who writes has the right to all that is done with an object.
    reading = {user: {*allowed.reads, *allowed.fetches} - writing[user] for user, allowed in access.items()}
    everything = f"arn:aws:s3:::{bucket}"

    def objects(prefixes: list[str]) -> str | list[str]:
        return _one_or_all([f"{everything}/{prefix}*" for prefix in prefixes])

    def fetch(users: list[str], prefixes: list[str]) -> Statement:
        return _allow(users, "s3:GetObject", objects(prefixes))

    def find(users: list[str], prefixes: list[str]) -> Statement:
        condition = {"StringLike": {"s3:prefix": _one_or_all([f"{each}*" for each in prefixes])}}
        return _allow(users, "s3:ListBucket", everything) | {"Condition": condition}

    def write(users: list[str], prefixes: list[str]) -> Statement:
        return _allow(users, WRITING, objects(prefixes))

    statements = [*_shortest(reading, fetch), *_shortest(listing, find), *_shortest(writing, write)]
    if appenders := [user for user, allowed in access.items() if allowed.appends]:
        statements.append(_allow(appenders, "s3:DeleteObject", f"{everything}/*") | {"Effect": "Deny"})
    return _compact({"Version": "2012-10-17", "Statement": statements})


def _shortest(
    prefixes_of: Mapping[str, set[str]], statement: Callable[[list[str], list[str]], Statement]
) -> list[Statement]:
    """Return the shortest of the statements in which some users stand alone, each with all of its prefixes."""
    choices = (
        [statement(users, prefixes) for users, prefixes in _grouped(prefixes_of, alone)]
        for count in range(MOST_ALONE + 1)
        for alone in combinations(prefixes_of, count)
    )
    return min(choices, key=lambda statements: len(_compact(statements)))


def _grouped(
    prefixes_of: Mapping[str, set[str]], alone: Collection[str]
) -> Iterator[tuple[list[str], list[str]]]:
    """Pairs of users and prefixes, so that each user of a pair has each prefix of it, and no user another one."""
    prefixes_by_users: dict[tuple[str, ...], list[str]] = {
        (user,): sorted(prefixes_of[user]) for user in alone if prefixes_of.get(user)
    }
    for prefix in sorted(set().union(*prefixes_of.values())):
        users = tuple(user for user in prefixes_of if user not in alone and prefix in prefixes_of[user])
        if users:
            prefixes_by_users.setdefault(users, []).append(prefix)
    for among, prefixes in prefixes_by_users.items():
        yield list(among), prefixes


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _one_or_all(texts: list[str]) -> str | list[str]:
    return texts if len(texts) > 1 else texts[0]


def _allow(users: list[str], actions: str | list[str], resource: str | list[str]) -> Statement:
    return {"Effect": "Allow", "Principal": users, "Action": actions, "Resource": resource}
