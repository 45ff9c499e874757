"""Nobody gets further than the contract says: Kafka topics, Postgres schemas, S3 prefixes."""

from collections.abc import Awaitable
from contextlib import suppress

import asyncpg
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    TopicAuthorizationFailedError,
    for_code,
)
from botocore.exceptions import ClientError

from deploy.local.stack import Stack
from schemas.topics import SERVICES, TOPICS, tenant_commands
from tests.integration.local.clients import consumer, kafka_login, producer, s3
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack

TOPIC_REFUSED = 29


async def readable(stack: Stack, user: str, topic: str, group: str | None = None) -> None:
    """Send a record as the topic's writer and receive it as `user`. Raises the broker's refusal, if there is one."""
    await require_visible(stack, user, topic)
    async with producer(stack, writer_of(topic)) as client:
        sent = await client.send_and_wait(topic, b"{}", partition=0)
    partition = TopicPartition(topic, 0)
    async with consumer(stack, user, group=group) as client:
        client.assign([partition])
        client.seek(partition, sent.offset)
        received = await client.getmany(partition, timeout_ms=PATIENCE_SECONDS * 1000)
        assert received[partition][0].offset == sent.offset
        if group:
            # The answer to a consumer without a subscription where the group has members. The rights are checked first.
            with suppress(CommitFailedError):
                await client.commit({partition: sent.offset + 1})


async def require_visible(stack: Stack, user: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(**kafka_login(stack, user))
    try:
        await admin.start()
        described = await admin.describe_topics([topic])
    finally:
        await admin.close()
    if described[0]["error_code"]:
        raise for_code(described[0]["error_code"])(topic)


def writer_of(name: str) -> str:
    topics = (*TOPICS, tenant_commands("demo"), tenant_commands("other"))
    return next(topic.writers[0] for topic in topics if topic.name == name)


async def refused(attempt: Awaitable[None], *errors: type[Exception]) -> None:
    with pytest.raises(errors):
        await attempt


async def test_a_service_writes_its_own_topic_and_no_other(stack: Stack):
    async with producer(stack, "scheduler") as client:
        with pytest.raises(TopicAuthorizationFailedError):
            await client.send_and_wait("dataset.events", b"{}")
        sent = await client.send_and_wait("parked.scheduler", b"{}", key=b"refusals")
    assert sent.offset >= 0


async def test_runners_write_reports_and_metrics_only(stack: Stack):
    async with producer(stack, "runner") as client:
        with pytest.raises(TopicAuthorizationFailedError):
            await client.send_and_wait("training.events", b"{}")
    for topic in ("agent.directives", "agent.reports"):
        await refused(readable(stack, "runner", topic), TopicAuthorizationFailedError)


async def test_a_tenant_writes_its_own_commands_and_nobody_elses(stack: Stack):
    async with producer(stack, "tenant-demo") as client:
        with pytest.raises(TopicAuthorizationFailedError):
            await client.send_and_wait("tenant.other.commands", b"{}")
        with pytest.raises(TopicAuthorizationFailedError):
            await client.send_and_wait("job.commands", b"{}")
        await client.send_and_wait("tenant.demo.commands", b"{}")
    await refused(readable(stack, "tenant-demo", "tenant.demo.commands"), TopicAuthorizationFailedError)


async def test_the_gateway_reads_the_commands_of_every_tenant(stack: Stack):
    await readable(stack, "gateway", "tenant.demo.commands", group="gateway")
    await readable(stack, "gateway", "tenant.other.commands", group="gateway")


async def test_a_service_reads_only_what_it_listens_to(stack: Stack):
    await readable(stack, "ingest", "dataset.commands", group="ingest")
    await refused(readable(stack, "ingest", "node.events", group="ingest"), TopicAuthorizationFailedError)


async def test_a_service_commits_in_its_own_group_only(stack: Stack):
    attempt = readable(stack, "ingest", "dataset.commands", group="scheduler")
    await refused(attempt, GroupAuthorizationFailedError)


@pytest.mark.parametrize("topic", ["job.events", "agent.reports", "parked.tracker", "tenant.demo.commands"])
async def test_the_operator_reads_every_topic(stack: Stack, topic: str):
    await readable(stack, "admin", topic, group="admin-look")


async def test_no_service_makes_topics(stack: Stack):
    admin = AIOKafkaAdminClient(**kafka_login(stack, "gateway"))
    try:
        await admin.start()
        response = await admin.create_topics([NewTopic("mine.events", 1, 1)])
    finally:
        await admin.close()
    assert response.topic_errors[0][1] == TOPIC_REFUSED


async def test_a_wrong_password_does_not_get_in(stack: Stack):
    with pytest.raises(KafkaConnectionError):
        async with producer(stack, "scheduler", password="wrong"):
            pass


async def test_topics_have_the_partitions_of_the_contract(stack: Stack):
    admin = AIOKafkaAdminClient(**kafka_login(stack, "admin"))
    try:
        await admin.start()
        topics = await admin.describe_topics([topic.name for topic in TOPICS])
    finally:
        await admin.close()
    partitions = {topic["topic"]: len(topic["partitions"]) for topic in topics}
    assert partitions == {topic.name: topic.partitions for topic in TOPICS}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_role_uses_its_own_schema_and_sees_no_other(stack: Stack, service: str):
    foreign = next(name for name in SERVICES if name != service)
    owner = await asyncpg.connect(stack.postgres_dsn(foreign))
    await owner.execute("CREATE TABLE IF NOT EXISTS refusals (id int)")
    await owner.close()
    connection = await asyncpg.connect(stack.postgres_dsn(service))
    try:
        await connection.execute("CREATE TABLE refusals_own (id int); DROP TABLE refusals_own")
        for statement in (
            f"SELECT id FROM {foreign}.refusals",
            f"CREATE TABLE {foreign}.mine (id int)",
            "CREATE TABLE public.mine (id int)",
            "CREATE SCHEMA mine",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()


async def test_the_operator_reads_every_schema_and_writes_none(stack: Stack):
    owner = await asyncpg.connect(stack.postgres_dsn("ingest"))
    await owner.execute("CREATE TABLE IF NOT EXISTS refusals (id int)")
    await owner.close()
    connection = await asyncpg.connect(stack.postgres_dsn("operator"))
    try:
        await connection.fetch("SELECT id FROM ingest.refusals")
        for statement in ("INSERT INTO ingest.refusals VALUES (1)", "CREATE SCHEMA mine"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()


def status_of(error: pytest.ExceptionInfo[ClientError]) -> int:
    return error.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_a_service_writes_only_under_its_own_prefixes(stack: Stack):
    with s3(stack, "ingest") as client:
        client.put_object(Bucket=stack.s3_bucket, Key="datasets/refusals/report.json", Body=b"{}")
        for key in ("models/x/manifest.json", "blobs/x", "datasets", "elsewhere/x"):
            with pytest.raises(ClientError) as error:
                client.put_object(Bucket=stack.s3_bucket, Key=key, Body=b"{}")
            assert status_of(error) == 403, key


def test_a_service_reads_and_lists_only_its_own_prefixes(stack: Stack):
    with s3(stack, "evaluator") as client:
        client.put_object(Bucket=stack.s3_bucket, Key="evals/refusals/verdict.json", Body=b"{}")
    with s3(stack, "checkpoint_watcher") as client:
        with pytest.raises(ClientError) as error:
            client.get_object(Bucket=stack.s3_bucket, Key="evals/refusals/verdict.json")
        assert status_of(error) == 403
        with pytest.raises(ClientError) as error:
            client.list_objects_v2(Bucket=stack.s3_bucket, Prefix="evals/")
        assert status_of(error) == 403
        with pytest.raises(ClientError) as error:
            client.list_objects_v2(Bucket=stack.s3_bucket)
        assert status_of(error) == 403
        client.list_objects_v2(Bucket=stack.s3_bucket, Prefix="checkpoints/ftjob-x/")


def test_a_reader_learns_that_an_object_is_missing(stack: Stack):
    with s3(stack, "serving_controller") as client, pytest.raises(ClientError) as error:
        client.head_object(Bucket=stack.s3_bucket, Key="models/none/manifest.json")
    assert status_of(error) == 404


def test_a_writer_may_upload_in_parts_give_up_and_delete(stack: Stack):
    place = {"Bucket": stack.s3_bucket, "Key": "checkpoints/refusals/part"}
    with s3(stack, "checkpoint_watcher") as client:
        begun = client.create_multipart_upload(**place)
        client.upload_part(**place, UploadId=begun["UploadId"], PartNumber=1, Body=b"x")
        client.abort_multipart_upload(**place, UploadId=begun["UploadId"])
        client.put_object(**place, Body=b"x")
        client.delete_objects(Bucket=stack.s3_bucket, Delete={"Objects": [{"Key": place["Key"]}]})


def test_who_signs_for_nodes_adds_and_takes_nothing_away(stack: Stack):
    place = {"Bucket": stack.s3_bucket, "Key": "checkpoints/refusals/added"}
    with s3(stack, "trainer_agent") as client:
        client.put_object(**place, Body=b"x")
        begun = client.create_multipart_upload(**place)
        client.abort_multipart_upload(**place, UploadId=begun["UploadId"])
        with pytest.raises(ClientError) as error:
            client.delete_object(**place)
        assert status_of(error) == 403
        with pytest.raises(ClientError) as error:
            client.put_object(Bucket=stack.s3_bucket, Key="datasets/x/manifest.json", Body=b"x")
        assert status_of(error) == 403


def test_a_service_without_prefixes_touches_nothing(stack: Stack):
    with s3(stack, "scheduler") as client, pytest.raises(ClientError) as error:
        client.put_object(Bucket=stack.s3_bucket, Key="blobs/x", Body=b"")
    assert status_of(error) == 403


def test_nobody_changes_the_policy(stack: Stack):
    with s3(stack, "registry") as client, pytest.raises(ClientError) as error:
        client.delete_bucket_policy(Bucket=stack.s3_bucket)
    assert status_of(error) == 403
