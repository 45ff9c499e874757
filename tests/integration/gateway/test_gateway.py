"""The gateway's door on real Kafka, Postgres and S3: what is whose, pages, files, keys, and clear refusals."""

import asyncio
import json
import re
from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest

from schemas import layout
from schemas.base import CommandRefused
from schemas.cost import CostAccrued
from schemas.dataset import DatasetDeleted
from schemas.job import CancelJob, JobCancelled, JobFailed
from schemas.node import AllocatedNode, NodesProvisioned, NodesReleased
from shared.clock import utc_now
from shared.processes.identity import Identity
from tests.builders import a_preparation, a_sha
from tests.integration.gateway import owned_routes
from tests.integration.gateway.alerting import raise_alert
from tests.integration.gateway.owned_routes import ELSE, LISTS, OF_A_JOB
from tests.integration.gateway.pages import logged_in, words_of
from tests.integration.gateway.world import ENV, World, digest_of, mark, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

TOO_FAST = b'{"model": "x", "training_file": "x", "retune": {"recipe": {"learning_rate": 1e999}}}'
FATAL = b'{"model": "x", "messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 0}'
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

A_LARGE_FILE = {"filename": "rows.jsonl", "purpose": "fine-tune", "bytes": 10, "mime_type": "text/jsonl"}

READS = [(method, path) for method, path in OF_A_JOB + ELSE if method == "GET"]


@pytest.fixture(scope="module")
async def owned(world: World) -> dict[str, str]:
    """One of each thing of tenant demo."""
    version = await world.a_version()
    await world.serve(version)
    job = await world.a_running_job()
    await raise_alert(world, job)
    await world.objects.put_bytes(layout.log(job, 1, 0, 0), b"secret line\n")
    eval_id = version.job_id.replace("ftjob", "eval")
    await world.objects.put_bytes(layout.evaluation(eval_id, layout.EVALUATION_LOG), b"secret line\n")
    dataset = await world.a_dataset()
    await world.objects.put_bytes(layout.dataset(a_sha(dataset), layout.EXCERPTS), b'"secret text"')
    return {
        "job": job,
        "event": await world.newest_event(),
        "checkpoint": f"ftckpt-{job}-1-10",
        "model": version.full_name,
        "version": version.model_id,
        "export": await owned_routes.a_ready_export(world, version),
        "export_file": "config.json",
        "dataset": dataset,
        "file": (await world.upload())["id"],
        "upload": (await world.ask("POST", "/uploads", json=A_LARGE_FILE)).json()["id"],
        **(await owned_routes.a_mute(world, job)),
        **(await owned_routes.a_webhook(world)),
        **(await owned_routes.a_sweep(world)),
    }


def missing(owned: dict[str, str]) -> dict[str, str]:
    """Ids of the same form that nobody has."""
    return {name: f"{known_id[:-4]}zzzz" for name, known_id in owned.items()}


def anonymous(answer: httpx.Response, ids: dict[str, str]) -> Any:
    text = answer.text
    for name, each in ids.items():
        text = text.replace(each, f"<{name}>")
    return answer.status_code, json.loads(text), answer.headers.get("content-type")


def is_in(text: str, known_id: str) -> bool:
    """Whether the id is in the text, and not as the beginning of one with another number."""
    return re.search(re.escape(known_id) + r"(?!\d)", text) is not None


class TestTenantsAreApart:
    @pytest.mark.parametrize(("method", "path"), OF_A_JOB + ELSE)
    async def test_what_is_anothers_looks_like_what_does_not_exist(self, world, owned, method, path):
        absent = missing(owned)
        foreign = await world.ask(method, path.format(**owned), tenant="other")
        unknown = await world.ask(method, path.format(**absent), tenant="other")
        assert foreign.status_code == 404, foreign.text
        assert anonymous(foreign, owned) == anonymous(unknown, absent)
        error = foreign.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["code"].endswith("_not_found")) == ("invalid_request_error", True)

    @pytest.mark.parametrize(("method", "path"), READS)
    async def test_what_is_ones_own_is_there(self, world, owned, method, path):
        async with world.http.stream(
            method, f"/v1{path.format(**owned)}", headers={"authorization": f"Bearer {world.keys['demo']}"}
        ) as answer:
            assert answer.status_code == 200

    @pytest.mark.parametrize("route", ["chat/completions", "completions"])
    async def test_inference_tells_nothing(self, world, owned, route):
        body = (
            {"messages": [{"role": "user", "content": "x"}]} if route.startswith("chat") else {"prompt": "x"}
        )
        absent = missing(owned)
        answers = [
            await world.ask("POST", f"/{route}", tenant="other", json=body | {"model": ids["model"]})
            for ids in (owned, absent)
        ]
        assert answers[0].status_code == 404
        assert anonymous(answers[0], owned) == anonymous(answers[1], absent)

    @pytest.mark.parametrize(
        "extra",
        [
            {},
            {"validation_file": "{file}"},
            {"retune": {"holdout_file": "{file}"}},
            {"retune": {"safety_mix": {"file": "{file}"}}},
        ],
    )
    async def test_a_foreign_file_is_no_file_of_a_job(self, world, owned, extra):
        own = (await world.upload("other"))["id"] if extra else "{file}"
        answers = []
        for ids in (owned, missing(owned)):
            body = {"model": world.base_name, "training_file": own} | extra
            named = json.loads(json.dumps(body).replace("{file}", ids["file"]))
            answer = await world.ask("POST", "/fine_tuning/jobs", tenant="other", json=named)
            answers.append(anonymous(answer, ids))
        assert answers[0] == answers[1]
        assert answers[0][0] == 400

    @pytest.mark.parametrize("path", LISTS)
    async def test_lists_hold_ones_own_only(self, world, owned, path):
        answer = await world.ask("GET", path.format(**owned), tenant="other")
        if "after" in path:
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
        else:
            mine = (await world.ask("GET", path)).text
            assert not [each for each in owned.values() if is_in(answer.text, each)]
            assert [each for each in owned.values() if is_in(mine, each)]

    async def test_nothing_foreign_is_asked_of_anyone(self, world, owned):
        """Nor by any of the tests above: no command about the job or the version has left. The sweep's own has."""
        for path in (f"/fine_tuning/jobs/{owned['job']}/cancel", f"/fine_tuning/jobs/{owned['job']}/retry"):
            assert (await world.ask("POST", path, tenant="other")).status_code == 404
        query = "SELECT count(*) FROM outbox WHERE aggregate_id = ANY($1) AND topic LIKE '%.commands'"
        ids = [each for name, each in owned.items() if name != "sweep"]
        assert await world.db.fetchval(query, ids) == 0
        assert await world.db.fetchval(query, [owned["sweep"]]) == 1

    async def test_one_idempotency_key_of_two_tenants_makes_two_jobs(self, world):
        jobs = {}
        for tenant in ("demo", "other"):
            file_id = (await world.upload(tenant))["id"]
            body = {"model": world.base_name, "training_file": file_id}
            key = {"idempotency-key": "the-same"}
            for _ in range(2):
                answer = await world.ask("POST", "/fine-tuning/jobs", tenant=tenant, json=body, headers=key)
                jobs.setdefault(tenant, set()).add(answer.json()["id"])
            changed = await world.ask(
                "POST", "/fine_tuning/jobs", tenant=tenant, json=body | {"suffix": "x"}, headers=key
            )
            assert changed.status_code == 422
        assert len(jobs["demo"]) == len(jobs["other"]) == 1
        assert jobs["demo"] != jobs["other"]
        for tenant, (job_id,) in jobs.items():
            response = await world.ask("GET", f"/fine-tuning/jobs/{job_id}", tenant=tenant)
            assert response.json()["organization_id"] == tenant


class TestKeys:
    async def test_are_kept_as_a_hash(self, world):
        rows = await world.db.fetch("SELECT * FROM api_key")
        kept = [str(value) for row in rows for value in row.values()]
        assert digest_of(world.keys["demo"]) in kept
        assert not any(world.keys["demo"] in value or world.keys["other"] in value for value in kept)

    async def test_stop_working_when_they_are_revoked(self, world):
        tenant = f"t-{mark()}"
        key = await new_key(world, tenant)
        bearer = {"authorization": f"Bearer {key}"}
        assert (await world.http.get("/v1/files", headers=bearer)).status_code == 200
        admin = {"authorization": f"Bearer {world.stack.operator_env()['RETUNE_ADMIN_KEY']}"}
        revoked = await world.http.post(f"/v1/admin/tenants/{tenant}/keys/revoke", headers=admin)
        assert revoked.json()["revoked_keys"] == 1
        answer = await world.http.get("/v1/files", headers=bearer)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")

    @pytest.mark.parametrize("header", [{}, {"authorization": "Bearer nobody"}, {"authorization": "Basic x"}])
    async def test_that_are_not_known_open_nothing(self, world, header):
        for method, path in (
            ("GET", "/v1/models"), ("POST", "/v1/files"), ("POST", "/v1/chat/completions"),
            ("GET", "/v1/refusals"), ("GET", "/v1/admin/pools"),
        ):  # fmt: skip
            answer = await world.http.request(method, path, headers=header)
            assert answer.status_code == 401, path

    async def test_of_a_tenant_are_no_operators(self, world):
        assert (await world.ask("GET", "/admin/pools")).status_code == 401


class TestPages:
    @pytest.fixture(scope="class")
    @classmethod
    async def jobs(cls, world: World) -> list[str]:
        file_id = (await world.upload())["id"]
        body = {"model": world.base_name, "training_file": file_id, "metadata": {"page": mark()}}
        answers = [(await world.ask("POST", "/fine_tuning/jobs", json=body)).json() for _ in range(5)]
        cls.metadata = body["metadata"]
        return [job["id"] for job in answers]

    async def test_follow_one_another_newest_first(self, world, jobs):
        seen: list[str] = []
        after: dict[str, str] = {}
        params = {"metadata[page]": self.metadata["page"], "limit": "2"}
        while True:
            page = (await world.ask("GET", "/fine_tuning/jobs", params=params | after)).json()
            seen += [job["id"] for job in page["data"]]
            if not page["has_more"]:
                break
            assert len(page["data"]) == 2
            after = {"after": seen[-1]}
        assert seen == jobs[::-1]

    async def test_are_followed_by_the_official_client(self, world, jobs):
        async with world.client() as client:
            listed = [job.id async for job in client.fine_tuning.jobs.list(limit=2)]
            files = [each.id async for each in client.files.list(limit=1)]
        assert [each for each in listed if each in jobs] == jobs[::-1]
        assert len(files) == len(set(files)) > 1

    @pytest.mark.parametrize(
        "path",
        [
            "/fine_tuning/jobs?after=ftjob-none",
            "/files?after=file-none",
            "/refusals?after=refusal-999999999",
            "/alerts?after=alert-999999999",
            "/refusals?after=x",
            "/models?after=ft:none",
            "/fine_tuning/jobs/{job}/events?after=ftevent-999999999",
            "/fine_tuning/jobs/{job}/events?after=ftevent-99999999999999999999999",
            "/fine_tuning/jobs/{job}/events?after=ftevent-²",
            "/fine_tuning/jobs/{job}/events?after=x",
            "/fine_tuning/jobs/{job}/checkpoints?after=ftckpt-{job}-9-9",
            "/fine_tuning/jobs/{job}/checkpoints?after=ftckpt-other-1-10",
            "/fine_tuning/jobs/{job}/checkpoints?after=x",
        ],
    )
    async def test_begin_after_something_that_is_there(self, world, owned, path):
        answer = await world.ask("GET", path.format(**owned))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "after", "invalid_value")

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/files?limit=10000", 200), ("/files?limit=10001", 400), ("/files?limit=0", 400),
            ("/fine_tuning/jobs?limit=100", 200), ("/fine_tuning/jobs?limit=101", 400),
            ("/fine_tuning/jobs?limit=x", 400), ("/fine_tuning/jobs/{job}/events?limit=-1", 400),
            ("/fine_tuning/jobs/{job}/metrics?limit=10001", 400),
            ("/models?limit=1000", 200), ("/models?limit=1001", 400), ("/deployments?limit=0", 400),
        ],
    )  # fmt: skip
    async def test_have_a_size_within_bounds(self, world, owned, path, status):
        answer = await world.ask("GET", path.format(**owned))
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["param"] == "limit"

    async def test_of_checkpoints_and_events_continue(self, world, owned):
        job = owned["job"]
        first = (await world.ask("GET", f"/fine_tuning/jobs/{job}/events?limit=2")).json()
        assert first["has_more"] is True
        rest = await world.ask("GET", f"/fine_tuning/jobs/{job}/events?limit=100&after={first['last_id']}")
        everything = (await world.ask("GET", f"/fine_tuning/jobs/{job}/events?limit=100")).json()
        assert first["data"] + rest.json()["data"] == everything["data"]
        (checkpoint,) = (await world.ask("GET", f"/fine_tuning/jobs/{job}/checkpoints")).json()["data"]
        after = await world.ask("GET", f"/fine_tuning/jobs/{job}/checkpoints?after={checkpoint['id']}")
        assert (after.status_code, after.json()["data"]) == (200, [])


class TestRefusals:
    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "param", "code"),
        [
            ("POST", "/fine_tuning/jobs", b"{", 400, None, "invalid_json"),
            ("POST", "/fine_tuning/jobs", b"{}", 400, "model", "missing_required_parameter"),
            ("POST", "/fine_tuning/jobs", b'{"model": "\\u0000", "training_file": "x"}', 400, None, "invalid_value"),
            ("POST", "/fine_tuning/jobs", b'{"model": "x", "training_file": "x", "retune": {"max_cost": 0}}',
             400, "retune.max_cost", "invalid_value"),
            ("POST", "/fine_tuning/jobs", TOO_FAST, 400, "retune.recipe.learning_rate", "invalid_value"),
            ("GET", "/fine_tuning/jobs/ftjob-none", b"", 404, "fine_tuning_job_id", "fine_tuning_job_not_found"),
            ("GET", "/files/%00", b"", 400, None, "invalid_value"),
            ("GET", "/nowhere", b"", 404, None, "unknown_url"),
            ("PUT", "/files", b"", 405, None, "method_not_allowed"),
            ("POST", "/chat/completions", FATAL, 400, "prompt_logprobs", "unknown_parameter"),
        ],
    )  # fmt: skip
    async def test_say_what_is_wrong(self, world, method, path, body, status, param, code):
        headers = {"content-type": "application/json"}
        answer = await world.ask(method, path, content=body, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (status, param, code), error

    async def test_of_a_body_over_the_limit_have_a_code(self, world):
        body = {"model": "x", "training_file": "x", "suffix": "x" * (9 * 1024 * 1024)}
        answer = await world.ask("POST", "/fine_tuning/jobs", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")

    @pytest.mark.parametrize(
        ("action", "command", "code"),
        [
            ("cancel", "CancelJob", "job_not_active"),
            ("pause", "PauseJob", "job_not_active"),
            ("resume", "ResumeJob", "job_not_paused"),
        ],
    )
    async def test_of_a_finished_job_are_no_reason_to_try_again(self, world, action, command, code):
        """The official client sends a request again after 409; here it would wait twice more for the same."""
        job = await world.a_running_job()
        cancelled = JobCancelled(job_id=job, tenant="demo", reason="user", artifact=None, last_step=10)
        await world.voices.say("scheduler", cancelled)
        await until(lambda: world.is_consumed("job.events", job, 5), "the end of the job")
        async with world.client(retries=2) as client:
            asking = asyncio.create_task(getattr(client.fine_tuning.jobs, action)(job))
            sent = await world.heard(job, command)
            words = "too_late" if code == "job_not_active" else "not_paused"
            refusal = CommandRefused(
                subject_id=job, command=command, command_id=sent.envelope.id, code=words,
                message=f"{command}: job {job} is cancelled already", tenant="demo",
            )  # fmt: skip
            await world.voices.say("scheduler", refusal, causation_id=sent.envelope.id)
            with pytest.raises(openai.BadRequestError) as caught:
                await asking
        assert caught.value.code == code
        assert "found a job that is cancelled, expected" in caught.value.message
        assert world.ear.types(job).count(command) == 1
        event = (await world.ask("GET", f"/fine_tuning/jobs/{job}/events?limit=1")).json()["data"][0]
        assert event["data"]["type"] == "CommandRefused"


class TestRetries:
    async def test_make_a_new_job_that_names_the_old_one(self, world):
        job = await world.a_running_job()
        failed = JobFailed(job_id=job, tenant="demo", failure_class="oom", code="oom", message="too big")
        await world.voices.say("scheduler", failed)
        await until(lambda: world.is_consumed("job.events", job, 5), "the failure")
        asking = asyncio.create_task(world.ask("POST", f"/fine_tuning/jobs/{job}/retry"))
        sent = await world.heard(job, "RetryJob")
        new = (await asking).json()
        assert (new["id"], new["status"]) == (sent.message.new_job_id, "validating_files")
        assert new["model"] == world.base_name
        assert sent.message == type(sent.message)(job_id=job, tenant="demo", new_job_id=new["id"])


async def test_a_job_shows_what_its_training_found_before_the_first_step(world):
    job = await world.a_running_job()
    shown = (await world.ask("GET", f"/fine_tuning/jobs/{job}")).json()["retune"]["preparation"]
    assert shown == {"attempt": 1} | a_preparation().model_dump(mode="json")
    events = (await world.ask("GET", f"/fine_tuning/jobs/{job}/events")).json()["data"]
    [message] = [each["message"] for each in events if each["data"]["type"] == "TrainingPrepared"]
    assert message == f"ready to train: {a_preparation().summary}"


async def test_a_job_shows_what_its_tenant_pays_and_what_nobody_does(world):
    job = await world.a_running_job()
    of_job = {
        "job_id": job,
        "tenant": "demo",
        "node_seconds": 60,
        "capacity_type": "spot",
        "until": utc_now(),
    }
    lost = CostAccrued(
        **of_job,
        attempt=1,
        cost="0.2",
        total="0.2",
        failure_class="infra",
        charged="0",
        charged_total="0",
    )
    paid = CostAccrued(**of_job, attempt=2, cost="0.3", total="0.5", charged="0.3", charged_total="0.3")
    await world.voices.say("tracker", lost, paid)
    await until(lambda: world.is_consumed("cost.events", job, 2), "both costs")
    shown = (await world.ask("GET", f"/fine_tuning/jobs/{job}")).json()["retune"]
    assert (shown["cost_usd"], shown["uncharged_cost_usd"]) == ("0.300000", "0.200000")
    events = (await world.ask("GET", f"/fine_tuning/jobs/{job}/events")).json()["data"]
    messages = [each["message"] for each in events if each["data"]["type"] == "CostAccrued"]
    assert messages[::-1] == [
        "attempt 1 cost $0.20, which is not charged (infra); $0.00 charged so far",
        "attempt 2 cost $0.30; $0.30 charged so far",
    ]


async def test_a_running_job_shows_what_it_has_cost_so_far(world):
    job = await world.a_running_job()
    began_at = utc_now() - timedelta(hours=1)
    nodes = tuple(
        AllocatedNode(node_id=f"n-{each}", index=each, price_per_hour="0.30", allocated_at=began_at)
        for each in range(2)
    )
    of_attempt = {"job_id": job, "tenant": "demo", "attempt": 1}
    held = NodesProvisioned(**of_attempt, pool="cpu", capacity_type="spot", nodes=nodes)
    await world.voices.say("provisioner", held)

    async def running_cost() -> str | None:
        return (await world.ask("GET", f"/fine_tuning/jobs/{job}")).json()["retune"]["running_cost_usd"]

    async def is_above_that_of_its_first_node() -> float:
        cost = float(await running_cost() or 0)
        return cost if cost > 0.1 else 0.0

    assert 0.6 <= await until(is_above_that_of_its_first_node, "the cost so far") < 0.7
    async with logged_in(world) as person:
        assert "$0.6" in words_of(await person.get(f"/jobs/{job}"))
    ended = tuple(node.model_copy(update={"released_at": utc_now()}) for node in nodes)
    await world.voices.say("provisioner", NodesReleased(**of_attempt, nodes=ended))

    async def is_over() -> bool:
        return await running_cost() is None

    await until(is_over, "no cost so far")


async def test_both_commands_of_a_request_are_of_the_callers_trace(world):
    file_id = (await world.upload())["id"]
    answer = await world.ask(
        "POST",
        "/fine_tuning/jobs",
        json={"model": world.base_name, "training_file": file_id},
        headers={"traceparent": PARENT},
    )
    job = answer.json()
    submit = await world.heard(job["id"], "SubmitJob")
    dataset = await world.heard(job["retune"]["dataset_id"], "SubmitDataset")
    traces = {each.envelope.traceparent.split("-")[1] for each in (submit, dataset)}
    assert traces == {PARENT.split("-")[1]}
    assert submit.envelope.correlation_id == dataset.envelope.correlation_id
    assert submit.message.dataset_id == dataset.message.dataset_id


async def test_a_cancel_is_answered_when_the_job_has_moved(world):
    job = await world.a_running_job()
    async with world.client() as client:
        asking = asyncio.create_task(client.fine_tuning.jobs.cancel(job))
        command = await world.heard(job, "CancelJob")
        assert command.message == CancelJob(job_id=job, tenant="demo")
        cancelled = JobCancelled(job_id=job, tenant="demo", reason="user", artifact=None, last_step=10)
        await world.voices.say("scheduler", cancelled)
        assert (await asking).status == "cancelled"


async def test_a_kill_between_commit_and_answer_makes_neither_none_nor_two(world):
    """The client never heard of its job; with the same key it gets that one."""
    body = {"model": world.base_name, "training_file": (await world.upload())["id"]}
    key = {"idempotency-key": mark()}
    await world.stack.stop("gateway")
    await world.stack.start("gateway", env=ENV | {"FAILPOINTS": "gateway.accepted=kill"})
    await world.stack.wait_healthy("gateway")
    pid = world.stack.pid("gateway")
    with pytest.raises(httpx.TransportError):
        await world.ask("POST", "/fine_tuning/jobs", json=body, headers=key)
    await until(lambda: has_ended(pid), "the kill")
    await world.stack.stop("gateway")
    await world.stack.start("gateway", env=ENV)
    await world.stack.wait_healthy("gateway")
    answer = await world.ask("POST", "/fine_tuning/jobs", json=body, headers=key)
    assert (answer.status_code, answer.headers.get("idempotent-replayed")) == (200, "true")
    job_id = answer.json()["id"]
    await world.heard(job_id, "SubmitJob")
    query = "SELECT count(*) FROM job WHERE spec -> 'training_file' ->> 'file_id' = $1"
    assert await world.db.fetchval(query, body["training_file"]) == 1
    assert world.ear.types(job_id) == ["SubmitJob"]


async def has_ended(pid: int) -> bool:
    return Identity.of(pid) is None


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_deleted_version_takes_its_datasets_with_it_of_which_there_may_be_none(world, is_named):
    dataset_id = await world.a_dataset()
    version = a_sha(dataset_id)
    named = (dataset_id,) if is_named else ()
    deleted = DatasetDeleted(dataset_version=version, tenant="demo", dataset_ids=named)
    await world.voices.say("ingest", deleted)
    await until(lambda: world.is_consumed("dataset.events", version, 1), "the deletion")
    dataset = (await world.ask("GET", f"/datasets/{dataset_id}")).json()
    assert dataset["status"] == ("deleted" if is_named else "ready")
