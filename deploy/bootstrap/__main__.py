"""`python -m deploy.bootstrap`: set up a Kafka, a Postgres and an S3 server that somebody else has started.

`settings.py` says which variables it reads. Run again, it repairs what differs and applies new migrations.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import asyncpg
from aiokafka.errors import KafkaConnectionError
from botocore.exceptions import EndpointConnectionError, HTTPClientError

from deploy.bootstrap import kafka, postgres, s3
from deploy.bootstrap.settings import Settings, settings_of_the_environment
from deploy.bootstrap.site import Site
from schemas.layout import FORMER_ACCESS
from schemas.topics import SERVICES
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


def site_of(settings: Settings) -> Site:
    return Site(
        kafka_bootstrap=settings.kafka_bootstrap,
        kafka_mechanism=settings.kafka_mechanism,
        postgres_address=settings.postgres_address,
        s3_endpoint=settings.s3_endpoint,
        secret=settings.password,
        topics=settings.topics,
        runner_pools=settings.kafka_runner_pools,
        runner_quotas=settings.runner_quotas,
        former_runners=settings.kafka_former_runners,
        former_s3_users=tuple(user for user in FORMER_ACCESS if settings.has_password(f"s3:{user}")),
        ca_file=settings.tls.ca_file,
    )


async def bootstrap(site: Site, tenant: str, *, with_s3: bool) -> None:
    if with_s3:
        await _patiently("S3", lambda: s3.set_up(site))
    await _patiently("Postgres", lambda: postgres.set_up(site))
    for service in SERVICES:
        applied = await migrate(service, site.postgres_dsn(service), ca_file=site.ca_file)
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
    settings = settings_of_the_environment()
    work = bootstrap(site_of(settings), settings.tenant, with_s3=settings.s3_accounts)
    sys.exit(asyncio.run(work))
