"""What is printed: for people a table or a sentence, with --json the platform's own answer, and nothing else."""

import json

import httpx
import pytest

from tests.unit.admin.commandline import lines, paged

JOB = {
    "id": "ftjob-1",
    "model": "tiny",
    "fine_tuned_model": None,
    "error": {},
    "retune": {"phase": "running", "gate": {"status": "pending"}, "warnings": [], "cost_usd": "0.25"},
}
MODEL = {
    "id": "ft:tiny:acme:docs:1f2e3d4c",
    "retune": {"kind": "adapter", "stage": "staging", "model_id": "mv-1"},
}
SLOT = {"slot": "docs", "status": "ready", "generation": 2, "digest": "5e" * 32, "reason": None}
FILE = {
    "id": "file-1",
    "filename": "train.jsonl",
    "bytes": 1000,
    "purpose": "fine-tune",
    "retune": {"format": "chat", "sha256": "5e" * 32},
}
SUITE = {"name": "refusals", "stage": "safety", "rows": 192, "digest": "5e" * 32}
POOL = {
    "pool": "cpu-spot",
    "price_class": "spot",
    "nodes": 4,
    "free": 3,
    "devices_per_node": 1,
    "price_per_hour": "0.10",
}
STEP = {
    "step": 1,
    "attempt": 1,
    "loss": 4.5,
    "learning_rate": 0.0002,
    "grad_norm": 1.0,
    "tokens_per_second": 800.0,
}
CHECK = {
    "name": "refusals",
    "metric": "refused",
    "value": 0.98765,
    "baseline": None,
    "threshold": 0.95,
    "count": 100,
}
VERDICT = {
    "stages": [
        {
            "stage": "safety",
            "outcome": "inconclusive",
            "checks": [
                CHECK | {"categories": [{"category": "theft", "refused": 49, "count": 50}]},
                CHECK | {"name": "refusals unclear", "outcome": "passed"},
            ],
        },
        {"stage": "judge", "outcome": "not_requested", "checks": []},
    ]
}
EVENTS = [
    {"id": "e-2", "created_at": 60, "level": "info", "message": "queued"},
    {"id": "e-1", "created_at": 0, "level": "info", "message": "job accepted"},
]

TABLES = {
    ("jobs", "list"): (
        {"GET /fine_tuning/jobs": paged(JOB)},
        [JOB],
        ["id phase gate base model fine-tuned model cost USD", "ftjob-1 running pending tiny 0.25"],
    ),
    ("jobs", "metrics", "ftjob-1"): (
        {
            "GET /fine_tuning/jobs/ftjob-1/metrics": lambda request: httpx.Response(
                200, json={"data": [STEP] if request.url.params["after_step"] == "0" else []}
            )
        },
        [STEP],
        ["step attempt loss learning_rate grad_norm tokens_per_second", "1 1 4.5 0.0002 1.0 800.0"],
    ),
    ("models", "list"): (
        {"GET /models": paged(MODEL)},
        [MODEL],
        ["name kind stage holdout id", "ft:tiny:acme:docs:1f2e3d4c adapter staging mv-1"],
    ),
    ("models", "evaluation", "docs"): (
        {"GET /models/docs/evaluation": VERDICT},
        [VERDICT],
        [
            "stage outcome check metric value base threshold items",
            "safety inconclusive refusals refused 0.9877 0.95 100",
            "safety refusals: theft refused 49 50",
            "safety passed refusals unclear refused 0.9877 0.95 100",
            "judge not_requested",
        ],
    ),
    ("deployments", "list"): (
        {"GET /deployments": paged(SLOT)},
        [SLOT],
        ["slot status generation digest reason", "docs ready 2 5e5e5e5e5e5e"],
    ),
    ("data", "list"): (
        {"GET /files": paged(FILE)},
        [FILE],
        ["id name bytes purpose format", "file-1 train.jsonl 1000 fine-tune chat"],
    ),
    ("data", "suites"): (
        {"GET /suites": paged(SUITE)},
        [SUITE],
        ["name stage rows digest", "refusals safety 192 5e5e5e5e5e5e"],
    ),
    ("nodes", "pools"): (
        {"GET /admin/pools": paged(POOL)},
        [POOL],
        ["pool price_class nodes free devices_per_node price_per_hour", "cpu-spot spot 4 3 1 0.10"],
    ),
}


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
class TestTables:
    def test_people_get_a_table(self, retune, arguments):
        retune.answers, _, expected = TABLES[arguments]
        code, out, err = retune.run(*arguments)
        assert (code, lines(out), err) == (0, expected, "")

    def test_machines_get_the_platforms_own_values(self, retune, arguments):
        retune.answers, expected, _ = TABLES[arguments]
        code, out, err = retune.run("--json", *arguments)
        assert (code, json.loads(out), err) == (0, expected, "")


ACTS = {
    ("jobs", "cancel", "ftjob-1"): ("POST /fine_tuning/jobs/ftjob-1/cancel", JOB, "ftjob-1: running"),
    ("jobs", "pause", "ftjob-1"): ("POST /fine_tuning/jobs/ftjob-1/pause", JOB, "ftjob-1: running"),
    ("jobs", "resume", "ftjob-1"): ("POST /fine_tuning/jobs/ftjob-1/resume", JOB, "ftjob-1: running"),
    ("jobs", "submit", "file-1", "--model", "tiny"): ("POST /fine_tuning/jobs", JOB, "ftjob-1"),
    ("models", "promote", "docs"): (
        "POST /models/docs/promote",
        MODEL,
        "ft:tiny:acme:docs:1f2e3d4c: staging",
    ),
    ("models", "evaluate", "docs"): (
        "POST /models/docs/evaluate",
        {"id": "eval-1", "outcome": "running"},
        "eval-1: running",
    ),
    ("models", "archive", "docs"): (
        "POST /models/docs/archive",
        MODEL,
        "ft:tiny:acme:docs:1f2e3d4c: staging",
    ),
    ("deployments", "deploy", "docs"): ("POST /models/docs/deploy", SLOT, "docs: ready, generation 2"),
    ("deployments", "rollback", "docs"): (
        "POST /deployments/docs/rollback",
        SLOT,
        "docs: ready, generation 2",
    ),
    ("deployments", "remove", "docs"): ("DELETE /deployments/docs", SLOT, "docs: ready, generation 2"),
}


@pytest.mark.parametrize("arguments", ACTS, ids=" ".join)
class TestActs:
    def test_people_get_a_sentence(self, retune, arguments):
        request, answer, sentence = ACTS[arguments]
        retune.answers[request] = answer
        assert retune.run(*arguments) == (0, f"{sentence}\n", "")

    def test_machines_get_the_answer(self, retune, arguments):
        request, answer, _ = ACTS[arguments]
        retune.answers[request] = answer
        code, out, err = retune.run("--json", *arguments)
        assert (code, json.loads(out), err) == (0, answer, "")


def test_a_jobs_events_are_printed_oldest_first(retune):
    retune.answers["GET /fine_tuning/jobs/ftjob-1/events"] = paged(*EVENTS)
    _, out, _ = retune.run("jobs", "events", "ftjob-1")
    assert [line.split(maxsplit=1)[1] for line in lines(out)[1:]] == ["info job accepted", "info queued"]


def test_a_list_of_many_pages_is_one_list(retune):
    def page(request: httpx.Request) -> httpx.Response:
        after = request.url.params.get("after")
        jobs = [JOB | {"id": "ftjob-1"}] if after is None else [JOB | {"id": "ftjob-2"}]
        return httpx.Response(200, json={"data": jobs, "has_more": after is None})

    retune.answers["GET /fine_tuning/jobs"] = page
    _, out, _ = retune.run("--json", "jobs", "list")
    assert [job["id"] for job in json.loads(out)] == ["ftjob-1", "ftjob-2"]
    assert [request.url.params.get("after") for request in retune.requests] == [None, "ftjob-1"]


def test_a_submission_says_all_that_was_asked_for(retune, tmp_path):
    (tmp_path / "holdout.jsonl").write_text("{}\n")
    retune.answers |= {"POST /files": FILE, "POST /fine_tuning/jobs": JOB}
    retune.run(
        *("jobs", "submit", "file-7", "--model", "tiny", "--suffix", "docs"),
        *("--holdout", str(tmp_path / "holdout.jsonl"), "--options", '{"auto_deploy": false}'),
    )
    assert json.loads(retune.requests[-1].content) == {
        "model": "tiny",
        "training_file": "file-7",
        "suffix": "docs",
        "retune": {"auto_deploy": False, "holdout_file": "file-1"},
    }


@pytest.mark.parametrize(
    ("arguments", "key"),
    [(("jobs", "list"), "key-of-a-tenant"), (("nodes", "pools"), "key-of-the-operator")],
    ids=["tenant", "operator"],
)
def test_each_noun_shows_its_own_key(retune, arguments, key):
    retune.answers = TABLES[arguments][0]
    retune.run(*arguments)
    assert retune.requests[0].headers["authorization"] == f"Bearer {key}"


def test_markup_in_data_is_printed_as_it_is(retune):
    retune.answers["POST /fine_tuning/jobs/ftjob-1/cancel"] = JOB | {
        "retune": JOB["retune"] | {"phase": "[red]odd[/red]"}
    }
    assert retune.run("jobs", "cancel", "ftjob-1")[1] == "ftjob-1: [red]odd[/red]\n"


def test_what_a_job_is_warned_of_is_printed_beside_its_id(retune):
    warning = {
        "code": "gate_cannot_pass",
        "message": "the gate's stage safety has nothing to ask",
        "param": "x",
    }
    job = JOB | {"retune": JOB["retune"] | {"warnings": [warning]}}
    retune.answers["POST /fine_tuning/jobs"] = job
    code, out, err = retune.run("jobs", "submit", "file-1", "--model", "tiny", "--allow-ungated")
    assert (code, out, err) == (0, "ftjob-1\n", f"warning: {warning['message']}\n")
    assert json.loads(retune.requests[-1].content)["retune"] == {"allow_ungated": True}
