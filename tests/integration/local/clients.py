"""Plain clients of the parts, with the credentials of one user of the stack."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from botocore.config import Config

from deploy.local.stack import Stack

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def kafka_login(stack: Stack, user: str, password: str | None = None) -> dict[str, Any]:
    return {
        "bootstrap_servers": stack.kafka_bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": user,
        "sasl_plain_password": password or stack.kafka_password(user),
    }


@asynccontextmanager
async def producer(stack: Stack, user: str, **login: str) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(enable_idempotence=True, **kafka_login(stack, user, **login))
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def consumer(
    stack: Stack, user: str, *topics: str, group: str | None = None
) -> AsyncIterator[AIOKafkaConsumer]:
    client = AIOKafkaConsumer(
        *topics,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **kafka_login(stack, user),
    )
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


@contextmanager
def s3(stack: Stack, user: str, secret: str | None = None) -> Iterator["S3Client"]:
    key = stack.s3_credentials(user)
    client = boto3.client(
        "s3",
        endpoint_url=stack.s3_endpoint,
        region_name="us-east-1",
        aws_access_key_id=key.access_key,
        aws_secret_access_key=secret or key.secret_key,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )
    try:
        yield client
    finally:
        client.close()
