"""A deleted file: its bytes go when nothing needs them any more, and not before."""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from schemas import layout
from schemas.base import CommandRefused, FileRef
from schemas.dataset import DatasetRejected
from schemas.evaluation import (
    BenchmarkKind,
    BenchmarkRegistered,
    EvalInconclusive,
    EvalStarted,
    ReevaluateModel,
)
from schemas.job import JobFailed, JobSubmitted, RetryJob
from services import gateway
from services.gateway import store
from services.gateway.access import OPERATOR
from services.gateway.removal import UPLOAD_LIMIT
from shared.clock import utc_now
from shared.postgres.migrate import migrate
from tests.builders import a_file_ref, a_sha
from tests.integration.gateway.world import ENV, World, mark
from tests.integration.kills import alive, killed_at
from tests.integration.scratch import empty_schema
from tests.waiting import until

pytestmark = pytest.mark.stack


def rows(text: str = "") -> bytes:
    """Bytes that no other test has uploaded."""
    content = [{"role": "user", "content": text or mark()}, {"role": "assistant", "content": "b"}]
    return json.dumps({"messages": content}).encode() + b"\n"


def ref(file: dict[str, Any]) -> FileRef:
    return FileRef(file_id=file["id"], sha256=file["retune"]["sha256"], size_bytes=file["bytes"])


async def delete(world: World, file: dict[str, Any], *, tenant: str = "demo") -> Any:
    answer = await world.ask("DELETE", f"/files/{file['id']}", tenant=tenant)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def is_stored(world: World, file: dict[str, Any]) -> bool:
    return await world.objects.head(layout.blob(file["retune"]["sha256"])) is not None


async def until_gone(world: World, file: dict[str, Any]) -> None:
    async def is_gone() -> bool:
        return not await is_stored(world, file)

    await until(is_gone, f"the removal of {file['id']}'s bytes")


async def status_of(world: World, method: str, path: str) -> int:
    return (await world.ask(method, path)).status_code


async def a_job_with(world: World, holdout: dict[str, Any], training: dict[str, Any]) -> str:
    job_id = f"ftjob-{mark()}"
    spec = world.spec(training_file=ref(training), holdout=ref(holdout))
    submitted = JobSubmitted(
        job_id=job_id, tenant="demo", dataset_id=f"ds-{job_id}", spec=spec, submitted_at=utc_now()
    )
    await world.voices.say("scheduler", submitted)
    await until(lambda: world.is_consumed("job.events", job_id, 1), "the job")
    return job_id


async def a_model_with(world: World) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Its holdout, its id, and what the facts of a later evaluation say of it; its job has ended."""
    holdout = await world.upload(content=rows())
    job_id = await a_job_with(world, holdout, await world.upload(content=rows()))
    await fail(world, job_id)
    await until(lambda: world.is_consumed("job.events", job_id, 2), "the failure")
    version = await world.a_version(job_id=job_id)
    about = version.model_dump(include={"model_id", "tenant", "job_id", "digest", "base_sha"})
    return holdout, version.model_id, about | {"eval_id": f"eval-{mark()}", "number": 2}


async def ask_for_evaluation(world: World, model_id: str) -> str:
    """The command's id."""
    await world.command("demo", ReevaluateModel(model_id=model_id, tenant="demo"))
    return (await world.heard(model_id, "ReevaluateModel")).envelope.id


async def fail(world: World, job_id: str) -> None:
    failed = JobFailed(job_id=job_id, tenant="demo", failure_class="oom", code="oom", message="too big")
    await world.voices.say("scheduler", failed)


class TestAFileThatNothingNeeds:
    async def test_is_gone_with_its_bytes_when_the_client_hears_so(self, world):
        file = await world.upload(content=rows())
        async with world.client() as client:
            answer = await client.files.delete(file["id"])
        assert (answer.id, answer.object, answer.deleted) == (file["id"], "file", True)
        assert not await is_stored(world, file)
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert await status_of(world, method, f"/files/{file['id']}{path}") == 404, (method, path)

    async def test_leaves_the_bytes_to_whoever_else_uploaded_them(self, world):
        content = rows()
        own, theirs = await world.upload(content=content), await world.upload("other", content=content)
        assert (await delete(world, own))["deleted"]
        assert (await world.ask("GET", f"/files/{theirs['id']}/content", tenant="other")).content == content
        assert (await delete(world, theirs, tenant="other"))["deleted"]
        assert not await is_stored(world, own)

    async def test_can_be_uploaded_again(self, world):
        content = rows()
        for _ in range(3):
            file = await world.upload(content=content)
            assert (await world.ask("GET", f"/files/{file['id']}/content")).content == content
            assert (await delete(world, file))["deleted"]

    async def test_uploaded_and_deleted_at_once_is_never_a_file_without_bytes(self, world):
        content = rows()

        async def upload_and_delete() -> None:
            file = await world.upload(content=content)
            kept = await world.ask("GET", f"/files/{file['id']}/content")
            assert (kept.status_code, kept.content) == (200, content)
            await delete(world, file)

        async def again_and_again() -> None:
            for _ in range(4):
                await upload_and_delete()

        await asyncio.gather(*(again_and_again() for _ in range(6)))
        file = await world.upload(content=content)
        assert await is_stored(world, file)

    async def test_is_gone_though_the_gateway_died_over_it(self, world):
        file = await world.upload(content=rows())
        await until(lambda: nothing_is_removed(world), "the end of every other removal")
        async with killed_at(world.stack, "gateway", "gateway.removed", env=ENV):
            await world.stack.wait_healthy("gateway")
            asking = asyncio.create_task(world.ask("DELETE", f"/files/{file['id']}"))
            await asyncio.gather(asking, return_exceptions=True)
        await alive(world.stack, "gateway", env=ENV)
        await until(lambda: is_deleted(world, file), "the end of the removal")
        assert not await is_stored(world, file)


async def nothing_is_removed(world: World) -> bool:
    query = "SELECT NOT EXISTS (SELECT FROM file WHERE state IN ('deleting', 'removing'))"
    return bool(await world.db.fetchval(query))


async def is_deleted(world: World, file: dict[str, Any]) -> bool:
    return await status_of(world, "DELETE", f"/files/{file['id']}") == 404


class TestAFileThatIsNeeded:
    async def test_stays_until_the_job_whose_holdout_it_is_has_ended(self, world):
        holdout, training = await world.upload(content=rows()), await world.upload(content=rows())
        job_id = await a_job_with(world, holdout, training)
        answer = await delete(world, holdout)
        assert (answer["deleted"], answer["retune"]) == (
            False,
            {"status": "deleting", "needed_by": [f"job {job_id}"]},
        )
        assert await is_stored(world, holdout)
        assert await status_of(world, "GET", f"/files/{holdout['id']}") == 404
        assert await delete(world, holdout) == answer
        await fail(world, job_id)
        await until_gone(world, holdout)
        await until(lambda: is_deleted(world, holdout), "the end of the removal")

    async def test_stays_until_the_dataset_that_is_made_of_it_is_answered(self, world):
        file, mix = await world.upload(content=rows()), await world.upload(content=rows())
        body = {
            "model": world.base_name,
            "training_file": file["id"],
            "retune": {"safety_mix": {"file": mix["id"]}},
        }
        dataset_id = (await world.ask("POST", "/datasets", json=body)).json()["id"]
        for each in (file, mix):
            needed_by = (await delete(world, each))["retune"]["needed_by"]
            assert needed_by == [f"dataset {dataset_id}"]
        rejected = DatasetRejected(dataset_id=dataset_id, tenant="demo", code="empty", message="no row")
        await world.voices.say("ingest", rejected)
        await until_gone(world, file)
        await until_gone(world, mix)

    async def test_stays_from_the_request_for_an_evaluation_until_it_has_ended(self, world):
        holdout, model_id, about = await a_model_with(world)
        asked = await ask_for_evaluation(world, model_id)
        needed_by = (await delete(world, holdout))["retune"]["needed_by"]
        assert needed_by == [f"evaluation of {model_id}"]
        started = EvalStarted(**about)
        await world.voices.say("evaluator", started, causation_id=asked)
        await until(lambda: world.is_consumed("eval.events", started.key, 1), "the evaluation")
        assert (await delete(world, holdout))["retune"]["needed_by"] == [f"evaluation {about['eval_id']}"]
        await world.voices.say("evaluator", EvalInconclusive(**about, checks=(), reason="the judge is away"))
        await until_gone(world, holdout)

    async def test_goes_once_the_evaluation_is_refused(self, world):
        holdout, model_id, _about = await a_model_with(world)
        asked = await ask_for_evaluation(world, model_id)
        assert not (await delete(world, holdout))["deleted"]
        refused = CommandRefused(
            subject_id=model_id,
            command="ReevaluateModel",
            command_id=asked,
            code="already_running",
            message="it is being evaluated",
            tenant="demo",
        )
        await world.voices.say("evaluator", refused, causation_id=asked)
        await until_gone(world, holdout)

    async def test_stays_while_a_benchmark_is_read_from_it(self, world):
        old, new = await a_suite_file(world), await a_suite_file(world)
        name = f"benchmark-{mark()}"
        await world.voices.say("evaluator", a_benchmark(name, old))
        await until(lambda: world.is_consumed("eval.events", name, 1), "the benchmark")
        assert (await as_operator(world, "DELETE", f"/{old['id']}"))["retune"]["needed_by"] == [
            f"benchmark {name}"
        ]
        await world.voices.say("evaluator", a_benchmark(name, new))
        await until_gone(world, old)
        assert await is_stored(world, new)

    async def test_stays_while_a_benchmark_takes_its_examples_from_it(self, world):
        asked, examples = await world.upload(content=rows()), await world.upload(content=rows())
        name = f"benchmark-{mark()}"
        registered = a_benchmark(name, asked).model_copy(update={"examples": ref(examples)})
        await world.voices.say("evaluator", registered)
        await until(lambda: world.is_consumed("eval.events", name, 1), "the benchmark")
        assert (await delete(world, examples))["retune"]["needed_by"] == [f"benchmark {name}"]
        await world.voices.say("evaluator", a_benchmark(name, asked))
        await until_gone(world, examples)

    async def test_goes_at_once_where_a_copy_of_the_tenant_keeps_the_bytes(self, world):
        content = rows()
        holdout, copy = await world.upload(content=content), await world.upload(content=content)
        job_id = await a_job_with(world, holdout, await world.upload())
        assert (await delete(world, holdout))["deleted"]
        assert (await delete(world, copy))["retune"]["needed_by"] == [f"job {job_id}"]
        assert await is_stored(world, copy)
        await fail(world, job_id)
        await until_gone(world, copy)


class TestAFileOfASuite:
    """Who could read the gate's questions could train on them."""

    async def test_is_the_operators_and_no_tenants_key_opens_it(self, world):
        file = await a_suite_file(world)
        listed = (await as_operator(world, "GET", "?purpose=benchmark&limit=1000"))["data"]
        assert file["id"] in {each["id"] for each in listed}
        for tenant in world.keys:
            mine = (await world.ask("GET", "/files?limit=1000", tenant=tenant)).json()["data"]
            assert file["id"] not in {each["id"] for each in mine}
            for method, path in [("GET", ""), ("GET", "/content"), ("DELETE", "")]:
                answer = await world.ask(method, f"/files/{file['id']}{path}", tenant=tenant)
                assert answer.status_code == 404, (method, path)
            assert (await world.ask("GET", "/admin/files", tenant=tenant)).status_code == 401
            body = {"model": world.base_name, "training_file": file["id"]}
            answer = await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "file_not_found")

    async def test_that_a_tenant_uploaded_before_is_the_operators_after_the_upgrade(self, stack):
        async with empty_schema(stack) as dsn:
            await migrate("gateway", dsn)
            conn = await asyncpg.connect(dsn)
            for purpose in ("fine-tune", "benchmark", "safety-suite"):
                await store.reserve_file(
                    conn,
                    a_file_ref(purpose),
                    tenant="demo",
                    purpose=purpose,
                    file_format=None,
                    num_rows=1,
                    now=utc_now(),
                )
            (upgrade,) = (Path(gateway.__file__).parent / "migrations").glob("0014_*.sql")
            (of_files,) = [each for each in upgrade.read_text().split(";") if "UPDATE file" in each]
            await conn.execute(of_files)
            owners = dict(await conn.fetch("SELECT purpose, tenant FROM file"))
            assert owners == {"fine-tune": "demo", "benchmark": OPERATOR, "safety-suite": OPERATOR}
            await conn.close()


async def as_operator(world: World, method: str, path: str = "", **options: Any) -> Any:
    bearer = {"authorization": f"Bearer {world.stack.operator_env()['RETUNE_ADMIN_KEY']}"}
    answer = await world.http.request(method, f"/v1/admin/files{path}", headers=bearer, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def a_suite_file(world: World) -> dict[str, Any]:
    form = {"files": {"file": ("suite.jsonl", rows())}, "data": {"purpose": "benchmark"}}
    file: dict[str, Any] = await as_operator(world, "POST", **form)
    return file


def a_benchmark(name: str, file: dict[str, Any]) -> BenchmarkRegistered:
    return BenchmarkRegistered(
        name=name, kind=BenchmarkKind.TEXT, digest=a_sha(file["id"]), file=ref(file), num_fewshot=0, rows=40
    )


class TestAJobWhoseFileWasDeleted:
    @pytest.mark.parametrize("which", ["training", "holdout"])
    async def test_cannot_be_run_again(self, world, which):
        files = {
            "training": await world.upload(content=rows()),
            "holdout": await world.upload(content=rows()),
        }
        job_id = await a_job_with(world, **files)
        await fail(world, job_id)
        await until(lambda: world.is_consumed("job.events", job_id, 2), "the failure")
        await delete(world, files[which])
        await until(lambda: is_deleted(world, files[which]), "the deletion")
        error = (await world.ask("POST", f"/fine_tuning/jobs/{job_id}/retry")).json()["error"]
        assert (error["code"], error["param"]) == ("file_deleted", "fine_tuning_job_id")
        assert f"file {files[which]['id']!r}, was deleted" in error["message"]
        await world.command("demo", RetryJob(job_id=job_id, tenant="demo", new_job_id=f"ftjob-{mark()}"))
        assert (await world.heard(job_id, "CommandRefused")).message.code == "file_deleted"
        assert "RetryJob" not in world.ear.types(job_id)


async def test_nobody_stores_bytes_while_they_are_being_removed(stack):
    """Neither order of an upload and a removal leaves a file without bytes: rows of a schema without a gateway."""
    async with empty_schema(stack) as dsn:
        await migrate("gateway", dsn)
        conn = await asyncpg.connect(dsn)
        old, new = (a_file_ref(f"{name}.jsonl").model_copy(update={"sha256": a_sha("x")}) for name in "ab")
        of_file = {
            "tenant": "demo",
            "purpose": "fine-tune",
            "file_format": None,
            "num_rows": 1,
            "now": utc_now(),
        }
        async with conn.transaction():
            assert await store.reserve_file(conn, old, **of_file)
            assert await store.confirm_file(conn, old.file_id)
            assert await store.delete_file(conn, old.file_id, "demo", now=utc_now())
            assert await store.start_removing(conn, old.file_id) == [old.sha256]
            assert not await store.reserve_file(conn, new, **of_file)
            assert await store.removable(conn, old.sha256) == ([old.file_id], False)
            await conn.execute(store.REMOVED, [old.file_id])
            assert await store.reserve_file(conn, new, **of_file)
            assert await store.removable(conn, old.sha256) == ([], True)
        await conn.close()


async def test_an_interrupted_upload_leaves_nothing(world):
    """As if the gateway had died after the bytes were stored, before it noted that."""
    file = await world.upload(content=rows())
    await world.db.execute(
        "UPDATE file SET state = 'uploading', created_at = $2 WHERE file_id = $1",
        file["id"],
        utc_now() - UPLOAD_LIMIT,
    )
    await until_gone(world, file)
