"""Alerts and mutes of their rules, as the command line writes and asks for them."""

import json

import pytest

from cli.commands.times import parse_until
from tests.builders import NOON
from tests.unit.cli.commandline import CommandLine, paged

MUTE = {
    "id": "loss_spike:ftjob-1",
    "rule": "loss_spike",
    "job_id": "ftjob-1",
    "until": 1767268800,
    "muted_by": "key_1 of tenant demo",
    "created_at": 0,
}
FOR_GOOD = MUTE | {"id": "stall", "rule": "stall", "job_id": None, "until": None}
ALERT = {
    "created_at": 0,
    "cleared_at": None,
    "rule": "loss_spike",
    "job_id": "ftjob-1",
    "step": 103,
    "value": 5.0,
    "limit": 2.0,
    "unit": "loss",
    "action": "notify",
    "message": "loss 5, usually 1.5",
    "mute": MUTE,
}


def lines(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


@pytest.mark.parametrize(
    ("value", "limit", "unit", "words"),
    [
        (5.0, 2.0, "loss", "5 2"),
        (0.008, 0.02, "fraction", "0.8% 2.0%"),
        (60.0, 40.0, "seconds", "60 s 40 s"),
        (2**31, 2**30, "bytes", "2.00 GiB 1.00 GiB"),
        (1200.0, 2500.0, "tokens_per_second", "1,200 tokens/s 2,500 tokens/s"),
        (12.5, 10.0, "us_dollars", "$12.50 $10.00"),
        (None, None, None, ""),
    ],
)
def test_have_value_and_limit_with_their_unit(retune: CommandLine, value, limit, unit, words):
    retune.answers["GET /alerts"] = paged(
        ALERT | {"value": value, "limit": limit, "unit": unit, "mute": None}
    )
    [_, row] = lines(retune.run("alerts")[1])
    numbers = f"{words} " if words else ""
    assert row == f"1970-01-01 00:00:00 loss_spike ftjob-1 103 {numbers}notify loss 5, usually 1.5"


def test_say_who_muted_them_and_until_when(retune: CommandLine):
    retune.answers["GET /alerts"] = paged(ALERT)
    [_, row] = lines(retune.run("alerts", "--open")[1])
    assert "notify key_1 of tenant demo until 2026-01-01 12:00:00 loss 5" in row


def test_mutes_are_listed(retune: CommandLine):
    retune.answers["GET /alerts/mutes"] = paged(MUTE, FOR_GOOD)
    assert lines(retune.run("alerts", "mutes")[1]) == [
        "rule job until by since",
        "loss_spike ftjob-1 2026-01-01 12:00:00 key_1 of tenant demo 1970-01-01 00:00:00",
        "stall all for good key_1 of tenant demo 1970-01-01 00:00:00",
    ]


def test_a_rule_is_muted_until_a_time_or_for_good(retune: CommandLine):
    retune.answers["POST /alerts/mutes"] = MUTE
    until = ("--job", "ftjob-1", "--until", "2026-01-01T12:00:00Z")
    assert retune.run("alerts", "mute", "loss_spike", *until)[:2] == (
        0,
        "loss_spike of ftjob-1: muted until 2026-01-01 12:00:00\n",
    )
    retune.answers["POST /alerts/mutes"] = FOR_GOOD
    assert retune.run("alerts", "mute", "stall")[1] == "stall of all jobs: muted for good\n"
    assert [json.loads(request.content) for request in retune.requests] == [
        {"rule": "loss_spike", "job_id": "ftjob-1", "until": "2026-01-01T12:00:00+00:00"},
        {"rule": "stall", "job_id": None, "until": None},
    ]
    assert retune.run("alerts", "mute", "nothing")[0] == 2


def test_a_rule_is_unmuted(retune: CommandLine):
    retune.answers["DELETE /alerts/mutes/loss_spike:ftjob-1"] = {"deleted": True}
    out = retune.run("alerts", "unmute", "loss_spike", "--job", "ftjob-1")[1]
    assert out == "loss_spike of ftjob-1: not muted\n"


def test_a_time_may_be_how_long_from_now(monkeypatch):
    monkeypatch.setattr("cli.commands.times.utc_now", lambda: NOON)
    assert (parse_until("--until", "8h") - NOON).total_seconds() == 8 * 3600
