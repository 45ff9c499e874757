"""`--dry-run`: every command that changes something has it, and with it nothing is sent."""

import json
from typing import Any

import httpx
import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from cli.app import app
from cli.changes import Changes
from schemas.parked import MessageParked
from tests.builders import NOON, delivered
from tests.unit.cli.commandline import CommandLine, paged

READING = {
    *("data list", "data report", "data excerpts", "data suites"),
    *("jobs list", "jobs show", "jobs watch", "jobs events", "jobs checkpoints", "jobs compare", "jobs metrics"),
    *("jobs logs", "sweeps list", "sweeps show", "alerts mutes", "costs"),
    *("models list", "models show", "models lineage", "models evaluation", "deployments list"),
    *("deployments history",),
    *("nodes pools", "nodes list", "nodes history"),
    *("webhooks event-types", "webhooks list", "webhooks deliveries", "events tail", "events list", "events show", "events timeline"),
    *("parked list", "parked show", "relay set-aside", "audit verify"),
    *("tenants list", "tenants keys", "tenants users", "subscribers list", "status", "doctor"),
}  # fmt: skip
CHECKED_BY_THE_PLATFORM = {"jobs submit", "sweeps create"}
COUNTED_FIRST = {"relay republish", "replay"}
"""Which compare or count, and change only where they are asked to."""
LINES = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
ARGUMENTS = {
    "data upload": "FILE",
    "data validate": "FILE --model tiny --holdout FILE",
    "data register-benchmark": "arc FILE --kind text",
    "data register-safety-suite": "harm FILE",
    **{f"jobs {verb}": "ftjob-1" for verb in ("cancel", "pause", "resume", "retry")},
    "sweeps cancel": "sweep-1",
    "models register-base": "tiny hub:org/tiny@" + "0" * 40,
    "models register-artifact": "ftjob-1 --tenant demo",
    "models register-checkpoint": "ftckpt-ftjob-1-1-10",
    **{f"models {verb}": "ft:tiny:demo:x:1" for verb in ("evaluate", "promote", "archive")},
    "alerts mute": "loss_spike --job ftjob-1 --until 8h",
    "alerts unmute": "loss_spike",
    "models exports": "ft:tiny:demo:x:1 --format gguf",
    "models delete-export": "ft:tiny:demo:x:1 export-1",
    "deployments deploy": "ft:tiny:demo:x:1 --slot x",
    "deployments rollback": "x",
    "deployments remove": "x",
    "nodes preempt": "node-1",
    "nodes drain": "node-1",
    "nodes cordon": "a100 3",
    "nodes uncordon": "a100 3",
    "nodes set-capacity": "a100 3",
    "webhooks create": "https://hooks.example.com --event retune.budget.reached",
    "webhooks update": "whe_1 --name x",
    **{f"webhooks {verb}": "whe_1" for verb in ("test", "replay", "rotate", "enable", "disable", "delete")},
    "parked replay": "tracker 7",
    "parked drop": "tracker 7 --reason old",
    "relay send": "tracker 7",
    "relay drop": "tracker 7 --reason old",
    "tenants create": "new",
    "tenants revoke-key": "demo key-1",
    "tenants revoke-keys": "demo",
    "tenants quotas": "demo --set open_jobs=4",
    "tenants add-user": "demo ci",
    "tenants rotate-user": "demo ci",
    "tenants remove-user": "demo ci",
    "subscribers create": "team --topics job.events",
    "subscribers rotate": "team",
    "subscribers remove": "team",
    "up": "",
    "down": "",
}


class Anything(dict[str, Any]):
    """Answers of a platform of which everything may be read."""

    def __missing__(self, asked: str) -> Any:
        assert asked.startswith("GET "), f"{asked} was sent"
        return {
            **paged({"id": "whd_1"}, {"id": "whd_2"}),
            "limits": {"open_jobs": 3},
            "decided": {},
            "used": {},
        }


def commands(command: Any = None, path: str = "") -> dict[str, Any]:
    command = command or get_command(app)
    if not isinstance(command, TyperGroup):
        return {path: command}
    context = typer.Context(command)
    return {
        name: each
        for noun in command.list_commands(context)
        for name, each in commands(command.get_command(context, noun), f"{path} {noun}".strip()).items()
    }


@pytest.fixture
def files(tmp_path):
    (tmp_path / "rows.jsonl").write_text(LINES)
    return tmp_path


@pytest.fixture
def platform(retune: CommandLine) -> CommandLine:
    retune.answers = Anything()
    parked = MessageParked.model_validate(PARKED)
    retune.topics.append(delivered(parked))
    retune.follows()
    return retune


PARKED = {
    "service": "tracker", "parked_id": 7, "reason": "gap", "detail": "", "topic": "job.events", "partition": 0,
    "offset": 1, "aggregate_id": "ftjob-1", "value_base64": "e30=", "event_id": "e", "parked_at": NOON,
}  # fmt: skip


def test_every_command_reads_or_has_a_dry_run():
    for name, command in commands().items():
        has_option = any("--dry-run" in each.opts for each in command.params)
        if name in READING:
            assert not has_option, f"{name} reads: it needs no --dry-run"
        elif name not in COUNTED_FIRST:
            assert has_option, f"{name} changes something: give it --dry-run (cli/changes.py)"
    changing = {name for name, command in commands().items() if isinstance(command, Changes)}
    assert changing == commands().keys() - READING - CHECKED_BY_THE_PLATFORM - COUNTED_FIRST
    assert changing == ARGUMENTS.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_with_it_nothing_is_sent_and_all_that_would_be_is_shown(platform, files, name):
    arguments = [str(files / "rows.jsonl") if each == "FILE" else each for each in ARGUMENTS[name].split()]
    code, out, err = platform.run("--json", *name.split(), *arguments, "--dry-run")
    assert code == 0, err
    shown = json.loads(out)
    assert (shown["sent"], shown["checked_by_platform"]) == (False, False)
    assert shown["changes"]
    assert platform.commands == []
    assert {request.method for request in platform.requests} <= {"GET"}
    assert "the platform has not checked it" in err


def test_people_see_the_request_as_it_would_be(platform):
    code, out, _ = platform.run("deployments", "deploy", "ft:tiny:demo:x:1", "--slot", "x", "--dry-run")
    assert code == 0
    address, _, body = out.partition("\n")
    assert address == "POST http://platform.test/v1/models/ft:tiny:demo:x:1/deploy"
    assert json.loads(body) == {"slot": "x"}


def test_every_change_of_a_command_is_shown(platform, files):
    _, out, _ = platform.run(
        "--json", "data", "validate", str(files / "rows.jsonl"), "--model", "tiny", "--dry-run"
    )
    upload, dataset = json.loads(out)["changes"]
    assert (upload["body"]["file"], upload["body"]["bytes"]) == ("rows.jsonl", len(LINES))
    assert dataset["url"].endswith("/v1/datasets")
    _, out, _ = platform.run("--json", "webhooks", "replay", "whe_1", "--dry-run")
    assert [each["url"].rsplit("/", 2)[1] for each in json.loads(out)["changes"]] == ["whd_2", "whd_1"]


def test_what_is_refused_before_it_is_sent_ends_with_1(platform, tmp_path):
    code, out, err = platform.run("data", "upload", str(tmp_path / "none.jsonl"), "--dry-run")
    assert (code, out) == (1, "")
    assert "no such file" in err
    assert platform.run("parked", "drop", "tracker", "8", "--reason", "x", "--dry-run")[0] == 1


def test_a_command_with_nothing_to_change_says_so(platform):
    code, _, err = platform.run("tenants", "quotas", "demo", "--dry-run")
    assert (code, "nothing to change" in err) == (0, True)


def test_the_next_command_is_no_dry_run(platform):
    platform.run("jobs", "cancel", "ftjob-1", "--dry-run")
    platform.answers["POST /fine_tuning/jobs/ftjob-1/cancel"] = lambda request: httpx.Response(
        400, json={"error": {"message": "sent"}}
    )
    code, _, err = platform.run("jobs", "cancel", "ftjob-1")
    assert (code, "sent" in err) == (1, True)
