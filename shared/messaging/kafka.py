"""Clients of Kafka with the defaults that make them safe: SASL, idempotence, explicit offsets."""

import math
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from faststream.kafka import KafkaBroker
from faststream.middlewares import AckPolicy
from faststream.security import BaseSecurity, SASLScram512

from schemas.envelope import MAX_BATCH_BYTES
from shared.messaging.aiokafka_patches import patch_closed_transports, patch_closing_over_tls
from shared.messaging.batches import patch_batch_reading
from shared.record import Record
from shared.settings import ServiceSettings, Timing
from shared.tls import client_context

patch_batch_reading()
patch_closed_transports()
patch_closing_over_tls()

KafkaFailed = KafkaError
"""The error that every client made here raises, also when the broker is unavailable."""
RELAYED_BATCH_BYTES = 256 * 1024
"""Batch size for one partition. Only one batch of each is in flight, so small ones would wait for one another."""
TENANT_COMMANDS = r"tenant\.[^.]+\.commands"
"""Pattern of the topics that tenants write commands to, one for each tenant."""


def kafka_broker(settings: ServiceSettings, *, client_id: str) -> KafkaBroker:
    """Return a broker for consumers alone; facts are published by the relay."""
    return KafkaBroker(
        settings.kafka_bootstrap,
        client_id=client_id,
        security=_security(settings),
        ack_policy=AckPolicy.MANUAL,  # no offset is committed but by the service itself
        consumer_only=True,
        allow_auto_create_topics=False,
        metadata_max_age_ms=10_000,
        logger=None,
    )


def kafka_subscriber(
    broker: KafkaBroker,
    topics: Sequence[str],
    *,
    of_every_tenant: bool,
    group: str,
    member: str,
    timing: Timing,
) -> Any:
    """Return the subscriber of a process; with `of_every_tenant` it reads every tenant's commands too.

    A process that comes back as the same member takes its partitions back at once, without a rebalance for others.
    """
    options: dict[str, Any] = {
        "group_id": group,
        "group_instance_id": member,
        "auto_offset_reset": "none",  # MissingOffsets goes to the first record, and reports what is gone
        "session_timeout_ms": _milliseconds(timing.session_timeout),
        "rebalance_timeout_ms": _milliseconds(timing.rebalance_timeout),
        "heartbeat_interval_ms": _milliseconds(timing.heartbeat),
        "max_partition_fetch_bytes": 2 * 1024 * 1024,
        "isolation_level": "read_committed",
    }
    if of_every_tenant:
        either = "|".join(map(re.escape, topics))
        return broker.subscriber(pattern=rf"^({either}|{TENANT_COMMANDS})$", **options)
    return broker.subscriber(*topics, **options)


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)


def kafka_producer(
    bootstrap: str, username: str, password: str, *, client_id: str, ca_file: Path | None = None
) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=client_id,
        enable_idempotence=True,
        linger_ms=2,
        max_batch_size=RELAYED_BATCH_BYTES,
        max_request_size=MAX_BATCH_BYTES,
        request_timeout_ms=10_000,
        **sasl(username, password, ca_file=ca_file),
    )
    # The client counts a batch's time while its partition has no leader, and a batch that it drops has a sequence
    # number that the broker waits for; each sender has a time limit of its own.
    producer._message_accumulator._batch_ttl = math.inf  # noqa: SLF001
    return producer


def sasl(
    username: str, password: str, *, ca_file: Path | None = None, mechanism: str = "SCRAM-SHA-512"
) -> dict[str, Any]:
    """Return the keyword arguments that log any aiokafka client in: over TLS if there are authorities."""
    context = client_context(ca_file)
    return {
        "security_protocol": "SASL_SSL" if context else "SASL_PLAINTEXT",
        "ssl_context": context,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": username,
        "sasl_plain_password": password,
    }


def _security(settings: ServiceSettings) -> BaseSecurity:
    context = client_context(settings.tls.ca_file)
    return SASLScram512(
        username=settings.kafka_username,
        password=settings.kafka_password.get_secret_value(),
        ssl_context=context,
        use_ssl=context is not None,
    )


def record_of_kafka(raw: Any) -> Record:
    """Return our record for one of aiokafka's consumer."""
    headers = tuple(raw.headers)
    return Record(raw.topic, raw.partition, raw.offset, raw.key, headers, raw.value, raw.timestamp)
