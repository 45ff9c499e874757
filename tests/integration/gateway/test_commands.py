"""A tenant's own producer, and the stream of what happens to a job."""

import asyncio
import json
from typing import Any

import pytest

from schemas.base import CommandRefused, FileRef
from schemas.dataset import DatasetRejected, SubmitDataset
from schemas.job import CancelJob, JobCancelled, JobRunning, JobSubmitted, RetryJob, SubmitJob
from schemas.model import DeployModel
from schemas.node import PreemptNode
from schemas.specification import DatasetPolicy, DatasetSpec, Tier
from schemas.training import TrainingCompleted
from services.gateway import tables
from shared.clock import utc_now
from shared.postgres.database import Database
from tests.builders import a_bundle, a_sha
from tests.integration.gateway.world import World, mark
from tests.waiting import PATIENCE_SECONDS, until

IS_WAITING = "SELECT EXISTS (SELECT FROM waiting WHERE aggregate_id = $1)"

pytestmark = pytest.mark.stack


async def a_file(world: World, tenant: str = "demo") -> FileRef:
    uploaded = await world.upload(tenant)
    return FileRef(file_id=uploaded["id"], sha256=uploaded["retune"]["sha256"], size_bytes=uploaded["bytes"])


async def refusals(world: World, tenant: str) -> list[dict[str, Any]]:
    return (await world.ask("GET", "/refusals?limit=100", tenant=tenant)).json()["data"]


async def shown(world: World, tenant: str, command_id: str) -> dict[str, Any]:
    """The refusal of this command, as its sender sees it."""

    async def find() -> Any:
        return next(
            (each for each in await refusals(world, tenant) if each["command_id"] == command_id), None
        )

    return await until(find, f"the refusal of {command_id}")


class TestCommandsOfATenant:
    async def test_are_forwarded_with_the_tenants_tier(self, world):
        spec = world.spec(training_file=await a_file(world), tier=Tier.PREMIUM)
        command = SubmitJob(job_id=f"ftjob-{mark()}", tenant="demo", dataset_id=f"ds-{mark()}", spec=spec)
        sent = await world.command("demo", command)
        delivery = await world.heard(command.job_id, "SubmitJob")
        assert delivery.topic.name == "job.commands"
        assert delivery.envelope.causation_id == sent
        assert delivery.message.spec.tier is Tier.STANDARD
        assert delivery.message == command.model_copy(
            update={"spec": spec.model_copy(update={"tier": Tier.STANDARD})}
        )

    async def test_about_ones_own_things_reach_their_owner(self, world):
        job, version = await world.a_running_job(), await world.a_version()
        dataset = await a_submission(world)
        for command, topic in (
            (CancelJob(job_id=job, tenant="demo"), "job.commands"),
            (DeployModel(model_id=version.model_id, tenant="demo", slot="x"), "model.commands"),
            (dataset, "dataset.commands"),
        ):
            await world.command("demo", command)
            delivery = await world.heard(command.key, command.type)
            assert (delivery.topic.name, delivery.message) == (topic, command)
        answer = await world.ask("GET", f"/datasets/{dataset.dataset_id}")
        assert answer.json()["status"] == "validating"

    async def test_about_a_job_that_was_asked_for_wait_for_the_schedulers_answer(self, world):
        ids = {"job_id": f"ftjob-{mark()}", "tenant": "demo", "dataset_id": f"ds-{mark()}"}
        spec = world.spec(training_file=await a_file(world))
        await world.command("demo", SubmitJob(**ids, spec=spec))
        await world.heard(ids["job_id"], "SubmitJob")
        await world.command("demo", CancelJob(job_id=ids["job_id"], tenant="demo"))
        await until(lambda: world.db.fetchval(IS_WAITING, ids["job_id"]), "the command that waits")
        await world.voices.say("scheduler", JobSubmitted(**ids, spec=spec, submitted_at=utc_now()))
        assert (await world.heard(ids["job_id"], "CancelJob")).topic.name == "job.commands"

    async def test_in_another_tenants_name_are_refused_to_the_sender(self, world):
        job = await world.a_running_job("other")
        sent = await world.command("demo", CancelJob(job_id=job, tenant="other"))
        refused = await world.heard(job, "CommandRefused")
        assert (refused.topic.name, refused.message.code) == ("tenant.events", "wrong_tenant")
        assert refused.message.tenant == "demo"
        assert (await shown(world, "demo", sent))["code"] == "wrong_tenant"
        assert sent not in {each["command_id"] for each in await refusals(world, "other")}
        events = (await world.ask("GET", f"/fine_tuning/jobs/{job}/events?limit=100", tenant="other")).json()
        assert "CommandRefused" not in {each["data"]["type"] for each in events["data"]}
        assert "CancelJob" not in world.ear.types(job)

    async def test_about_what_is_not_ones_own_are_refused(self, world):
        theirs = await world.a_running_job("other")
        version, dataset = await world.a_version("other"), await world.a_dataset("other")
        file, foreign = await a_file(world), await a_file(world, "other")
        of_job = {"job_id": f"ftjob-{mark()}", "tenant": "demo", "dataset_id": f"ds-{mark()}"}
        spec = world.spec(training_file=file)
        expected = [
            (CancelJob(job_id=theirs, tenant="demo"), "unknown_job"),
            (CancelJob(job_id=f"ftjob-{mark()}", tenant="demo"), "unknown_job"),
            (RetryJob(job_id=theirs, tenant="demo", new_job_id="ftjob-x"), "unknown_job"),
            (DeployModel(model_id=version.model_id, tenant="demo", slot="x"), "unknown_model"),
            (SubmitJob(**of_job, spec=world.spec(training_file=foreign)), "unknown_file"),
            (SubmitJob(**of_job, spec=world.spec(training_file=file, holdout=foreign)), "unknown_file"),
            (SubmitJob(**of_job | {"dataset_id": dataset}, spec=spec), "unknown_dataset"),
            (
                SubmitJob(**of_job, spec=spec.model_copy(update={"base_model": "nobody"})),
                "unknown_base_model",
            ),
            (
                SubmitJob(**of_job, spec=spec.model_copy(update={"base_sha": a_sha("x")})),
                "unknown_base_model",
            ),
            ((await a_submission(world)).model_copy(update={"dataset_id": dataset}), "unknown_dataset"),
        ]
        for command, code in expected:
            refusal = await shown(world, "demo", await world.command("demo", command))
            assert (refusal["code"], refusal["command"]) == (code, command.type), command
        assert {each.topic.name for key in (theirs, of_job["job_id"]) for each in world.ear.heard[key]} == {
            "tenant.events"
        }
        assert (await world.ask("GET", f"/datasets/{dataset}", tenant="other")).json()["status"] == "ready"

    async def test_that_no_tenant_may_give_are_parked(self, world):
        sent = await world.command("demo", PreemptNode(node_id="node-1", notice_seconds=0))
        parked = await until(
            lambda: world.db.fetchrow("SELECT reason, topic FROM parked WHERE event_id = $1", sent),
            "the message to be parked",
        )
        assert tuple(parked) == ("unknown_type", "tenant.demo.commands")

    async def test_that_are_refused_leave_the_next_one_alone(self, world):
        job = await world.a_running_job()
        await world.command("demo", CancelJob(job_id=f"ftjob-{mark()}", tenant="demo"))
        await world.command("demo", CancelJob(job_id=job, tenant="demo"))
        await world.heard(job, "CancelJob")

    async def test_sent_twice_count_once(self, world):
        job = await world.a_running_job()
        first = await world.command("demo", CancelJob(job_id=job, tenant="demo"), event_id=mark())
        await world.command("demo", CancelJob(job_id=job, tenant="demo"), event_id=first)
        await world.command("demo", RetryJob(job_id=job, tenant="demo", new_job_id="ftjob-later"))
        await world.heard(job, "RetryJob")
        assert world.ear.types(job) == ["CancelJob", "RetryJob"]


async def a_submission(world: World) -> SubmitDataset:
    spec = DatasetSpec(base_model=world.base_name, base_sha=world.base_sha, training_file=await a_file(world))
    return SubmitDataset(dataset_id=f"ds-{mark()}", tenant="demo", spec=spec)


async def test_a_policy_that_keeps_leaks_is_for_operators(world):
    submission = await a_submission(world)
    policy = DatasetPolicy(contamination="keep")
    spec = submission.spec.model_copy(update={"policy": policy})
    refused = await shown(
        world, "demo", await world.command("demo", submission.model_copy(update={"spec": spec}))
    )
    assert (refused["code"], refused["param"]) == ("operators_only", "spec.policy.contamination")
    body = {
        "model": world.base_name,
        "training_file": (await world.upload())["id"],
        "retune": {"policy": {"contamination": "keep"}},
    }
    for route in ("/datasets", "/fine_tuning/jobs"):
        answer = await world.ask("POST", route, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "retune.policy.contamination")


@pytest.mark.parametrize("first", ["dataset", "job"])
async def test_the_answer_of_a_dataset_is_in_the_timeline_of_its_job_whichever_is_heard_first(world, first):
    dataset_id, job_id = f"ds-{mark()}", f"ftjob-{mark()}"
    submitted = JobSubmitted(
        job_id=job_id,
        tenant="demo",
        dataset_id=dataset_id,
        spec=world.spec(training_file=FileRef(file_id="file-1", sha256=a_sha("x"), size_bytes=1)),
        submitted_at=utc_now(),
    )
    rejected = DatasetRejected(
        dataset_id=dataset_id, tenant="demo", code="too_many_dropped", message="Half are."
    )
    facts = {
        "dataset": ("ingest", rejected, "dataset.events", dataset_id),
        "job": ("scheduler", submitted, "job.events", job_id),
    }
    for name in sorted(facts, key=lambda each: each != first):
        voice, fact, topic, key = facts[name]
        await world.voices.say(voice, fact)
        await until(lambda topic=topic, key=key: world.is_consumed(topic, key, 1), f"the {name}")
    events = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/events?limit=100")).json()["data"]
    (answer,) = [each for each in events if each["data"]["type"] == "DatasetRejected"]
    assert (answer["level"], answer["message"]) == ("error", "dataset refused (too_many_dropped): Half are.")


async def test_a_dataset_that_ingest_refuses_is_not_validated_for_ever(world):
    file_id = (await world.upload())["id"]
    body = {"model": world.base_name, "training_file": file_id}
    dataset_id = (await world.ask("POST", "/datasets", json=body)).json()["id"]
    sent = await world.heard(dataset_id, "SubmitDataset")
    refusal = CommandRefused(
        subject_id=dataset_id, command="SubmitDataset", command_id=sent.envelope.id,
        code="window_too_long", message="the window is too long", tenant="demo",
    )  # fmt: skip
    await world.voices.say("ingest", refusal)
    await until(lambda: world.is_consumed("dataset.events", dataset_id, 1), "the refusal")
    dataset = (await world.ask("GET", f"/datasets/{dataset_id}")).json()
    assert (dataset["status"], dataset["code"]) == ("rejected", "window_too_long")


class TestTheStreamOfAJob:
    async def test_sees_events_of_two_processes_in_the_order_of_their_ids(self, world):
        """An id that becomes visible after a later one would be skipped by whoever resumes in between."""
        job = await world.a_running_job()
        event = JobRunning(job_id=job, tenant="demo", attempt=1)
        database = Database(world.stack.postgres_dsn("gateway"), application="gateway-test")
        await database.open()

        async def tell(conn: Any, name: str) -> None:
            await tables.add_event(conn, job, "demo", name, event, ("info", name), utc_now())

        async def second() -> None:
            async with database.transaction() as conn:
                await tell(conn, "second")

        async with database.transaction() as conn:
            await tell(conn, "first")
            waiting = asyncio.create_task(second())
            await until(lambda: has_blocked(world), "the second to wait")
            assert not waiting.done()
        await waiting
        await database.close()
        rows = await world.db.fetch(
            "SELECT message FROM job_event WHERE job_id = $1 ORDER BY id DESC LIMIT 2", job
        )
        assert [row["message"] for row in rows] == ["second", "first"]

    async def test_continues_after_the_last_event_that_was_seen(self, world):
        job = await world.a_running_job()
        number = await world.db.fetchval("SELECT count(*) FROM job_event WHERE job_id = $1", job)
        everything = await stream(world, job, number=number)
        seen: list[dict[str, Any]] = []
        while len(seen) < number:
            seen += await stream(world, job, number=1, last=seen[-1]["id"] if seen else "")
        assert seen == everything
        assert len({event["id"] for event in seen}) == number >= 6

    async def test_misses_nothing_that_happened_while_nobody_listened(self, world):
        job = await world.a_running_job()
        number = await world.db.fetchval("SELECT count(*) FROM job_event WHERE job_id = $1", job)
        first, *others = await stream(world, job, number=number)
        completed = TrainingCompleted(job_id=job, tenant="demo", attempt=1, bundle=a_bundle(40), last_step=40)
        await world.voices.say("trainer_agent", completed)
        listening = asyncio.create_task(stream(world, job, last=first["id"]))
        cancelled = JobCancelled(job_id=job, tenant="demo", reason="user", artifact=None, last_step=40)
        await world.voices.say("scheduler", cancelled)
        events = await listening
        assert events[: len(others)] == others
        assert sorted(event["event"] for event in events[len(others) :]) == [
            "JobCancelled",
            "TrainingCompleted",
        ]

    @pytest.mark.parametrize("last", ["x", "ftevent-", "ftevent--1", "ftevent-99999999999999999999"])
    async def test_needs_an_id_of_ours(self, world, last):
        job = await world.a_running_job()
        answer = await world.ask(
            "GET", f"/fine_tuning/jobs/{job}/events?stream=true", headers={"last-event-id": last}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


async def has_blocked(world: World) -> bool:
    query = """SELECT count(*) > 0 FROM pg_stat_activity
                WHERE application_name = 'gateway-test' AND wait_event_type = 'Lock'"""
    return bool(await world.db.fetchval(query))


async def stream(
    world: World, job: str, *, number: int | None = None, last: str = ""
) -> list[dict[str, Any]]:
    """So many events after the last one; all of them until the server says that it is done, if not told."""
    headers = {"authorization": f"Bearer {world.keys['demo']}", "accept": "text/event-stream"}
    headers |= {"last-event-id": last} if last else {}
    path, events, event = f"/v1/fine_tuning/jobs/{job}/events", [], {}
    async with asyncio.timeout(PATIENCE_SECONDS), world.http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if value == "[DONE]":
                break
            if name:
                event[name] = json.loads(value) if name == "data" else value
            elif event:
                events.append(event)
                event = {}
                if len(events) == number:
                    break
    return events
