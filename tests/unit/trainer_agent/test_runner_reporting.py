"""What a runner reads of its grant, and what it keeps while Kafka is away."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from schemas.training import RunnerHeartbeat, StepMetrics, StepValidated
from services.trainer_agent.runner import metrics
from services.trainer_agent.runner.channel import NotAcknowledged
from services.trainer_agent.runner.metrics import MetricsBatch
from services.trainer_agent.runner.reporting import Heartbeat
from shared.nodes import fence
from shared.nodes.fence import GrantReader
from tests.waiting import PATIENCE_SECONDS

NODE = "a-job-e1-n0"


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "grant"
    file.write_text(NODE)
    return file


@pytest.fixture
def reader(file, monkeypatch):
    """It reads without end until its grant is withdrawn."""
    monkeypatch.setattr(fence, "GRANT_POLL_SECONDS", 0.001)
    reader = GrantReader(file, node_id=NODE)
    yield reader
    file.unlink(missing_ok=True)
    if reader.is_alive():
        reader.join(10)


class TestGrant:
    def until(self, condition) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come"

    def test_that_is_there_holds_as_of_the_newest_read(self, reader):
        began = time.monotonic()
        reader.start()
        self.until(lambda: reader.grant.read_at > began + 0.01)
        assert not reader.grant.is_withdrawn

    @pytest.mark.parametrize("content", ["", "a-job-e2-n0"])
    def test_of_another_node_is_none(self, reader, file, content):
        file.write_text(content)
        reader.start()
        self.until(lambda: reader.grant.is_withdrawn)

    def test_whose_file_or_folder_is_gone_is_withdrawn(self, reader, file):
        reader.start()
        file.unlink()
        self.until(lambda: reader.grant.is_withdrawn)

    def test_that_cannot_be_read_stays_as_it_was_read_last(self, reader, file):
        file.unlink()
        file.mkdir()
        before = reader.grant
        assert reader._read(time.monotonic()) is before
        file.rmdir()


class Channel:
    """Kafka, which takes nothing while it is away."""

    def __init__(self) -> None:
        self.is_away = True
        self.sent = []

    async def send(self, message, *, event_id, time):
        if self.is_away:
            raise NotAcknowledged
        self.sent.append(message)


class Silent(Channel):
    async def send(self, message, *, event_id, time):
        self.sent.append(message)
        await asyncio.get_running_loop().create_future()


def a_step(number: int) -> StepMetrics:
    return StepMetrics(
        step=number,
        time=datetime(2027, 3, 1, tzinfo=UTC),
        loss=1.0,
        learning_rate=0.1,
        grad_norm=1.0,
        num_tokens=8,
        tokens_per_second=1.0,
        memory_bytes=1,
        epoch=0.1,
    )


class TestSteps:
    async def test_of_an_outage_are_sent_after_it_in_their_order(self):
        channel = Channel()
        batch = MetricsBatch(channel, job_id="job", tenant="t", attempt=1)
        batch.add(a_step(1))
        await batch.send()
        batch.add(a_step(2))
        channel.is_away = False
        await batch.send()
        assert [step.step for message in channel.sent for step in message.steps] == [1, 2]

    async def test_of_a_long_outage_are_the_newest(self, monkeypatch):
        monkeypatch.setattr(metrics, "MAX_KEPT_STEPS", 2)
        channel = Channel()
        batch = MetricsBatch(channel, job_id="job", tenant="t", attempt=1)
        for number in range(1, 5):
            batch.add(a_step(number))
            await batch.send()
        channel.is_away = False
        await batch.send()
        assert [step.step for message in channel.sent for step in message.steps] == [3, 4]


class TestValidations:
    """Each is told with its step or after it, so that whoever keeps steps knows that one."""

    def batch(self, channel: Channel, *validated: int) -> MetricsBatch:
        batch = MetricsBatch(channel, job_id="job", tenant="t", attempt=1)
        for number in validated:
            batch.add_validation(StepValidated(step=number, metrics={"valid_loss": 1.0}))
        return batch

    def recorded(self, channel: Channel) -> list[tuple[list[int], list[int]]]:
        return [
            ([step.step for step in message.steps], [each.step for each in message.validations])
            for message in channel.sent
        ]

    async def test_of_many_steps_go_with_the_batch_of_theirs(self, monkeypatch):
        monkeypatch.setattr(metrics, "MAX_STEPS", 2)
        channel = Channel()
        channel.is_away = False
        batch = self.batch(channel, 2, 3, 5)
        for number in range(1, 6):
            batch.add(a_step(number))
        await batch.send()
        assert self.recorded(channel) == [([1, 2], [2]), ([3, 4], [3]), ([5], [5])]

    async def test_after_their_steps_are_sent_alone_and_in_bounded_batches(self, monkeypatch):
        monkeypatch.setattr(metrics, "MAX_STEPS", 2)
        channel = Channel()
        channel.is_away = False
        await self.batch(channel, 1, 2, 3).send()
        assert self.recorded(channel) == [([], [1, 2]), ([], [3])]

    async def test_of_an_outage_are_sent_after_it(self):
        channel = Channel()
        batch = self.batch(channel, 1)
        batch.add(a_step(1))
        await batch.send()
        batch.add_validation(StepValidated(step=2, metrics={}))
        channel.is_away = False
        await batch.send()
        assert self.recorded(channel) == [([1], [1, 2])]


async def test_no_more_than_three_heartbeats_are_under_way():
    channel = Silent()
    heartbeat = Heartbeat(channel, every=timedelta(milliseconds=1))

    def beat() -> RunnerHeartbeat:
        return RunnerHeartbeat(job_id="j", tenant="t", attempt=1, node_index=0, step=0, state="training")

    running = asyncio.create_task(heartbeat.run(beat))
    for _ in range(50):
        await asyncio.sleep(0.001)
    running.cancel()
    assert len(channel.sent) == 3
