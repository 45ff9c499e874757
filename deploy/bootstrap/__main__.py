"""`python -m deploy.bootstrap`: set up a Kafka, a Postgres and an S3 server that somebody else has started.

Reads KAFKA_BOOTSTRAP, POSTGRES_ADDRESS, S3_ENDPOINT, TENANT and each password as SECRET_<NAME>, for example
SECRET_KAFKA_SCHEDULER; where they are set, also KAFKA_REPLICATION_FACTOR (1), KAFKA_MIN_INSYNC_REPLICAS (one less
than that), KAFKA_MAX_MESSAGE_BYTES (1 MiB) and KAFKA_TENANT_RETENTION_DAYS (30). Run again, it repairs what differs
and applies new migrations.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

import asyncpg
from aiokafka.errors import KafkaConnectionError
from botocore.exceptions import EndpointConnectionError, HTTPClientError

from deploy.bootstrap import kafka, postgres, s3
from deploy.bootstrap.site import Site
from schemas.envelope import MAX_BATCH_BYTES
from schemas.topics import SERVICES
from shared.messaging.topics import KafkaTopics
from shared.postgres.migrate import migrate

PATIENCE_SECONDS = 90.0
POLL_SECONDS = 1.0
NOT_THERE_YET = (
    KafkaConnectionError,
    EndpointConnectionError,
    HTTPClientError,
    asyncpg.CannotConnectNowError,
    OSError,
)


def variable(secret: str) -> str:
    """`kafka:tenant-demo` is found in SECRET_KAFKA_TENANT_DEMO."""
    return "SECRET_" + secret.replace(":", "_").replace("-", "_").upper()


def site_of(environment: Mapping[str, str]) -> Site:
    def find(name: str) -> str:
        if not environment.get(name):
            raise SystemExit(
                f"{name} is not set; addresses and TENANT come from docker-compose.yml, passwords from .env"
            )
        return environment[name]

    return Site(
        kafka_bootstrap=find("KAFKA_BOOTSTRAP"),
        postgres_address=find("POSTGRES_ADDRESS"),
        s3_endpoint=find("S3_ENDPOINT"),
        secret=lambda name: find(variable(name)),
        topics=topics_of(environment),
    )


def topics_of(environment: Mapping[str, str]) -> KafkaTopics:
    """Raises SystemExit where a number is none, or contradicts another."""
    try:
        factor = int(environment.get("KAFKA_REPLICATION_FACTOR") or 1)
        return KafkaTopics(
            replication_factor=factor,
            min_insync_replicas=int(environment.get("KAFKA_MIN_INSYNC_REPLICAS") or max(1, factor - 1)),
            max_message_bytes=int(environment.get("KAFKA_MAX_MESSAGE_BYTES") or MAX_BATCH_BYTES),
            tenant_retention_days=int(environment.get("KAFKA_TENANT_RETENTION_DAYS") or 30),
        )
    except ValueError as error:
        raise SystemExit(f"settings of Kafka's topics: {error}") from error


async def bootstrap(site: Site, tenant: str) -> None:
    await _patiently("S3", lambda: s3.set_up(site))
    await _patiently("Postgres", lambda: postgres.set_up(site))
    for service in SERVICES:
        applied = await migrate(service, site.postgres_dsn(service))
        print(f"schema {service}: {len(applied)} migrations applied", flush=True)
    await _patiently("Kafka", lambda: kafka.set_up(site, (tenant,)))


async def _patiently(part: str, work: Callable[[], Awaitable[None]]) -> None:
    """Try again while the server cannot be reached."""
    began = time.monotonic()
    while True:
        try:
            await work()
        except NOT_THERE_YET as error:
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise SystemExit(f"{part} does not answer after {PATIENCE_SECONDS:.0f} s: {error}") from error
            await asyncio.sleep(POLL_SECONDS)
        else:
            print(f"{part} set up in {time.monotonic() - began:.1f} s", flush=True)
            return


if __name__ == "__main__":
    sys.exit(asyncio.run(bootstrap(site_of(os.environ), os.environ["TENANT"])))
