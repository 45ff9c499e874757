"""`retune webhooks`: what is asked of the platform, and what is printed."""

import json

import pytest

from tests.unit.cli.commandline import lines, paged

WEBHOOK = {
    "id": "whe_1",
    "name": "ci",
    "url": "https://ci.example.com/hook",
    "event_types": ["ping"],
    "retune": {"status": "enabled", "reason": "", "failing_since": 60},
}
WEBHOOK_OFF = WEBHOOK | {"retune": {"status": "disabled", "reason": "the endpoint answered 410 Gone"}}
DELIVERY = {
    "id": "whd_1",
    "event_type": "ping",
    "subject": "ftjob-1",
    "status": "pending",
    "attempts": 2,
    "status_code": 503,
    "error": "",
    "last_attempt_at": 60,
    "next_attempt_at": None,
    "replay_of": "whd_0",
}
TABLES = {
    ("webhooks", "list"): (
        {"GET /webhook_endpoints": paged(WEBHOOK, WEBHOOK_OFF)},
        [WEBHOOK, WEBHOOK_OFF],
        [
            "id name url events status",
            "whe_1 ci https://ci.example.com/hook ping failing since 1970-01-01 00:01:00",
            "whe_1 ci https://ci.example.com/hook ping disabled: the endpoint answered 410 Gone",
        ],
    ),
    ("webhooks", "deliveries", "whe_1"): (
        {"GET /webhook_endpoints/whe_1/deliveries": paged(DELIVERY)},
        [DELIVERY],
        [
            "id event about status attempts answer last attempt next attempt",
            "whd_1 ping ftjob-1 pending 2 503 1970-01-01 00:01:00",
        ],
    ),
    ("webhooks", "event-types"): (
        {"GET /webhook_event_types": {"data": ["retune.gate.failed"]}},
        ["retune.gate.failed"],
        ["type", "retune.gate.failed"],
    ),
}
ACTS = {
    ("webhooks", "create", "https://ci.example.com/hook"): (
        "POST /webhook_endpoints",
        WEBHOOK | {"signing_secret": "whsec_x"},
        "id      whe_1\nsecret  whsec_x",
    ),
    ("webhooks", "update", "whe_1", "--url", "https://ci.example.com/hook", "--event", "ping"): (
        "POST /webhook_endpoints/whe_1",
        WEBHOOK,
        "whe_1: ci, https://ci.example.com/hook, ping",
    ),
    ("webhooks", "rotate", "whe_1"): (
        "POST /webhook_endpoints/whe_1/rotate_secret",
        WEBHOOK | {"signing_secret": "whsec_y"},
        "id      whe_1\nsecret  whsec_y",
    ),
    ("webhooks", "test", "whe_1"): (
        "POST /webhook_endpoints/whe_1/test",
        {"event_type": "ping", "status_code": 204},
        "whe_1: answered 204 to ping",
    ),
    ("webhooks", "disable", "whe_1"): (
        "POST /webhook_endpoints/whe_1",
        WEBHOOK_OFF,
        "whe_1: disabled: the endpoint answered 410 Gone",
    ),
    ("webhooks", "enable", "whe_1"): (
        "POST /webhook_endpoints/whe_1",
        WEBHOOK | {"retune": {"status": "enabled", "failing_since": None}},
        "whe_1: enabled",
    ),
    ("webhooks", "delete", "whe_1"): (
        "DELETE /webhook_endpoints/whe_1",
        {"id": "whe_1", "deleted": True},
        "whe_1: deleted",
    ),
}


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_lists_are_tables_for_people_and_json_for_machines(retune, arguments):
    retune.answers, values, expected = TABLES[arguments]
    code, out, err = retune.run(*arguments)
    assert (code, lines(out), err) == (0, expected, "")
    code, out, err = retune.run("--json", *arguments)
    assert (code, json.loads(out), err) == (0, values, "")


@pytest.mark.parametrize("arguments", ACTS, ids=" ".join)
def test_acts_are_sentences_for_people_and_json_for_machines(retune, arguments):
    request, answer, sentence = ACTS[arguments]
    retune.answers[request] = answer
    assert retune.run(*arguments) == (0, f"{sentence}\n", "")
    code, out, err = retune.run("--json", *arguments)
    assert (code, json.loads(out), err) == (0, answer, "")


def test_what_failed_is_replayed_the_oldest_first(retune):
    path = "/webhook_endpoints/whe_1/deliveries"
    newest, oldest = (DELIVERY | {"id": f"whd_{number}", "status": "failed"} for number in (2, 1))
    retune.answers[f"GET {path}"] = paged(newest, oldest)
    for number in (1, 2):
        again = DELIVERY | {"id": f"whd_{number + 2}", "replay_of": f"whd_{number}"}
        retune.answers[f"POST {path}/whd_{number}/replay"] = again
    expected = "whd_1: again as whd_3\nwhd_2: again as whd_4\n"
    assert retune.run("webhooks", "replay", "whe_1") == (0, expected, "")
    assert retune.requests[0].url.params["status"] == "failed"
    assert retune.run("webhooks", "replay", "whe_1", "whd_2") == (0, "whd_2: again as whd_4\n", "")


def test_an_endpoint_is_sent_the_events_that_were_named(retune):
    retune.answers["POST /webhook_endpoints"] = WEBHOOK | {"signing_secret": "whsec_x"}
    retune.run("webhooks", "create", "https://a.example.com", "--event", "a", "--event", "b", "--name", "x")
    retune.run("webhooks", "create", "https://a.example.com")
    bodies = [json.loads(request.content) for request in retune.requests]
    assert [body["event_types"] for body in bodies] == [
        ["a", "b"],
        [f"fine_tuning.job.{end}" for end in ("succeeded", "failed", "cancelled")],
    ]
    assert bodies[0]["name"] == "x"


def test_what_of_an_endpoint_is_not_named_is_not_changed(retune):
    retune.answers["POST /webhook_endpoints/whe_1"] = WEBHOOK
    retune.run("webhooks", "update", "whe_1", "--name", "x")
    retune.run("webhooks", "update", "whe_1", "--event", "a", "--event", "b")
    bodies = [json.loads(request.content) for request in retune.requests]
    assert bodies == [{"name": "x"}, {"event_types": ["a", "b"]}]
