"""Exit codes are for scripts: 0 done, 1 refused, 2 wrong usage, 3 unreachable; and one line says why."""

import httpx
import pytest
from aiokafka.errors import KafkaConnectionError

from cli.commands import context
from schemas.base import CommandRefused
from schemas.node import PoolCapacityChanged
from schemas.parked import MessageParked, ParkedResolved, ReplayParked
from shared.messaging import reader
from tests.builders import NOON, delivered
from tests.unit.cli.commandline import lines, paged

POOL = PoolCapacityChanged(
    pool="cpu-spot", capacity_type="spot", nodes=4, free=3, devices_per_node=1, price_per_hour="0.1"
)
REFUSED = CommandRefused(
    subject_id="cpu-gone",
    command="SetPoolCapacity",
    command_id="c-1",
    code="unknown_pool",
    message="no such pool",
)


def failing(status: int, message: str):
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "x"}}
    return lambda request: httpx.Response(status, json=body)


def parked(parked_id: int, **changes: object) -> MessageParked:
    fields = {
        "service": "tracker",
        "parked_id": parked_id,
        "reason": "rejected",
        "detail": "it says why",
        "topic": "dataset.events",
        "partition": 0,
        "offset": 41,
        "aggregate_id": "ds-1",
        "event_id": "e-1",
        "value_base64": "eyJ4IjogMX0=",
        "parked_at": NOON,
    }
    return MessageParked(**fields | changes)


class TestDone:
    def test_an_answer_ends_with_0(self, retune):
        retune.answers["GET /fine_tuning/jobs"] = paged()
        assert retune.run("jobs", "list")[0] == 0

    def test_a_fact_that_answers_a_command_ends_with_0(self, retune):
        retune.follows(POOL)
        assert retune.run("nodes", "set-capacity", "cpu-spot", "4") == (
            0,
            "cpu-spot: 4 nodes, 3 wholly free\n",
            "",
        )

    def test_facts_that_others_caused_are_no_answer(self, retune):
        retune.follows(POOL)
        retune.topics.append(delivered(REFUSED, correlation_id="somebody-else"))
        assert retune.run("nodes", "set-capacity", "cpu-spot", "4")[0] == 0


class TestRefused:
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500])
    def test_what_the_api_refuses_ends_with_1_and_its_own_sentence(self, retune, status):
        retune.answers["GET /fine_tuning/jobs/ftjob-1"] = failing(status, "job 'ftjob-1' does not exist")
        assert retune.run("jobs", "show", "ftjob-1") == (1, "", f"{status}: job 'ftjob-1' does not exist\n")

    def test_a_refusal_names_the_request_by_which_it_is_logged(self, retune):
        retune.answers["GET /deployments"] = lambda request: httpx.Response(
            500, json={"error": {"message": "internal error"}}, headers={"x-request-id": "req-1"}
        )
        assert retune.run("deployments", "list") == (1, "", "500: internal error (request req-1)\n")

    def test_an_answer_that_is_no_json_is_shown_as_it_is(self, retune):
        retune.answers["GET /deployments"] = lambda request: httpx.Response(502, text="bad gateway")
        assert retune.run("deployments", "list") == (1, "", "502: bad gateway\n")

    def test_a_refused_command_ends_with_1_and_its_reason(self, retune):
        retune.follows(REFUSED)
        assert retune.run("nodes", "set-capacity", "cpu-gone", "4") == (1, "", "unknown_pool: no such pool\n")

    def test_a_file_that_is_not_there(self, retune, tmp_path):
        code, _, err = retune.run("data", "upload", str(tmp_path / "gone.jsonl"))
        assert (code, "gone.jsonl: no such file" in "".join(err.split("\n"))) == (1, True)

    def test_a_replay_that_failed_again(self, retune):
        retune.topics.append(delivered(parked(7)))
        resolved = ParkedResolved(
            service="tracker", parked_id=7, state="parked", reason="still parked: rejected: it says why"
        )
        retune.follows(resolved)
        code, out, err = retune.run("parked", "replay", "tracker", "7")
        assert (code, out, err) == (1, "", "tracker 7: still parked: rejected: it says why\n")
        assert retune.commands == [ReplayParked(service="tracker", parked_id=7)]

    @pytest.mark.parametrize(
        ("state", "is_open"), [("replayed", False), ("dropped", False), ("parked", True)]
    )
    def test_only_what_is_still_open_can_be_resolved(self, retune, state, is_open):
        retune.topics += [
            delivered(parked(7)),
            delivered(ParkedResolved(service="tracker", parked_id=7, state=state)),
        ]
        retune.follows(ParkedResolved(service="tracker", parked_id=7, state="dropped"))
        code, _, err = retune.run("parked", "drop", "tracker", "7", "--reason", "known")
        assert (code, "has no open parked message 7" in err) == ((0, False) if is_open else (1, True))


class TestWrongUsage:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("nonsense",),
            ("jobs", "show"),
            ("jobs", "list", "--nonsense"),
            ("jobs", "submit", "file-1", "--model", "tiny", "--options", "{"),
            ("jobs", "submit", "file-1", "--model", "tiny", "--options", "[1]"),
            ("nodes", "set-capacity", "cpu-spot", "-1"),
            ("nodes", "set-capacity", "cpu-spot", "many"),
            ("nodes", "preempt", "n-0", "--notice", "-1"),
            ("events", "tail", "--topic", "nonsense"),
            ("parked", "show", "nonsense", "1"),
            ("audit", "verify", "--from", "yesterday"),
            ("replay", "--topic", "nonsense"),
            ("replay",),
            ("relay", "republish", "--service", "auditor", "--since", "1h"),
            ("relay", "republish", "--service", "scheduler", "--since", "1x"),
            ("models", "register-base", "tiny", "no-such-directory"),
            ("models", "register-base", "tiny", "hub:someone/model@main"),
        ],
        ids=" ".join,
    )
    def test_it_ends_with_2_and_asks_nobody(self, retune, arguments):
        code, out, err = retune.run(*arguments)
        assert (code, out) == (2, "")
        assert err
        assert retune.requests == []


class TestUnreachable:
    def test_an_api_that_does_not_answer_ends_with_3_and_its_address(self, retune):
        def away(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("connection refused")

        retune.answers["GET /fine_tuning/jobs"] = away
        code, out, err = retune.run("jobs", "list")
        assert (code, out) == (3, "")
        assert "http://platform.test/v1/ does not answer (connection refused)" in err

    @pytest.mark.parametrize(
        "arguments",
        [("events", "timeline", "ftjob-1"), ("parked", "list"), ("nodes", "drain", "n-0")],
        ids=" ".join,
    )
    def test_a_kafka_that_is_away_ends_with_3_and_one_line_with_its_address(
        self, retune, monkeypatch, arguments
    ):
        class Away(retune.reader()):
            async def __aenter__(self) -> None:
                raise KafkaConnectionError("no broker answers")

        for module in (
            "shared.messaging.reader",
            "cli.commands.events",
            "cli.commands.parked",
        ):
            monkeypatch.setattr(f"{module}.TopicReader", Away)
        code, out, err = retune.run(*arguments)
        assert (code, out) == (3, "")
        assert err.startswith(
            "Kafka at kafka.test:9092 does not serve us (KafkaConnectionError: no broker answers)"
        )
        assert len(lines(err)) == 1

    def test_a_command_that_nobody_answers_ends_with_3(self, retune, monkeypatch):
        class Silent(retune.reader()):
            async def follow(self):
                raise TimeoutError
                yield

        retune.follows()
        monkeypatch.setattr(reader, "TopicReader", Silent)
        code, _, err = retune.run("nodes", "drain", "n-0")
        assert (code, "nobody answered DrainNode within 30 s" in err) == (3, True)

    def test_without_a_stack_it_says_how_to_start_one(self, retune, monkeypatch, tmp_path):
        for name in ("RETUNE_BASE_URL", "RETUNE_API_KEY", "RETUNE_KAFKA_BOOTSTRAP"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("RETUNE_STATE", str(tmp_path))
        context.connection.cache_clear()
        code, _, err = retune.run("jobs", "list")
        assert (code, "start one with `retune up`" in " ".join(lines(err))) == (3, True)
