"""Which lines of level `error` the soak takes for explained by its faults. Needs no stack."""

import pytest

from tests.chaos.error_lines import EXPECTED, lines_of, unexpected

LOG = """\
{"event": "service started", "level": "info"}
{"event": "loop failed", "level": "error", "exception": "StorageUnavailable: PUT audit/1: 500"}
ERROR aiokafka.consumer.fetcher Failed fetch messages from 1: closed
ERROR asyncio _GatheringFuture exception was never retrieved
future: <_GatheringFuture finished exception=CancelledError()>
asyncio.exceptions.CancelledError
WARNING aiokafka.conn Failed connect
{"event": "database is away", "level": "warning"}
"""


def test_what_faults_explain_is_expected():
    lines = list(lines_of("auditor", LOG))
    assert [line.event for line in lines] == ["loop failed", "aiokafka.consumer.fetcher", "asyncio"]
    assert unexpected(lines) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "timer failed", "level": "error"}',
        '{"event": "loop failed", "level": "error", "exception": "KeyError: x"}',
        '{"event": "process ends", "level": "error", "exception": "ValidationError: x"}',
        '{"event": "request failed", "level": "error", "path": "/v1/files"}',
        "ERROR asyncio Task exception was never retrieved\nfuture: <Task exception=KeyError()>",
        "CRITICAL uvicorn.error exception",
        "ERROR aiokafkaesque no logger of the client's",
    ],
)
def test_anything_else_is_a_finding(text):
    assert [line.text for line in unexpected(lines_of("gateway", f"{LOG}{text}\n"))] == [text]


def test_every_entry_gives_its_reason():
    assert all(len(each.why) > 20 for each in EXPECTED)
