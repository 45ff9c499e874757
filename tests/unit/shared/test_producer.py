"""What our producer does with a batch whose partition has no leader."""

import time
from types import SimpleNamespace

import pytest
from aiokafka.structs import TopicPartition

from shared.messaging.kafka import kafka_producer

PARTITION = TopicPartition("job.events", 0)
HOUR = 3_600.0


@pytest.mark.parametrize("leader", [None, -1], ids=["partition unknown", "election under way"])
async def test_it_keeps_it_however_long_the_election_takes(monkeypatch, leader):
    producer = kafka_producer("127.0.0.1:1", "tracker", "secret", client_id="tracker")
    accumulator = producer._message_accumulator
    accumulator._cluster = SimpleNamespace(leader_for_partition=lambda partition: leader)
    batch = producer.create_batch()
    batch.append(timestamp=None, key=b"job", value=b"{}")
    acknowledged = await accumulator.add_batch(batch, PARTITION, timeout=1)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + HOUR)
    accumulator.drain_by_nodes(ignore_nodes=())
    assert not acknowledged.done()
    assert list(accumulator._batches) == [PARTITION]
    acknowledged.cancel()
    producer._closed = True  # it was never started, so there is nothing to close
