"""What a tenant may have at once and ask for in a time, at both doors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from schemas.base import CommandRefused, FileRef
from schemas.cost import BudgetReached, CostAccrued
from schemas.job import JobCancelled, JobSubmitted, SubmitJob
from shared.clock import utc_now
from tests.integration.gateway.world import MAX_UPLOAD_BYTES, ROW, World, mark, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack


async def as_operator(world: World, method: str, path: str, **options: Any) -> httpx.Response:
    key = world.stack.service_env("gateway")["GATEWAY_ADMIN_KEY"]
    headers = {"authorization": f"Bearer {key}"}
    return await world.http.request(method, f"/v1/admin/tenants{path}", headers=headers, **options)


async def decide(world: World, tenant: str, **quotas: int | None) -> dict[str, Any]:
    answer = await as_operator(world, "PUT", f"/{tenant}/quotas", json=quotas)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def tenant(world: World) -> str:
    name = f"t-{mark()}"
    world.keys[name] = await new_key(world, name)
    return name


@pytest.fixture
async def producer(world: World) -> AsyncIterator[str]:
    """A tenant with a user of Kafka."""
    yield "other"
    await decide(world, "other")


async def body_of(world: World, tenant: str) -> dict[str, Any]:
    return {"model": world.base_name, "training_file": (await world.upload(tenant))["id"]}


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_requests_at_the_same_time_do_not_share_the_last_place(world, tenant):
    await decide(world, tenant, open_jobs=3)
    body = await body_of(world, tenant)
    asked = [world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body) for _ in range(12)]
    answers = await asyncio.gather(*asked)
    assert sum(answer.status_code == 200 for answer in answers) == 3
    (answer, *_) = [each for each in answers if each.status_code != 200]
    assert refused(answer) == (429, "quota_exceeded", "open_jobs")
    assert (
        answer.json()["error"]["message"] == "open_jobs: found 3 jobs that have not ended, expected at most 3"
    )
    assert (answer.headers["retry-after"], answer.json()["error"]["type"]) == ("60", "rate_limit_error")
    assert "x-should-retry" not in answer.headers
    assert (await world.ask("GET", "/quotas", tenant=tenant)).json()["used"]["open_jobs"] == 3


async def test_running_devices_are_limited_by_the_scheduler(world, tenant):
    answer = await decide(world, tenant, running_devices=2)
    assert answer["limits"]["running_devices"] == 2
    assert (await world.heard(tenant, "LimitDevices")).message.devices == 2
    await decide(world, tenant, running_devices=2, open_jobs=7)
    await decide(world, tenant)

    async def limits() -> list[int | None] | None:
        limits = [
            each.message.devices for each in world.ear.heard[tenant] if each.message.type == "LimitDevices"
        ]
        return limits if len(limits) > 1 else None

    assert await until(limits, "the limit that was taken away") == [2, None]


async def test_a_months_budget_refuses_new_jobs_and_holds_queued_ones(world, tenant):
    """Until the month is over, the budget is greater, or what used it up turns out to be free."""
    shown = await decide(world, tenant, cost_per_month=10)
    assert (shown["used"]["cost_per_month"], shown["limits"]["cost_per_month"]) == (0, 10)
    assert shown["next_month_at"] > utc_now().timestamp()
    assert (await world.heard(tenant, "LimitSpending")).message.cost_per_month == 10
    job, of_attempt = f"ftjob-{mark()}", {"capacity_type": "spot", "node_seconds": 1, "until": utc_now()}
    of_job = {"job_id": job, "tenant": tenant}
    paid = CostAccrued(**of_job, **of_attempt, attempt=1, cost="9", total="9", charged="9", charged_total="9")
    reached = BudgetReached(
        **of_job, attempt=2, budget="month", limit="10", spent="9.9", message="9.9 of 10 US dollars are spent"
    )
    await world.voices.say("tracker", paid, reached)
    assert (await world.heard(tenant, "LimitDevices")).message.devices == 0
    body = await body_of(world, tenant)
    answer = await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)
    assert refused(answer) == (429, "quota_exceeded", "cost_per_month")
    assert "found 9.00 US dollars charged this month" in answer.json()["error"]["message"]
    free = CostAccrued(
        **of_job, **of_attempt, attempt=2, cost="1", total="10", charged="0", charged_total="9"
    )
    await world.voices.say("tracker", free)

    async def devices() -> list[int | None] | None:
        sent = [each.message for each in world.ear.heard[tenant] if each.message.type == "LimitDevices"]
        return [each.devices for each in sent] if len(sent) > 1 else None

    assert await until(devices, "the devices again") == [0, None]
    assert (await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)).status_code == 200
    assert (await world.ask("GET", "/quotas", tenant=tenant)).json()["used"]["cost_per_month"] == 9
    await decide(world, tenant, cost_per_month=9)
    answer = await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)
    assert refused(answer) == (429, "quota_exceeded", "cost_per_month")
    await decide(world, tenant, cost_per_month=11)
    assert (await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)).status_code == 200


async def test_a_job_that_ended_frees_its_place(world, tenant):
    await decide(world, tenant, open_jobs=1)
    body = await body_of(world, tenant)
    job = (await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)).json()
    assert (await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)).status_code == 429
    submit = (await world.heard(job["id"], "SubmitJob")).message
    submitted = JobSubmitted(
        job_id=job["id"],
        tenant=tenant,
        dataset_id=submit.dataset_id,
        spec=submit.spec,
        submitted_at=utc_now(),
    )
    await world.voices.say("scheduler", submitted)
    cancelled = JobCancelled(job_id=job["id"], tenant=tenant, reason="user", artifact=None, last_step=0)
    await world.voices.say("scheduler", cancelled)
    await until(lambda: world.is_consumed("job.events", job["id"], 2), "the end of the job")
    assert (await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)).status_code == 200


async def test_a_producers_jobs_count_before_anybody_heard_of_them(world, producer):
    used = (await world.ask("GET", "/quotas", tenant=producer)).json()["used"]["open_jobs"]
    await decide(world, producer, open_jobs=used + 1)
    file = await world.upload(producer)
    ref = FileRef(file_id=file["id"], sha256=file["retune"]["sha256"], size_bytes=file["bytes"])

    async def submit() -> SubmitJob:
        command = SubmitJob(
            job_id=f"ftjob-{mark()}",
            tenant=producer,
            dataset_id=f"ds-{mark()}",
            spec=world.spec(training_file=ref),
        )
        await world.command(producer, command)
        return command

    async def refusal_of(command: SubmitJob) -> dict[str, Any] | None:
        rows = (await world.ask("GET", "/refusals?limit=100", tenant=producer)).json()["data"]
        return next((row for row in rows if row["subject_id"] == command.job_id), None)

    first = await submit()
    sent = await world.heard(first.job_id, "SubmitJob")
    second = await submit()
    await until(lambda: refusal_of(second), "the refusal")
    row = await refusal_of(second)
    assert (row["code"], row["param"]) == ("quota_exceeded", "open_jobs")
    # The scheduler refuses the first: its place is free again.
    refusal = CommandRefused(
        subject_id=first.job_id, command="SubmitJob", command_id=sent.envelope.id,
        code="incompatible", message="it is not", tenant=producer,
    )  # fmt: skip
    await world.voices.say("scheduler", refusal, causation_id=sent.envelope.id)
    await until(lambda: world.is_consumed("job.events", first.job_id, 1), "the refusal by the scheduler")
    third = await submit()
    await world.heard(third.job_id, "SubmitJob")


async def test_datasets_that_are_not_validated_are_bounded(world, tenant):
    await decide(world, tenant, open_datasets=1)
    body = await body_of(world, tenant)
    assert (await world.ask("POST", "/datasets", tenant=tenant, json=body)).status_code == 200
    answer = await world.ask("POST", "/datasets", tenant=tenant, json=body)
    assert refused(answer) == (429, "quota_exceeded", "open_datasets")


async def test_commands_of_a_day_are_bounded_and_a_cancel_is_not(world, tenant):
    await decide(world, tenant, commands_per_day=2)
    body = await body_of(world, tenant)
    job = (await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)).json()
    answer = await world.ask("POST", "/datasets", tenant=tenant, json=body)
    assert refused(answer) == (429, "quota_exceeded", "commands_per_day")
    assert answer.headers["x-should-retry"] == "false"
    assert 0 < int(answer.headers["retry-after"]) <= 24 * 3600
    await world.ask("POST", f"/fine_tuning/jobs/{job['id']}/cancel", tenant=tenant)
    await world.heard(job["id"], "CancelJob")


async def test_bytes_of_files_are_bounded_and_deleting_frees_them(world, tenant):
    file = await world.upload(tenant)
    await decide(world, tenant, stored_bytes=2 * len(ROW) - 1)

    async def upload() -> httpx.Response:
        files = {"file": ("rows.jsonl", ROW)}
        return await world.ask("POST", "/files", tenant=tenant, files=files, data={"purpose": "fine-tune"})

    assert refused(await upload()) == (429, "quota_exceeded", "stored_bytes")
    await world.ask("DELETE", f"/files/{file['id']}", tenant=tenant)
    assert (await upload()).status_code == 200


async def test_a_key_that_asks_too_fast_learns_when_to_ask_again(world, tenant):
    await decide(world, tenant, requests_per_minute=60)
    answers = [await world.ask("GET", "/files", tenant=tenant) for _ in range(12)]
    last = answers[-1]
    assert answers[0].status_code == 200
    assert refused(last) == (429, "quota_exceeded", "requests_per_minute")
    assert last.headers["retry-after"] == "1"
    assert (await world.ask("GET", "/files")).status_code == 200
    async with world.client(tenant) as client:
        with pytest.raises(openai.RateLimitError):
            await client.files.list()
    async with world.client(tenant, retries=2) as client:
        await client.files.list()


async def test_followed_timelines_are_bounded_and_a_client_that_goes_frees_its_place(world, tenant):
    await decide(world, tenant, streams=1)
    body = await body_of(world, tenant)
    job = (await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)).json()
    path = f"/fine_tuning/jobs/{job['id']}/events?stream=true"
    headers = {"authorization": f"Bearer {world.keys[tenant]}"}
    async with world.http.stream("GET", f"/v1{path}", headers=headers) as stream:
        assert stream.status_code == 200
        assert refused(await world.ask("GET", path, tenant=tenant)) == (429, "quota_exceeded", "streams")

    async def is_free() -> bool:
        async with world.http.stream("GET", f"/v1{path}", headers=headers) as stream:
            return stream.status_code == 200

    await until(is_free, "the place of the client that went")


async def test_files_that_are_sent_are_bounded(world, tenant):
    await decide(world, tenant, transfers=0)
    answer = await world.ask("GET", "/files/none/content", tenant=tenant)
    assert answer.status_code == 404
    files = {"file": ("rows.jsonl", ROW)}
    answer = await world.ask("POST", "/files", tenant=tenant, files=files, data={"purpose": "fine-tune"})
    assert refused(answer) == (429, "quota_exceeded", "transfers")
    assert answer.headers["retry-after"] == "5"


async def test_bytes_of_files_that_are_sent_are_bounded_and_one_of_unknown_length_counts_as_the_longest(
    world, tenant
):
    async def upload() -> httpx.Response:
        files = {"file": ("rows.jsonl", ROW)}
        return await world.ask("POST", "/files", tenant=tenant, files=files, data={"purpose": "fine-tune"})

    async def parts() -> AsyncIterator[bytes]:
        yield ROW

    await decide(world, tenant, transfer_bytes=len(ROW))
    assert refused(await upload()) == (429, "quota_exceeded", "transfer_bytes")
    await decide(world, tenant, transfer_bytes=MAX_UPLOAD_BYTES - 1)
    file = (await upload()).json()
    answer = await world.ask("POST", "/files", tenant=tenant, content=parts())
    assert refused(answer) == (429, "quota_exceeded", "transfer_bytes")
    await decide(world, tenant, transfer_bytes=len(ROW) - 1)
    answer = await world.ask("GET", f"/files/{file['id']}/content", tenant=tenant)
    assert refused(answer) == (429, "quota_exceeded", "transfer_bytes")


async def test_the_operator_decides_and_gives_back(world, tenant):
    default = (await world.ask("GET", "/quotas", tenant=tenant)).json()
    assert default["decided"] == {}
    shown = await decide(world, tenant, open_jobs=5, stored_bytes=None)
    assert shown["decided"] == {"open_jobs": 5, "stored_bytes": None}
    assert shown["limits"] == default["limits"] | shown["decided"]
    assert (await decide(world, tenant))["limits"] == default["limits"]
    assert (await as_operator(world, "PUT", "/nobody/quotas", json={})).status_code == 404
    wrong = await as_operator(world, "PUT", f"/{tenant}/quotas", json={"open_jbos": 1})
    assert refused(wrong) == (400, "unknown_parameter", "open_jbos")
