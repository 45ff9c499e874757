"""Logins to Kafka that are made while the platform runs: what tenants and internal teams read, and what they may not."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    TopicAuthorizationFailedError,
)

from deploy.bootstrap import kafka as bootstrap
from deploy.local.site import site as local_site
from deploy.local.stack import Stack
from schemas.base import Message
from schemas.cost import CostAccrued
from schemas.envelope import Envelope, to_headers
from schemas.job import CancelJob, JobRunning, JobSubmitted
from schemas.model import AdaptersStale
from schemas.rights import group_prefix
from schemas.topics import (
    ACCESS_COMMANDS,
    DATASET_EVENTS,
    JOB_COMMANDS,
    JOB_EVENTS,
    TENANT_EVENTS,
    TOPICS,
    tenant_commands,
    tenant_events,
    tenant_topics,
)
from shared.clock import utc_now
from shared.messaging.kafka import sasl
from shared.messaging.topics import KafkaTopics
from tests.builders import a_job_spec, a_sha
from tests.integration.gateway.world import ENV, mark
from tests.integration.voices import Voices, voices
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack


class Operator:
    """Whoever has the operator's key."""

    def __init__(self, stack: Stack, speaking: Voices, db: asyncpg.Connection) -> None:
        self.stack = stack
        self.voices = speaking
        self.db = db
        key = stack.operator_env()["RETUNE_ADMIN_KEY"]
        self.http = httpx.AsyncClient(
            base_url=stack.url("gateway", "/v1/admin"),
            headers={"authorization": f"Bearer {key}"},
            timeout=60.0,
        )

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = await self.http.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def open_tenant(self) -> tuple[str, "Login"]:
        name = f"t-{mark()}"
        tenant = await self.ask("POST", "/tenants", {"name": name})
        return name, await self.opened(tenant["kafka"])

    async def add_subscriber(self, **body: Any) -> tuple[str, "Login"]:
        name = f"team-{mark()}"
        return name, await self.opened(await self.ask("POST", "/subscribers", {"name": name, **body}))

    @property
    def admin(self) -> "Login":
        return Login(self.stack.kafka_bootstrap, "admin", self.stack.kafka_password("admin"), "admin-")

    async def opened(self, user: dict[str, Any]) -> "Login":
        """The login once it works: Kafka may take longer for it than a request waits."""
        login = self.login(user)
        if user["state"] == "pending":
            await until(lambda: is_let_in(login), "the login")
        return login

    def login(self, user: dict[str, Any]) -> "Login":
        prefix = user.get("group_prefix", group_prefix(user["username"]))
        return Login(self.stack.kafka_bootstrap, user["username"], user["password"], prefix)

    async def a_job(self, tenant: str, **spec: Any) -> str:
        """With three facts, of two services."""
        job_id = f"ftjob-{mark()}"
        of_job = {"job_id": job_id, "tenant": tenant}
        submitted = JobSubmitted(
            **of_job, dataset_id=f"ds-{mark()}", spec=a_job_spec(**spec), submitted_at=utc_now()
        )
        await self.voices.say("scheduler", submitted, JobRunning(**of_job, attempt=1))
        cost = {"node_seconds": 1, "cost": "0.1", "total": "0.1", "capacity_type": "spot", "until": utc_now()}
        await self.voices.say("tracker", CostAccrued(**of_job, attempt=1, **cost))
        return job_id


@asynccontextmanager
async def stopping(client: Any) -> AsyncIterator[Any]:
    """Stopped as well where it was refused at the start."""
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


class Login:
    def __init__(self, bootstrap: str, user: str, password: str, group_prefix: str) -> None:
        self.bootstrap = bootstrap
        self.user = user
        self.password = password
        self.group_prefix = group_prefix

    @property
    def options(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.bootstrap, **sasl(self.user, self.password)}

    @asynccontextmanager
    async def consumer(self, *topics: str, group: str = "") -> AsyncIterator[AIOKafkaConsumer]:
        group = group or f"{self.group_prefix}{mark()}"
        consumer = AIOKafkaConsumer(*topics, group_id=group, auto_offset_reset="earliest", **self.options)
        async with stopping(consumer) as each:
            yield each

    def producer(self) -> Any:
        return stopping(AIOKafkaProducer(enable_idempotence=False, **self.options))

    async def read(self, topic: str, *, expected: int) -> list[Any]:
        """So many records, and all that are behind them by then."""
        records: list[Any] = []
        async with self.consumer(topic) as consumer, asyncio.timeout(PATIENCE_SECONDS):
            while len(records) < expected or not await is_at_end(consumer):
                batches = await consumer.getmany(timeout_ms=200)
                records += [record for batch in batches.values() for record in batch]
        return records

    async def send(self, topic: str, command: Message) -> None:
        envelope = Envelope(uuid4().hex, command.type, command.version, "/a/program", utc_now(), command.key)
        async with self.producer() as producer:
            value, key = command.model_dump_json().encode(), command.key.encode()
            await producer.send_and_wait(topic, value, key=key, headers=to_headers(envelope))

    async def write(self, topic: str) -> None:
        async with self.producer() as producer:
            await producer.send_and_wait(topic, b"{}", key=b"k")


async def drained(consumer: AIOKafkaConsumer) -> None:
    """For as long as it may read."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for _ in consumer:
            pass


async def is_at_end(consumer: AIOKafkaConsumer) -> bool:
    ends = await consumer.end_offsets(list(consumer.assignment()))
    return all([await consumer.position(partition) >= end for partition, end in ends.items()])


def headers(record: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


def story(records: list[Any], key: str) -> list[Any]:
    return [record for record in records if record.key == key.encode()]


def event_of(record: Any) -> tuple[Any, ...]:
    """Without its number, which is that of the story in this topic."""
    attributes = {name: value for name, value in headers(record).items() if name != "ce_sequence"}
    return record.key, record.value, sorted(attributes.items())


@pytest.fixture(scope="module")
async def operator(stack: Stack) -> AsyncIterator[Operator]:
    await stack.start("gateway", env=ENV)
    await stack.start("accounts")
    await stack.wait_healthy("gateway")
    await stack.wait_healthy("accounts")
    db = await asyncpg.connect(stack.postgres_dsn("gateway"))
    async with voices(stack) as speaking:
        operator = Operator(stack, speaking, db)
        yield operator
    await operator.http.aclose()
    await db.close()
    await stack.stop("accounts")
    await stack.stop("gateway")


ALL_ARE_MARKED = "SELECT NOT EXISTS (SELECT FROM unpublished)"
OPENING = 2
"""Facts that a tenant's topic begins with: that it is open, and who its first user is."""


class TestTenants:
    async def test_read_their_own_facts_as_they_were_and_no_others(self, operator):
        (ours, login), (theirs, _) = await operator.open_tenant(), await operator.open_tenant()
        first, foreign, second = [await operator.a_job(tenant) for tenant in (ours, theirs, ours)]
        records = await login.read(tenant_events(ours).name, expected=OPENING + 6)
        assert {record.key.decode() for record in records} == {ours, login.user, first, second}
        admin = operator.admin
        originals = [
            *await admin.read("job.events", expected=6),
            *await admin.read("cost.events", expected=3),
        ]
        for job_id in (first, second):
            copies = story(records, job_id)
            assert [headers(copy)["ce_sequence"] for copy in copies] == ["1", "2", "3"]
            assert sorted(map(event_of, copies)) == sorted(map(event_of, story(originals, job_id)))
            of_jobs = [
                headers(copy)["ce_type"]
                for copy in copies
                if headers(copy)["ce_source"] == "/retune/scheduler"
            ]
            assert of_jobs == ["retune.JobSubmitted.v1", "retune.JobRunning.v1"]
        assert story(records, foreign) == []

    async def test_read_nothing_else_and_write_no_fact(self, operator):
        (ours, login), (theirs, _) = await operator.open_tenant(), await operator.open_tenant()
        for topic in (
            tenant_commands(ours),
            tenant_events(theirs),
            JOB_EVENTS,
            TENANT_EVENTS,
            ACCESS_COMMANDS,
        ):
            with pytest.raises(TopicAuthorizationFailedError):
                await login.read(topic.name, expected=1)
        for topic in (tenant_events(ours), *tenant_topics(theirs), *TOPICS):
            with pytest.raises(TopicAuthorizationFailedError):
                await login.write(topic.name)
        with pytest.raises(GroupAuthorizationFailedError):
            async with login.consumer(tenant_events(ours).name, group=f"tenant-{theirs}.x") as consumer:
                await consumer.getone()

    async def test_read_the_refusals_of_their_own_commands(self, operator):
        tenant, login = await operator.open_tenant()
        command = CancelJob(job_id=f"ftjob-{mark()}", tenant=tenant)
        await login.send(tenant_commands(tenant).name, command)
        records = await login.read(tenant_events(tenant).name, expected=OPENING + 1)
        (refusal,) = story(records, command.job_id)
        assert headers(refusal)["ce_type"] == "retune.CommandRefused.v1"
        assert json.loads(refusal.value)["code"] == "unknown_job"

    async def test_read_that_the_files_of_their_base_model_changed(self, operator):
        (ours, login), (theirs, other) = await operator.open_tenant(), await operator.open_tenant()
        stale = AdaptersStale(base_model=f"base-{mark()}", stale_sha=a_sha(mark()), new_sha=a_sha(mark()))
        await operator.a_job(ours, base_sha=stale.stale_sha)
        await operator.a_job(theirs)
        await login.read(tenant_events(ours).name, expected=OPENING + 3)
        await operator.voices.say("registry", stale)
        records = await login.read(tenant_events(ours).name, expected=OPENING + 4)
        (copy,) = story(records, stale.base_model)
        assert headers(copy)["ce_type"] == "retune.AdaptersStale.v2"
        assert AdaptersStale.model_validate_json(copy.value) == stale
        await operator.a_job(theirs)
        records = await other.read(tenant_events(theirs).name, expected=OPENING + 6)
        assert story(records, stale.base_model) == []

    async def test_have_several_users_that_come_and_go_alone(self, operator):
        tenant, first = await operator.open_tenant()
        second = await operator.opened(await operator.ask("POST", f"/tenants/{tenant}/users", {"name": "ci"}))
        topic = tenant_events(tenant).name
        for login in (first, second):
            assert len(await login.read(topic, expected=OPENING + 1)) == OPENING + 1
        assert (await operator.ask("DELETE", f"/kafka-users/{first.user}"))["deleted"]
        with pytest.raises(KafkaConnectionError):
            await first.read(topic, expected=1)
        await second.read(topic, expected=OPENING + 1)
        await second.write(tenant_commands(tenant).name)
        users = (await operator.ask("GET", "/kafka-users"))["data"]
        assert [user["username"] for user in users if user["tenant"] == tenant] == [second.user]

    async def test_lose_no_fact_and_see_each_in_order_over_kills_of_the_gateway(self, operator):
        tenant, login = await operator.open_tenant()
        of_job = {"job_id": f"ftjob-{mark()}", "tenant": tenant}
        ids = []
        for attempt in range(1, 61):
            ids.append(await operator.voices.say("scheduler", JobRunning(**of_job, attempt=attempt)))
            if attempt % 15 == 0:
                await operator.stack.kill("gateway")
                await operator.stack.start("gateway", env=ENV)
        records = story(await login.read(tenant_events(tenant).name, expected=OPENING + 60), of_job["job_id"])
        once = list({(int(headers(each)["ce_sequence"]), headers(each)["ce_id"]): 1 for each in records})
        assert once == list(enumerate(ids, 1))
        await operator.stack.wait_healthy("gateway")

    async def test_know_a_fact_that_comes_again_by_its_id_and_number(self, operator):
        tenant, login = await operator.open_tenant()
        job_id, topic = await operator.a_job(tenant), tenant_events(tenant).name
        before = story(await login.read(topic, expected=OPENING + 3), job_id)
        rows = await operator.db.fetch("SELECT id FROM outbox WHERE topic = $1", topic)
        await until(lambda: operator.db.fetchval(ALL_ARE_MARKED), "the outbox to be marked as published")
        assert await operator.db.fetchval("SELECT republish($1)", [row["id"] for row in rows]) == len(rows)
        after = story(await login.read(topic, expected=2 * (OPENING + 3)), job_id)
        assert len(after) == 2 * len(before)
        assert {headers(each)["ce_id"]: headers(each)["ce_sequence"] for each in after} == {
            headers(each)["ce_id"]: headers(each)["ce_sequence"] for each in before
        }

    async def test_get_no_second_copy_of_a_fact_that_the_gateway_hears_twice(self, operator):
        tenant, login = await operator.open_tenant()
        of_job = {"job_id": f"ftjob-{mark()}", "tenant": tenant}
        event_id = await operator.voices.say("scheduler", JobRunning(**of_job, attempt=1))
        await operator.voices.say("scheduler", JobRunning(**of_job, attempt=1), event_id=event_id)
        await operator.voices.say("scheduler", JobRunning(**of_job, attempt=2))
        records = story(await login.read(tenant_events(tenant).name, expected=OPENING + 2), of_job["job_id"])
        assert [json.loads(record.value)["attempt"] for record in records] == [1, 2]


class TestSubscribers:
    async def test_read_what_they_were_given_and_write_nothing(self, operator):
        tenant, _ = await operator.open_tenant()
        _, login = await operator.add_subscriber(topics=["job.events"], tenants=[tenant])
        job_id = await operator.a_job(tenant)
        assert len(story(await login.read("job.events", expected=2), job_id)) == 2
        assert len(story(await login.read(tenant_events(tenant).name, expected=OPENING + 3), job_id)) == 3
        for topic in (*TOPICS, tenant_commands(tenant), tenant_events(tenant)):
            with pytest.raises((TopicAuthorizationFailedError, ClusterAuthorizationFailedError)):
                await login.write(topic.name)
        for topic in (JOB_COMMANDS, DATASET_EVENTS, tenant_commands(tenant)):
            with pytest.raises(TopicAuthorizationFailedError):
                await login.read(topic.name, expected=1)
        with pytest.raises(GroupAuthorizationFailedError):
            async with login.consumer("job.events", group="scheduler") as consumer:
                await consumer.getone()

    async def test_are_out_once_removed(self, operator):
        _, login = await operator.add_subscriber(topics=["job.events"])
        async with login.consumer("job.events") as consumer:
            await consumer.getmany(timeout_ms=100)
            assert (await operator.ask("DELETE", f"/kafka-users/{login.user}"))["deleted"]
            with pytest.raises((TopicAuthorizationFailedError, GroupAuthorizationFailedError)):
                await drained(consumer)
        with pytest.raises(KafkaConnectionError):
            await login.read("job.events", expected=0)

    async def test_have_only_their_newest_password(self, operator):
        _, login = await operator.add_subscriber(topics=["job.events"])
        renewed = await operator.opened(await operator.ask("POST", f"/kafka-users/{login.user}/rotate"))
        assert renewed.password != login.password
        with pytest.raises(KafkaConnectionError):
            await login.read("job.events", expected=0)
        await renewed.read("job.events", expected=0)

    async def test_of_changes_that_come_together_one_is_the_last(self, operator):
        _, login = await operator.add_subscriber(topics=["job.events"])
        path = f"/kafka-users/{login.user}/rotate"
        users = await asyncio.gather(*(operator.ask("POST", path) for _ in range(4)))
        renewed = [operator.login(user) for user in users]
        assert [await is_let_in(each) for each in (login, *renewed)].count(True) == 1
        assert (await operator.ask("DELETE", f"/kafka-users/{login.user}"))["deleted"]
        assert not any([await is_let_in(each) for each in (login, *renewed)])

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"topics": ["job.commands"]}, "topics"),
            ({"topics": ["run.metrics"]}, "topics"),
            ({"topics": ["tenant.demo.events"]}, "topics"),
            ({"topics": ["*"]}, "topics"),
            ({}, "topics"),
        ],
    )
    async def test_are_refused_what_is_no_lifecycle_topic(self, operator, body, param):
        answer = await operator.ask("POST", "/subscribers", {"name": f"team-{mark()}", **body}, status=400)
        assert answer["error"]["param"] == param

    async def test_are_made_once(self, operator):
        name, _ = await operator.add_subscriber(topics=["job.events"])
        answer = await operator.ask(
            "POST", "/subscribers", {"name": name, "topics": ["job.events"]}, status=400
        )
        assert answer["error"]["code"] == "user_exists"

    @pytest.mark.parametrize("name", ["", "a.b", "A", "a-", "x" * 41])
    async def test_of_a_name_that_is_no_label_are_not_made(self, operator, name):
        await operator.ask("POST", "/subscribers", {"name": name, "topics": ["job.events"]}, status=400)
        await operator.ask("POST", "/tenants", {"name": name}, status=400)
        await operator.ask("POST", "/tenants/demo/users", {"name": name}, status=400)

    async def test_of_a_tenant_that_does_not_exist_are_not_made(self, operator):
        await operator.ask(
            "POST", "/subscribers", {"name": f"team-{mark()}", "tenants": ["nobody"]}, status=404
        )
        await operator.ask("POST", "/kafka-users/subscriber-nobody/rotate", status=404)
        await operator.ask("DELETE", "/kafka-users/gateway", status=404)


async def test_a_set_up_that_is_run_again_leaves_them_what_they_have(operator):
    tenant, login = await operator.open_tenant()
    site = local_site(operator.stack.state)
    kept = replace(site, topics=KafkaTopics(tenant_retention_days=9))
    await bootstrap.set_up(kept, operator.stack.tenants)
    job_id, topic = await operator.a_job(tenant), tenant_events(tenant).name
    assert len(story(await login.read(topic, expected=OPENING + 3), job_id)) == 3
    async with bootstrap.administrator(site) as admin:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    values = {name: value for name, value, *_ in answer.resources[0][4]}
    assert values["retention.ms"] == str(9 * 24 * 3600 * 1000)


async def test_a_login_asked_for_while_accounts_is_away_works_once_it_is_back(operator):
    await operator.stack.stop("accounts")
    tenant = await operator.ask("POST", "/tenants", {"name": f"t-{mark()}"})
    assert tenant["kafka"]["state"] == "pending"
    await operator.stack.start("accounts")
    login = await operator.opened(tenant["kafka"])
    assert len(await login.read(tenant_events(tenant["name"]).name, expected=OPENING)) == OPENING
    await operator.stack.wait_healthy("accounts")


async def is_let_in(login: Login) -> bool:
    try:
        async with login.producer():
            return True
    except KafkaConnectionError:
        return False


async def test_the_command_line_makes_lists_rotates_and_removes_them(operator):
    name = f"team-{mark()}"
    created = await retune(operator, "subscribers", "create", name, "--topics", "job.events,model.events")
    assert (created["username"], created["reads"]) == (f"subscriber-{name}", ["job.events", "model.events"])
    assert created["username"] in [user["username"] for user in await retune(operator, "subscribers", "list")]
    rotated = await retune(operator, "subscribers", "rotate", name)
    assert rotated["password"] != created["password"]
    assert (await retune(operator, "subscribers", "remove", name))["deleted"]
    assert created["username"] not in [
        user["username"] for user in await retune(operator, "subscribers", "list")
    ]
    tenant = (await retune(operator, "tenants", "create", f"t-{mark()}"))["name"]
    await retune(operator, "tenants", "add-user", tenant, "ci")
    users = [user["username"] for user in await retune(operator, "tenants", "users", tenant)]
    assert users == [f"tenant-{tenant}", f"tenant-{tenant}.ci"]
    await retune(operator, "tenants", "rotate-user", tenant)
    await retune(operator, "tenants", "remove-user", tenant, "ci")
    assert len(await retune(operator, "tenants", "users", tenant)) == 1


async def retune(operator: Operator, *arguments: str) -> Any:
    command = (sys.executable, "-m", "cli.app", "--json", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, env=os.environ | operator.stack.operator_env(), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    return json.loads(output)
