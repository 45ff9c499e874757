"""Every principal on every topic, every role on every table and view: exactly what `deploy/bootstrap/rights.yaml` says."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeAclsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.produce import ProduceRequest

from deploy.bootstrap import rights
from deploy.bootstrap.rights import kafka_rights, kafka_users
from deploy.local.stack import Stack
from schemas.topics import SERVICES, TOPICS, tenant_topics
from shared.messaging.administration import (
    DescribeQuotas,
    NotAuthorized,
    administrator,
    list_rights,
    list_users,
)
from shared.messaging.kafka import sasl
from shared.postgres.migrate import migrate
from tests.chaos.scale import note

pytestmark = pytest.mark.stack

DECLARED = yaml.safe_load(Path(rights.__file__).with_name("rights.yaml").read_text())
TENANTS = ("demo", "other")
TOPIC_NAMES = [topic.name for topic in (*TOPICS, *(each for t in TENANTS for each in tenant_topics(t)))]
NEW_TOPICS = ("new.events", "tenant.new.events")
GROUPS = tuple(DECLARED["kafka"]["groups"])
NOT_ALLOWED = {"topic": 29, "group": 30, "cluster": 31}
"""Codes of the Kafka protocol; any other answer comes from behind the check of the right."""
NO_RECORDS = b""
TABLE_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
ALL_TABLES = """
    SELECT schemaname, relation FROM (
        SELECT schemaname, tablename AS relation FROM pg_tables UNION SELECT schemaname, viewname FROM pg_views) AS all_of_them
     WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"""
MAY = "SELECT has_schema_privilege($1, $2, 'USAGE') AND has_table_privilege($1, $3, $4)"

Right = tuple[str, str, str]
"""Principal, operation, what it is done to."""


@asynccontextmanager
async def client_of(stack: Stack, user: str) -> AsyncIterator[AIOKafkaClient]:
    login = sasl(user, stack.kafka_password(user))
    client = AIOKafkaClient(bootstrap_servers=stack.kafka_bootstrap, **login)
    await client.bootstrap()
    yield client
    await client.close()


async def kafka_rights_of(stack: Stack, user: str) -> set[Right]:
    """What the broker lets this user do. Nothing is written: the broker checks rights before records."""
    async with client_of(stack, user) as client:
        node = client.get_random_node()

        async def ask(request: Any) -> Any:
            return await client.send(node, request)

        written = await ask(ProduceRequest(None, 1, 5000, [(t, [(0, NO_RECORDS)]) for t in TOPIC_NAMES]))
        fetched = await ask(FetchRequest(0, 0, 1, 0, [(t, [(0, 0, 1)]) for t in TOPIC_NAMES]))
        rights = {
            *may(user, "write", ((topic, each[0][1]) for topic, each in written.topics), "topic"),
            *may(user, "read", ((topic, each[0][1]) for topic, each in fetched.topics), "topic"),
        }
        for group in GROUPS:
            answer = await ask(HeartbeatRequest(group, 0, "nobody"))
            rights |= set(may(user, "join", [(group, answer.error_code)], "group"))
        created = await ask(CreateTopicsRequest([(name, 1, 1, [], []) for name in NEW_TOPICS], 5000, True))
        rights |= set(may(user, "create", [(each[0], each[1]) for each in created.topic_errors], "topic"))
        gone = await ask(DeleteTopicsRequest(TOPIC_NAMES, 5000))
        rights |= set(may(user, "delete", list(gone.topic_error_codes), "topic"))
        acls = await ask(DescribeAclsRequest(1, None, 1, None, None, 1, 1))
        rights |= set(may(user, "see rights", [("cluster", acls.error_code)], "cluster"))
        quotas = await ask(DescribeQuotas())
        rights |= set(may(user, "see quotas", [("cluster", quotas.error_code)], "cluster"))
    return rights


def may(user: str, operation: str, answers: Iterable[tuple[str, int]], kind: str) -> Iterable[Right]:
    refusals = {NOT_ALLOWED[kind], NOT_ALLOWED["cluster"]}
    return [(user, operation, what) for what, code in answers if code not in refusals]


def declared_of(user: str) -> set[Right]:
    kafka = DECLARED["kafka"]
    rights = {(user, "join", group) for group, members in kafka["groups"].items() if user in members}
    for topic, operation in product(TOPIC_NAMES, ("write", "read")):
        family, *names, kind = topic.split(".")
        tenant = names[0] if names else ""
        entry = kafka["topics"][f"{family}.<t>.{kind}" if tenant else topic]
        allowed = [name.replace("<t>", tenant) for name in entry[operation]]
        if user in allowed or (operation == "read" and user in kafka["read_all"]):
            rights.add((user, operation, topic))
    if user in kafka["administers"]:
        rights |= {
            (user, "create", "tenant.new.events"),
            (user, "see rights", "cluster"),
            (user, "see quotas", "cluster"),
        }
    if user in kafka["sees_access"]:
        rights |= {(user, "see rights", "cluster"), (user, "see quotas", "cluster")}
    return rights


@pytest.mark.parametrize("user", kafka_users(TENANTS))
async def test_a_kafka_user_may_do_what_is_declared_and_no_more(stack: Stack, user: str):
    allowed = await kafka_rights_of(stack, user)
    assert allowed == declared_of(user)
    note("rights of a user of Kafka", allowed=len(allowed))


async def test_the_operator_sees_users_and_rights_and_another_user_does_not(stack: Stack):
    async with administrator(stack.kafka_bootstrap, "admin", stack.kafka_password("admin")) as admin:
        assert {*kafka_users(TENANTS)} <= await list_users(admin)
        assert {*kafka_rights(TENANTS)} <= await list_rights(admin)
    async with administrator(stack.kafka_bootstrap, "gateway", stack.kafka_password("gateway")) as client:
        for ask in (list_users, list_rights):
            with pytest.raises(NotAuthorized):
                await ask(client)


def test_every_topic_group_and_schema_is_declared():
    topics = {"tenant.<t>.commands", "tenant.<t>.events", *(topic.name for topic in TOPICS)}
    assert set(DECLARED["kafka"]["topics"]) == topics
    assert set(DECLARED["postgres"]["schemas"]) == set(SERVICES)


async def test_a_role_may_do_with_each_table_what_is_declared_and_no_more(stack: Stack):
    for service in SERVICES:
        await migrate(service, stack.postgres_dsn(service))
    conn = await asyncpg.connect(stack.postgres_dsn("postgres"))
    try:
        tables = [(row["schemaname"], row["relation"]) for row in await conn.fetch(ALL_TABLES)]
        roles = (*SERVICES, "operator")
        rights = {
            (role, right, f"{schema}.{table}")
            for role, (schema, table), right in product(roles, tables, TABLE_RIGHTS)
            if await conn.fetchval(MAY, role, schema, f'"{schema}"."{table}"', right)
        }
    finally:
        await conn.close()
    assert {schema for schema, _ in tables} == set(SERVICES)
    assert rights == {right for schema, table in tables for right in rights_on(schema, table)}
    note(
        "rights of roles",
        tables=len(tables),
        asked=len(roles) * len(tables) * len(TABLE_RIGHTS),
        allowed=len(rights),
    )


def rights_on(schema: str, table: str) -> set[Right]:
    entry = DECLARED["postgres"]["schemas"][schema]
    owning = {(entry["owner"], right, f"{schema}.{table}") for right in TABLE_RIGHTS}
    return owning | {(reader, "SELECT", f"{schema}.{table}") for reader in entry["read"]}
