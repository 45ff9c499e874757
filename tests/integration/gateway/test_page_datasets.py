"""Datasets on the page: what became of each row, as the report of ingest has it."""

import json
import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from schemas import layout
from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.dataset import DatasetReady
from schemas.excerpts import DatasetExcerpts
from tests.builders import a_sha
from tests.integration.gateway.pages import (
    HOSTILE,
    a_base_with_a_shape,
    a_rejected_dataset,
    a_reported_dataset,
    csrf_in,
    logged_in,
    words_of,
)
from tests.integration.gateway.world import ROW, World, mark, new_key
from tests.reports import excerpts_of_rows
from tests.waiting import until

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
async def person(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world) as client:
        yield client


@pytest.fixture(scope="module")
async def ready(world: World) -> str:
    return await a_reported_dataset(world)


async def test_a_dataset_says_what_became_of_its_rows(person, ready):
    page = await person.get(f"/datasets/{ready}")
    words = words_of(page)
    assert (
        "kept 880 of 1,000 rows: 60 bad, 25 exact duplicates, 15 near duplicates, 20 contaminated by mmlu 20"
        in words
    )
    assert "kept 880" in words
    assert "break a rule 60" in words
    assert "holds an item that the gate asks 20" in words
    assert "chat.role_order 30 add a turn of the user between them" in words
    assert "701 holdout" in words
    assert words.index("701 holdout") < words.index("700 mmlu"), "contaminated rows are first"
    assert "513 to 1,024 12 longer than a window of 512" in words
    assert page.text.count('<mark class="trained">It is 49.') == 3
    assert "line 3, 40 tokens, the beginning of it" in words
    assert unescape(page.text).count(HOSTILE) > 20
    assert "<script>alert" not in page.text


async def test_duplicates_stand_side_by_side_with_what_differs_marked(person, ready):
    page = await person.get(f"/datasets/{ready}")
    words = words_of(page)
    assert "Line 4 is kept, repeated by 20 rows" in words
    assert "Line 100: 93.0 % alike" in words
    assert "<mark>multiplied by</mark>" in page.text
    assert "No word differs in what is shown." in words


async def test_contaminated_rows_stand_beside_their_items_with_the_shared_run_marked(person, ready):
    page = await person.get(f"/datasets/{ready}")
    words = words_of(page)
    assert "Line 702 and item 12 of mmlu: 15 shared words, 15 in one run" in words
    assert "5 words not shown" in words
    assert unescape(page.text).count(f"to the sea {HOSTILE}</mark>") == 4


async def test_windows_are_drawn_as_they_are_packed(person, ready):
    page = await person.get(f"/datasets/{ready}")
    words = words_of(page)
    assert (
        "fill 210 windows of 512 tokens: 15.4 % is padding. Without packing it would be 880 windows" in words
    )
    assert (page.text.count('class="padding"'), page.text.count('class="piece ')) == (24, 72)
    assert "24 of 210 windows, at equal distances" in words
    assert "256 880 57" in words


async def test_excerpts_are_at_the_api_and_a_report_without_them_is_shown_alone(world, person, ready):
    path = f"/datasets/{ready}/excerpts"
    shown = DatasetExcerpts.model_validate((await world.ask("GET", path)).json())
    assert shown == excerpts_of_rows(hostile=HOSTILE)
    earlier = await a_reported_dataset(world)
    await world.objects.delete([layout.dataset(a_sha(earlier), layout.EXCERPTS)])
    answer = await world.ask("GET", f"/datasets/{earlier}/excerpts")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404, f"excerpts of dataset {earlier!r} does not exist",
    )  # fmt: skip
    page = await person.get(f"/datasets/{earlier}")
    assert "The report names the rows and not their texts" in words_of(page)
    assert 'class="packing"' not in page.text


async def test_a_rejected_dataset_shows_what_its_rows_repeat(world, person):
    dataset_id = await a_rejected_dataset(world)
    assert (await world.ask("GET", f"/datasets/{dataset_id}/excerpts")).status_code == 200
    words = words_of(await person.get(f"/datasets/{dataset_id}"))
    assert "Line 4 is kept, repeated by 20 rows" in words
    assert "Packing" not in words


async def test_rejected_rows_are_paged_and_filtered_by_rule(person, ready):
    seen: list[int] = []
    path = f"/datasets/{ready}?rule=row.too_long"
    while path:
        page = await person.get(path)
        seen += map(
            int,
            re.findall(
                r'<tr><td class="number">(\d+)</td><td class="optional"><code>row.too_long', page.text
            ),
        )
        following = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = unescape(following[1]) if following else ""
    assert seen == [*range(1, 61, 2)]
    everything = await person.get(f"/datasets/{ready}?begin=50")
    assert "Rows 51 to 60 of 60" in words_of(everything)
    assert "None." in words_of(await person.get(f"/datasets/{ready}?rule=nothing"))


async def test_a_rejected_file_says_why_and_which_rows(world, person):
    dataset_id = await a_rejected_dataset(world)
    words = words_of(await person.get(f"/datasets/{dataset_id}"))
    assert f"600 of 1,000 rows are bad, which is over policy.max_bad_ratio 0.1 {HOSTILE}" in words
    assert "Rows 1 to 20 of 600" in words
    assert "Samples" not in words


async def test_a_report_that_is_not_read_here_can_be_downloaded(world, person):
    dataset_id = await world.a_dataset()
    page = await person.get(f"/datasets/{dataset_id}")
    assert "The report is of another release" in words_of(page)
    answer = await person.get(f"/datasets/{dataset_id}/report.json")
    assert (answer.status_code, answer.headers["content-disposition"][:10]) == (200, "attachment")


async def test_a_report_that_is_not_in_the_store_is_not_found(world, person):
    dataset_id = await world.a_dataset()
    await world.objects.delete([layout.dataset(a_sha(dataset_id), "report.json")])
    assert "The report is not there" in words_of(await person.get(f"/datasets/{dataset_id}"))
    answer = await person.get(f"/datasets/{dataset_id}/report.json")
    assert answer.status_code == 404
    assert f"report of dataset {dataset_id!r} does not exist" in unescape(answer.text)


async def test_the_list_is_paged_and_ones_own(world, ready):
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    async with logged_in(world, tenant) as client:
        assert "None yet" in words_of(await client.get("/datasets"))
        await world.db.execute(
            """INSERT INTO dataset (dataset_id, tenant, state, created_at)
               SELECT 'ds-many-' || $1 || '-' || n, $1, 'validating', now() - n * interval '1 minute'
                 FROM generate_series(1, 120) AS n""",
            tenant,
        )
        seen: list[int] = []
        path = "/datasets"
        while path:
            page = await client.get(path)
            assert ready not in page.text
            seen += map(int, re.findall(rf'href="/datasets/ds-many-{tenant}-(\d+)"', page.text))
            following = re.search(r'href="([^"]+)" rel="next"', page.text)
            path = unescape(following[1]) if following else ""
        assert seen == [*range(1, 121)]
        assert (await client.get(f"/datasets?after={ready}")).status_code == 400


async def test_rows_are_validated_without_a_job_and_known_before_the_next_one(world, person):
    """What the numbers of the recipe become is said by the rows of the same files, base model and policy."""
    base = await a_base_with_a_shape(world)
    file = await world.upload()
    form = {
        "csrf": csrf_in((await person.get("/jobs/new")).text),
        "training_file": file["id"],
        "model": base.name,
    }
    answer = await person.post("/datasets", data=form | {"suffix": "of-no-use-here"})
    assert answer.status_code == 303, words_of(answer)
    dataset_id = answer.headers["location"].rpartition("/")[2]
    sent = (await world.heard(dataset_id, "SubmitDataset")).message
    assert (sent.spec.training_file.file_id, sent.spec.method) == (file["id"], "lora")
    page = await person.get(f"/datasets/{dataset_id}")
    assert "validating" in words_of(page)
    async with person.stream("GET", f"/datasets/{dataset_id}/stream") as events:
        lines = events.aiter_lines()
        await world.voices.say("ingest", a_ready(dataset_id, base.base_sha, file["retune"]["sha256"]))
        async for line in lines:
            if line.startswith("data: {") and "kept 12,000 rows" in json.loads(line[6:])["html"]:
                break
    words = words_of(await person.post("/jobs/new/check", data=form))
    assert f"{dataset_id} , the same files for the same base model, is ready" in words
    assert "num epochs 1: the dataset has 12,000 rows, and from 10,000 on one pass is enough" in words
    assert "steps 200: of 400 windows an epoch" in words
    other = await person.post("/jobs/new/check", data=form | {"retune-policy-max_seq_length": "64"})
    assert "not yet with this base model and policy" in words_of(other)


async def test_a_ready_dataset_says_what_a_job_on_it_needs_and_leads_to_it(world, person):
    base = await a_base_with_a_shape(world)
    file, holdout = await world.upload(content=a_row()), await world.upload(content=a_row())
    form = {
        "csrf": csrf_in((await person.get("/jobs/new")).text),
        "training_file": file["id"],
        "holdout_file": holdout["id"],
        "model": base.name,
        "retune-policy-max_seq_length": "64",
    }
    answer = await person.post("/datasets", data=form)
    assert answer.status_code == 303, words_of(answer)
    dataset_id = answer.headers["location"].rpartition("/")[2]
    assert "Train on it" not in words_of(await person.get(f"/datasets/{dataset_id}")), "it is validating"
    digests = (file["retune"]["sha256"], holdout["retune"]["sha256"])
    await world.voices.say("ingest", a_ready(dataset_id, base.base_sha, *digests))
    state = "SELECT state = 'ready' FROM dataset WHERE dataset_id = $1"
    await until(lambda: world.db.fetchval(state, dataset_id), "the dataset")

    page = await person.get(f"/datasets/{dataset_id}")
    words = words_of(page)
    assert f"Before you pay {base.name}, lora by the default recipe" in words
    assert "steps 200: of 400 windows an epoch" in words
    assert "of each device" in words
    assert f'href="/jobs/new?dataset={dataset_id}">Train on it' in page.text

    filled = await person.get(f"/jobs/new?dataset={dataset_id}")
    assert f"Filled in from {dataset_id}" in words_of(filled)
    for chosen in (file["id"], holdout["id"], base.name):
        assert re.search(rf'<option value="{re.escape(chosen)}" selected>', filled.text), chosen
    assert re.search(r'name="retune-policy-max_seq_length" value="64"', filled.text)
    assert f"{dataset_id} , the same files for the same base model, is ready" in words_of(filled)

    assert (await world.ask("DELETE", f"/files/{holdout['id']}")).status_code == 200
    words = words_of(await person.get(f"/datasets/{dataset_id}"))
    assert "its holdout file is deleted: upload it again" in words
    refused = await person.get(f"/jobs/new?dataset={dataset_id}")
    assert (refused.status_code, "its holdout file is deleted" in words_of(refused)) == (400, True)
    async with logged_in(world, "other") as other:
        assert (await other.get(f"/jobs/new?dataset={dataset_id}")).status_code == 404


def a_row() -> bytes:
    """Bytes that no other file has."""
    return ROW.replace(b'"content": "', b'"content": "' + mark().encode() + b" ", 1)


def a_ready(dataset_id: str, base_sha: str, training: str, holdout: str | None = None) -> DatasetReady:
    counts = DatasetCounts(rows=12_000, windows=400, tokens=1_000, loss_tokens=500)
    return DatasetReady(
        dataset_id=dataset_id, tenant="demo", dataset_version=a_sha(dataset_id), manifest_sha256=a_sha("manifest"),
        base_sha=base_sha, template_sha256=a_sha("template"), counts=counts, benchmarks={}, suites={},
        files=DatasetFiles(training=training, holdout=holdout),
    )  # fmt: skip


async def test_a_job_leads_to_its_dataset(world, person):
    job_id = await world.a_running_job()
    words = words_of(await person.get(f"/jobs/{job_id}/settings"))
    assert f"dataset ds-{job_id}" in words
