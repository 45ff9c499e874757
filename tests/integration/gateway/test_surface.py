"""What the official client asks for beside jobs and chat: orders and ends of lists, deletions, parameters."""

import asyncio
import hashlib

import openai
import pytest

from schemas.base import CommandRefused
from schemas.dataset import DatasetDeleted
from tests.builders import a_sha
from tests.integration.gateway.world import MAX_UPLOAD_BYTES, ROW, mark, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack


@pytest.fixture
async def client(world):
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    async with world.client(tenant) as client:
        yield client


async def test_files_are_listed_in_both_orders_and_from_any_of_them(client):
    ids = [(await client.files.create(file=(f"{n}.jsonl", ROW), purpose="fine-tune")).id for n in range(3)]
    assert [file.id async for file in client.files.list()] == ids[::-1]
    assert [file.id async for file in client.files.list(order="asc", limit=1)] == ids
    assert [file.id for file in (await client.files.list(order="asc", after=ids[0])).data] == ids[1:]
    assert (await client.files.list(purpose="batch")).data == []
    with pytest.raises(openai.BadRequestError, match="limit"):
        await client.files.list(limit=10_001)


@pytest.mark.parametrize(
    "path", ["/files", "/models", "/fine_tuning/jobs", "/datasets", "/quotas", "/suites"]
)
async def test_parameters_that_a_route_does_not_have_are_refused_by_name(world, path):
    answer = await world.ask("GET", f"{path}?colour=blue")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", "colour")


async def test_jobs_are_found_by_their_metadata_or_by_having_none(world):
    job_id = await world.a_running_job()
    ids = {
        query: [
            job["id"]
            for job in (await world.ask("GET", f"/fine_tuning/jobs?{query}&limit=100")).json()["data"]
        ]
        for query in ("metadata=null", "metadata[team]=x")
    }
    assert job_id in ids["metadata=null"]
    assert job_id not in ids["metadata[team]=x"]
    assert (await world.ask("GET", "/fine_tuning/jobs?metadata=x")).json()["error"]["param"] == "metadata"


async def test_datasets_are_listed_and_deleted_with_their_version(world):
    first, second = await world.a_dataset(), await world.a_dataset()
    page = (await world.ask("GET", "/datasets?limit=1")).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([second], True)
    rest = (await world.ask("GET", f"/datasets?limit=1&after={second}")).json()
    assert [each["id"] for each in rest["data"]] == [first]

    deleting = asyncio.create_task(world.ask("DELETE", f"/datasets/{first}"))
    sent = await world.heard(a_sha(first), "DeleteDataset")
    deleted = DatasetDeleted(dataset_version=a_sha(first), tenant="demo", dataset_ids=(first,))
    await world.voices.say("ingest", deleted, causation_id=sent.envelope.id)
    assert (await deleting).json() == {"id": first, "object": "dataset", "deleted": True}
    assert (await world.ask("DELETE", f"/datasets/{first}")).json()["deleted"]
    assert (await world.ask("GET", f"/datasets/{first}")).json()["status"] == "deleted"


async def test_a_model_is_deleted_as_far_as_the_registry_does(world):
    version = await world.a_version()
    async with world.client() as client:
        deleting = asyncio.create_task(client.models.delete(version.full_name))
        sent = await world.heard(version.model_id, "DeleteModel")
        refusal = CommandRefused(
            subject_id=version.model_id, command="DeleteModel", command_id=sent.envelope.id,
            code="not_available_yet", message="DeleteModel is not available yet", tenant="demo",
        )  # fmt: skip
        await world.voices.say("registry", refusal, causation_id=sent.envelope.id)
        with pytest.raises(openai.BadRequestError) as error:
            await deleting
    assert error.value.code == "not_available_yet"


class TestAnUploadInParts:
    ROWS = ROW * 50

    async def begun(self, client, **changes):
        options = {"filename": "rows.jsonl", "bytes": len(self.ROWS), "mime_type": "text/jsonl"}
        return await client.uploads.create(purpose="fine-tune", **(options | changes))

    async def parts_of(self, client, upload):
        middle = len(ROW) // 2
        parts = [
            await client.uploads.parts.create(upload.id, data=data)
            for data in (self.ROWS[:middle], self.ROWS[middle:])
        ]
        return [part.id for part in parts]

    async def test_is_a_file_like_any_other(self, world, client):
        upload = await client.uploads.upload_file_chunked(
            file=self.ROWS, filename="rows.jsonl", bytes=len(self.ROWS), mime_type="text/jsonl",
            purpose="fine-tune", part_size=1_000,
        )  # fmt: skip
        assert (upload.status, upload.file.bytes, upload.file.filename) == (
            "completed",
            len(self.ROWS),
            "rows.jsonl",
        )
        assert (await client.files.content(upload.file.id)).content == self.ROWS
        assert [file.id async for file in client.files.list()] == [upload.file.id]
        query = "SELECT DISTINCT state FROM file WHERE upload_id = $1"
        states = {row["state"] for row in await world.db.fetch(query, upload.id)}
        assert states <= {"deleting", "removing", "deleted"}
        assert (await client.uploads.complete(upload.id, part_ids=["part-1"])).file == upload.file

    async def test_is_put_together_in_the_order_that_is_named(self, client):
        upload = await self.begun(client)
        first, second = await self.parts_of(client, upload)
        with pytest.raises(openai.BadRequestError, match="md5"):
            await client.uploads.complete(upload.id, part_ids=[first, second], md5="0" * 32)
        with pytest.raises(openai.BadRequestError, match="JSON"):
            await client.uploads.complete(upload.id, part_ids=[second, first])
        md5 = hashlib.md5(self.ROWS, usedforsecurity=False).hexdigest()
        done = await client.uploads.complete(upload.id, part_ids=[first, second], md5=md5)
        assert (await client.files.content(done.file.id)).content == self.ROWS

    async def test_takes_its_own_parts_and_all_of_them(self, client):
        upload, other = await self.begun(client), await self.begun(client)
        first, second = await self.parts_of(client, upload)
        (foreign, _) = await self.parts_of(client, other)
        for part_ids in ([first], [first, first, second], [foreign, second], ["part-1"]):
            with pytest.raises(openai.BadRequestError, match="part_ids"):
                await client.uploads.complete(upload.id, part_ids=part_ids)

    async def test_that_is_cancelled_takes_and_keeps_no_part(self, world, client):
        upload = await self.begun(client)
        part_ids = await self.parts_of(client, upload)
        assert (await client.uploads.cancel(upload.id)).status == "cancelled"
        for late in (
            client.uploads.complete(upload.id, part_ids=part_ids),
            client.uploads.parts.create(upload.id, data=b"x"),
            client.uploads.cancel(upload.id),
        ):
            with pytest.raises(openai.BadRequestError, match="is cancelled, expected pending"):
                await late

        async def are_gone() -> bool:
            query = "SELECT bool_and(state = 'deleted') FROM file WHERE upload_id = $1"
            return await world.db.fetchval(query, upload.id)

        await until(are_gone, "the end of the parts")

    async def test_expires_after_an_hour(self, world, client):
        upload = await self.begun(client)
        assert upload.expires_at - upload.created_at == 3_600
        await world.db.execute(
            "UPDATE upload SET created_at = created_at - interval '61 minutes' WHERE upload_id = $1",
            upload.id,
        )
        with pytest.raises(openai.BadRequestError, match="expired") as error:
            await client.uploads.parts.create(upload.id, data=b"x")
        assert error.value.code == "upload_expired"

    async def test_is_refused_where_its_file_would_be(self, client):
        for changes, param in (
            ({"bytes": MAX_UPLOAD_BYTES + 1}, "bytes"),
            ({"extra_body": {"purpose": "batch"}}, "purpose"),
            ({"expires_after": {"anchor": "created_at", "seconds": 3_600}}, "expires_after"),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                await self.begun(client, **changes)
            assert error.value.param == param


async def test_what_is_not_served_says_so(client):
    with pytest.raises(openai.NotFoundError) as error:
        await client.fine_tuning.checkpoints.permissions.create("ftckpt-1", project_ids=["p"])
    assert error.value.code == "not_available_yet"
