"""What the official client asks for beside jobs and chat: orders and ends of lists, deletions, parameters."""

import asyncio

import openai
import pytest

from schemas.base import CommandRefused
from schemas.dataset import DatasetDeleted
from tests.builders import a_sha
from tests.integration.gateway_world import ROW, mark, new_key, world

__all__ = ["world"]

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


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


async def test_what_is_not_served_says_so(client):
    with pytest.raises(openai.NotFoundError) as error:
        await client.fine_tuning.checkpoints.permissions.create("ftckpt-1", project_ids=["p"])
    assert error.value.code == "not_available_yet"
