"""What is printed: for people a table or a sentence, with --json the platform's own answer, and nothing else."""

import json
from collections.abc import Callable

import httpx
import pytest

from tests.unit.cli.commandline import lines, paged

JOB = {
    "id": "ftjob-1",
    "created_at": 1_764_410_400,
    "model": "tiny",
    "fine_tuned_model": None,
    "error": {},
    "retune": {
        "state": "running",
        "queue": None,
        "gate": {"status": "pending"},
        "warnings": [],
        "cost_usd": "0.25",
    },
}
BASE = {
    "base_sha": "5e" * 32,
    "manifest_sha256": "5e" * 32,
    "source": "directory",
    "template_sha256": "5e" * 32,
    "context_tokens": 512,
    "num_parameters": 1000,
    "memory": None,
}
ESTIMATE = {
    "total_bytes": 3 * 2**29,
    "gradient_checkpointing": True,
    "micro_batch_size": 4,
    "offload_optimizer": False,
    "max_seq_length": 512,
    "pool": "gpu-spot",
}
ESTIMATED_TIME = {
    "pool": "gpu-spot",
    "seconds": {"low": 50.0, "expected": 60.0, "high": 600.0},
    "cost_usd": {"low": "0.0100", "expected": "0.0120", "high": "0.1200"},
    "attempts": 12,
    "alike": "base_model",
    "error": 0.09,
}
ESTIMATES = {"estimated_memory": ESTIMATE, "estimated_times": [ESTIMATED_TIME]}
SUBMITTED = JOB | {"retune": JOB["retune"] | {"base_model": BASE} | ESTIMATES}
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
KAFKA_USER = {
    "username": "subscriber-team",
    "tenant": None,
    "reads": [],
    "writes": [],
    "group_prefix": "team.",
}
SUITE = {"name": "refusals", "check": "safety", "rows": 192, "digest": "5e" * 32}
POOL = {
    "pool": "cpu-spot",
    "capacity_type": "spot",
    "nodes": 4,
    "free": 3,
    "devices_per_node": 1,
    "price_per_hour": "0.10",
    "accelerator": "cpu",
    "free_devices": 3,
    "leases": [
        {"purpose": "serving", "devices": 1, "machine": 0},
        {"purpose": "scoring", "devices": 1, "machine": None},
    ],
}
STEP = {
    "step": 1,
    "attempt": 1,
    "loss": 4.5,
    "learning_rate": 0.0002,
    "grad_norm": 1.0,
    "tokens_per_second": 800.0,
}
CHECKPOINTS = [
    {
        "step_number": step,
        "metrics": {"train_loss": 2.123456, "valid_loss": loss, "full_valid_loss": loss, "perplexity": None},
        "retune": {"attempt": 1, "kind": "periodic", "is_best": loss == 1.5},
    }
    for step, loss in ((20, 1.75), (10, 1.5))
]
CRITERION = {
    "name": "refusals",
    "metric": "refused",
    "value": 0.98765,
    "baseline": None,
    "threshold": 0.95,
    "count": 100,
}
VERDICT = {
    "checks": [
        {
            "check": "safety",
            "outcome": "inconclusive",
            "criteria": [
                CRITERION | {"categories": [{"category": "theft", "refused": 49, "count": 50}]},
                CRITERION | {"name": "refusals unclear", "outcome": "passed"},
            ],
        },
        {"check": "judge", "outcome": "not_requested", "criteria": []},
    ]
}
EVENTS = [
    {
        "id": "e-3",
        "created_at": 90,
        "type": "metrics",
        "level": "info",
        "message": "Step 1/9: training loss 2.0",
    },
    {"id": "e-2", "created_at": 60, "type": "message", "level": "info", "message": "queued"},
    {"id": "e-1", "created_at": 0, "type": "message", "level": "info", "message": "job accepted"},
]

ALERT = {
    "id": "alert-7",
    "created_at": 0,
    "cleared_at": None,
    "job_id": "ftjob-1",
    "rule": "loss_spike",
    "step": 103,
    "value": 5.0,
    "limit": None,
    "action": "pause",
    "message": "loss 5, usually 2",
}

SUMS = {
    "attempts": 2,
    "device_hours": 2.0,
    "cost_usd": "4.62",
    "charged_usd": "3.12",
    "free_usd": "1.50",
    "spot_waste_usd": "1.50",
    "usd_per_device_hour": "2.31",
}
COSTS = {
    "object": "costs",
    "by": "pool",
    "total": SUMS,
    "groups": [SUMS | {"name": "a100"}],
    "has_more": False,
}
TABLES = {
    ("alerts", "--open"): (
        {"GET /alerts": paged(ALERT)},
        [ALERT],
        [
            "since until rule job step value limit action muted by what",
            "1970-01-01 00:00:00 loss_spike ftjob-1 103 5 pause loss 5, usually 2",
        ],
    ),
    ("costs", "--by", "pool", "--month", "2026-11"): (
        {"GET /costs": COSTS},
        COSTS,
        [
            "pool attempts device hours cost USD charged free spot waste USD/device h",
            "a100 2 2.00 4.62 3.12 1.50 1.50 2.31",
            "all 2 2.00 4.62 3.12 1.50 1.50 2.31",
        ],
    ),
    ("jobs", "list"): (
        {"GET /fine_tuning/jobs": paged(JOB)},
        [JOB],
        [
            "id created state gate model fine-tuned model cost USD",
            "ftjob-1 2025-11-29 10:00:00 running pending tiny 0.25",
        ],
    ),
    ("jobs", "metrics", "ftjob-1"): (
        {
            "GET /fine_tuning/jobs/ftjob-1/metrics": lambda request: httpx.Response(
                200, json={"data": [STEP] if request.url.params["after_step"] == "0" else []}
            )
        },
        [STEP],
        ["step attempt loss learning_rate grad_norm tokens_per_second", "1 1 4.5000 2e-4 1 800"],
    ),
    ("jobs", "checkpoints", "ftjob-1"): (
        {"GET /fine_tuning/jobs/ftjob-1/checkpoints": paged(*CHECKPOINTS)},
        CHECKPOINTS,
        [
            "attempt step kind train_loss valid_loss full_valid_loss",
            "1 20 periodic 2.1235 1.7500 1.7500",
            "1 10 periodic, best 2.1235 1.5000 1.5000",
        ],
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
            "check outcome criterion metric value base threshold items",
            "safety inconclusive refusals refused 0.9877 0.95 100",
            "safety refusals: theft refused 49 50",
            "safety passed refusals unclear refused 0.9877 0.95 100",
            "judge not_requested",
        ],
    ),
    ("deployments", "list"): (
        {"GET /deployments": paged(SLOT)},
        [SLOT],
        ["slot status generation digest swap reason", "docs ready 2 5e5e5e5e5e5e"],
    ),
    ("data", "list"): (
        {"GET /files": paged(FILE)},
        [FILE],
        ["id name bytes purpose format", "file-1 train.jsonl 1000 fine-tune chat"],
    ),
    ("data", "suites"): (
        {"GET /suites": paged(SUITE)},
        [SUITE],
        ["name check rows digest", "refusals safety 192 5e5e5e5e5e5e"],
    ),
    ("nodes", "pools"): (
        {"GET /admin/pools": paged(POOL)},
        [POOL],
        [
            "pool capacity_type accelerator nodes free devices_per_node free_devices price_per_hour leases",
            "cpu-spot spot cpu 4 3 1 3 0.10 1 held by serving, 1 kept for scoring",
        ],
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


def test_a_jobs_events_are_printed_oldest_first_and_without_its_numbers(retune):
    retune.answers["GET /fine_tuning/jobs/ftjob-1/events"] = paged(*EVENTS)
    _, out, _ = retune.run("jobs", "events", "ftjob-1")
    assert [line.split(maxsplit=1)[1] for line in lines(out)[1:]] == ["info job accepted", "info queued"]


def test_a_list_of_many_pages_is_one_list(retune):
    def page(request: httpx.Request) -> httpx.Response:
        after = request.url.params.get("after")
        jobs = [JOB | {"id": "ftjob-1"}] if after is None else [JOB | {"id": "ftjob-2"}]
        return httpx.Response(200, json={"data": jobs, "has_more": after is None, "last_id": jobs[-1]["id"]})

    retune.answers["GET /fine_tuning/jobs"] = page
    _, out, _ = retune.run("--json", "jobs", "list")
    assert [job["id"] for job in json.loads(out)] == ["ftjob-1", "ftjob-2"]
    assert [request.url.params.get("after") for request in retune.requests] == [None, "ftjob-1"]


@pytest.mark.parametrize(
    ("path", "command", "item"),
    [
        ("/models", ("models", "list"), MODEL),
        ("/deployments", ("deployments", "list"), SLOT),
        ("/admin/kafka-users", ("subscribers", "list"), KAFKA_USER),
    ],
)
def test_lists_continue_behind_what_a_page_says(retune, path, command, item):
    def page(request: httpx.Request) -> httpx.Response:
        is_first = "after" not in request.url.params
        return httpx.Response(200, json={"data": [item], "has_more": is_first, "last_id": "its own"})

    retune.answers[f"GET {path}"] = page
    _, out, _ = retune.run("--json", *command)
    assert json.loads(out) == [item, item]
    assert [request.url.params.get("after") for request in retune.requests] == [None, "its own"]


def test_a_submission_says_all_that_was_asked_for(retune, tmp_path):
    (tmp_path / "holdout.jsonl").write_text("{}\n")
    retune.answers |= {"POST /files": FILE, "POST /fine_tuning/jobs": SUBMITTED}
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
        "retune": JOB["retune"] | {"state": "[red]odd[/red]"}
    }
    assert retune.run("jobs", "cancel", "ftjob-1")[1] == "ftjob-1: [red]odd[/red]\n"


def test_a_dry_run_says_all_and_names_no_job(retune):
    retune.answers["POST /fine_tuning/jobs"] = SUBMITTED
    code, out, err = retune.run("jobs", "submit", "file-1", "--model", "tiny", "--dry-run", "--watch")
    assert (code, out) == (0, "nothing was submitted: it can be\n")
    assert retune.requests[-1].url.query == b"dry_run=true"
    assert "time and cost in pool gpu-spot: about 60 s" in " ".join(err.split())


def test_what_a_job_is_warned_of_is_printed_beside_its_id(retune):
    warning = {
        "code": "gate_cannot_pass",
        "message": "the gate's check safety has nothing to ask",
        "param": "x",
    }
    job = SUBMITTED | {"retune": SUBMITTED["retune"] | {"warnings": [warning]}}
    retune.answers["POST /fine_tuning/jobs"] = job
    code, out, err = retune.run(
        "jobs", "submit", "file-1", "--model", "tiny", "--allow-ungated", "--max-cost", "2.5"
    )
    assert (code, out) == (0, "ftjob-1\n")
    assert err.endswith(f"\nwarning: {warning['message']}\n")
    assert json.loads(retune.requests[-1].content)["retune"] == {"allow_ungated": True, "max_cost": "2.5"}


def test_a_submission_shows_what_is_known_of_the_base_model(retune):
    retune.answers["POST /fine_tuning/jobs"] = SUBMITTED
    code, out, err = retune.run("jobs", "submit", "file-1", "--model", "tiny")
    assert (code, out) == (0, "ftjob-1\n")
    shown = [" ".join(line.split()) for line in err.splitlines()]
    assert shown[:3] == [
        f"tiny: 1,000 parameters, sha {BASE['base_sha']}",
        "source directory",
        "context 512 tokens",
    ]
    assert shown[-2:] == [
        (
            "memory: about 1.5 GiB of each GPU of pool gpu-spot with its activations computed again, "
            "4 windows of 512 tokens at a time"
        ),
        (
            "time and cost in pool gpu-spot: about 60 s (50 s to 10 min), 0.0120 US dollars (0.0100 to 0.1200), "
            "by 12 attempts with the same base model; estimates there were off by 9% in the median"
        ),
    ]
    code, out, _ = retune.run("--json", "jobs", "submit", "file-1", "--model", "tiny")
    assert (code, json.loads(out)) == (0, SUBMITTED)


STEERING = "[/x] [link=http://evil]a[/link] \x1b[2J\x1b]0;title\x07 \r\x9b31m \u202etxt.exe \ud800"
WRITTEN_OUT = "[/x] [link=http://evil]a[/link] \\x1b[2J\\x1b]0;title\\x07 \\r\\x9b31m \\u202etxt.exe \\ud800"


def _sent(answer: object, status: int = 200) -> Callable[[httpx.Request], httpx.Response]:
    """As other servers send it: half of a surrogate pair cannot be sent as UTF-8, but as an escape."""
    return lambda _: httpx.Response(status, content=json.dumps(answer))


class TestForeignText:
    """Names, reasons and logs are other people's: they reach a terminal as text."""

    def test_a_table_shows_it_as_it_is_written(self, retune):
        retune.answers["GET /files"] = _sent(paged(FILE | {"filename": f"{STEERING}\nfile-2"}))
        _, out, _ = retune.run("data", "list")
        assert len(out.splitlines()) == 2
        assert f"{WRITTEN_OUT}\\nfile-2" in out

    def test_a_sentence_and_an_error_do(self, retune):
        retune.answers["DELETE /deployments/docs"] = _sent(SLOT | {"slot": STEERING})
        assert retune.run("deployments", "remove", "docs")[1] == f"{WRITTEN_OUT}: ready, generation 2\n"
        refusal = {"error": {"message": STEERING, "type": "x", "param": None, "code": None}}
        retune.answers["DELETE /deployments/docs"] = _sent(refusal, 409)
        assert WRITTEN_OUT in retune.run("deployments", "remove", "docs")[2]

    def test_a_log_does_but_for_bars_that_go_back_to_the_lines_beginning(self, retune):
        retune.answers["GET /fine_tuning/jobs/ftjob-1"] = JOB | {"retune": {"state": "succeeded"}}
        page = {"text": "10 %\r20 %\r\n\x1b[31mred", "next": -1}
        retune.answers["GET /fine_tuning/jobs/ftjob-1/logs"] = page
        assert retune.run("jobs", "logs", "ftjob-1")[1] == "10 %\n20 %\n\\x1b[31mred"

    def test_machines_get_the_same_value(self, retune):
        file = FILE | {"filename": STEERING}
        retune.answers["GET /files"] = _sent(paged(file))
        _, out, _ = retune.run("--json", "data", "list")
        assert json.loads(out) == [file]
        assert not {*"\x1b\x9b\r\u202e\ud800"} & {*out}


QUOTAS = {
    "object": "quotas",
    "tenant": "acme",
    "limits": {"open_jobs": 50, "streams": None, "stored_bytes": 2000},
    "decided": {"open_jobs": 50, "streams": None},
    "used": {"open_jobs": 3, "stored_bytes": 1500},
}


class TestQuotas:
    PATH = "/admin/tenants/acme/quotas"

    def test_are_shown_with_what_is_used_and_who_decided(self, retune):
        retune.answers[f"GET {self.PATH}"] = QUOTAS
        _, out, _ = retune.run("tenants", "quotas", "acme")
        assert [line.split() for line in lines(out)] == [
            ["quota", "limit", "used", "decided", "by"],
            ["open_jobs", "50", "3", "operator"],
            ["streams", "none", "operator"],
            ["stored_bytes", "2,000", "1500", "default"],
        ]

    def test_of_those_that_are_set_the_others_stay_as_they_were(self, retune):
        retune.answers |= {f"GET {self.PATH}": QUOTAS, f"PUT {self.PATH}": QUOTAS}
        changes = ("--set", "streams=default", "--set", "stored_bytes=none")
        assert retune.run("tenants", "quotas", "acme", *changes)[0] == 0
        assert json.loads(retune.requests[-1].content) == {"open_jobs": 50, "stored_bytes": None}
        assert retune.requests[-1].headers["authorization"] == "Bearer key-of-the-operator"

    @pytest.mark.parametrize(
        "change", ["jobs=5", "open_jobs", "open_jobs=many", "open_jobs=-1", "open_jobs=٣"]
    )
    def test_that_are_no_quotas_are_wrong_usage(self, retune, change):
        retune.answers[f"GET {self.PATH}"] = QUOTAS
        code, _, err = retune.run("tenants", "quotas", "acme", "--set", change)
        assert code == 2
        assert "--set" in err
        assert [request.method for request in retune.requests] == ["GET"]
