"""Lists of the page that are searched by words and `status:`: each list finds its tenant's rows, page by page."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from tests.builders import a_sha
from tests.integration.gateway.pages import HOSTILE, HTML, heard, logged_in, words_of
from tests.integration.gateway.sweep_rows import add_sweep
from tests.integration.gateway.world import World, mark, new_key

pytestmark = pytest.mark.stack

ADD_FILE = """
    INSERT INTO file (file_id, tenant, sha256, size_bytes, filename, purpose, created_at, state)
    VALUES ('file-' || $1, $2, $3, 1, $4, 'fine-tune', now(), 'uploaded')"""
ADD_DATASET = "INSERT INTO dataset (dataset_id, tenant, state, files) VALUES ($1, $2, $3, ARRAY[$4])"
ADD_ROUTE = """
    INSERT INTO route (tenant, slot, generation, model_id, digest, state, updated_at)
    VALUES ($1, $2, 1, $3, 'd', $4, now())"""
ADD_ENDPOINT = """
    INSERT INTO webhook_endpoint (endpoint_id, tenant, name, url, event_types, nonce, is_enabled, failing_since,
                                  created_at, updated_at)
    VALUES ($1, $2, 'ours', 'https://hooks.example.com/' || $3, '{}', 'n', $4 <> 'disabled',
            CASE WHEN $4 = 'failing' THEN now() END, now(), now())"""
ADD_VERSION = """
    INSERT INTO model (model_id, tenant, full_name, digest, job_id, base_model, base_sha, dataset_version, stage,
                       detail, created_at)
    VALUES ($1, $2, 'ft:base:' || $3, 'd', 'ftjob-x', $5, $6, 'v', $4, '{}', now())"""


@dataclass(frozen=True)
class List:
    """`states`: two that rows have. `words` find the first, `other` the second."""

    path: str
    kind: str
    states: tuple[str, str]
    words: tuple[str, str]

    async def add(self, world: World, tenant: str, name: str, *, is_other: bool = False) -> str:
        """Add a row of this name, and return what its link leads to."""
        state, number = self.states[is_other], mark()
        match self.path:
            case "/datasets":
                await world.db.execute(ADD_FILE, number, tenant, a_sha(number), name)
                await world.db.execute(ADD_DATASET, f"ds-{number}", tenant, state, a_sha(number))
                return f"ds-{number}"
            case "/deployments":
                await world.db.execute(ADD_ROUTE, tenant, f"{name}-{number}", f"mv-{number}", state)
                return f"{name}-{number}"
            case "/sweeps":
                sweep = await add_sweep(world, tenant, num_trials=0, state=state, name=name)
                await world.db.execute("UPDATE sweep SET state = $2 WHERE sweep_id = $1", sweep, state)
                return sweep
            case "/webhooks":
                await world.db.execute(ADD_ENDPOINT, f"whe_{number}", tenant, name, state)
                return f"whe_{number}"
            case _:
                base = (world.base_name, world.base_sha)
                await world.db.execute(ADD_VERSION, f"mv-{number}", tenant, name, state, *base)
                return f"mv-{number}"

    def rows(self, answer: httpx.Response) -> list[str]:
        assert answer.status_code == 200, answer.text
        body = answer.text.partition('<div id="list"')[2]
        links = re.findall(rf'<a (?:class="cut" )?href="{self.path}/([^"/]+)(?:/history)?" title', body)
        return [unquote(unescape(each)) for each in links]


LISTS = (
    List("/datasets", "dataset", ("ready", "rejected"), ("ready", "rejected")),
    List("/deployments", "deployment", ("pending", "failed"), ("loading", "failed")),
    List("/sweeps", "sweep", ("running", "cancelled"), ("running", "cancelled")),
    List("/webhooks", "endpoint", ("failing", "disabled"), ("failing", "disabled")),
    List("/models", "version", ("dev", "archived"), ("dev", "archived")),
)


@pytest.fixture(params=LISTS, ids=lambda each: each.path[1:])
def listing(request: pytest.FixtureRequest) -> List:
    return request.param


@pytest.fixture
async def tenant(world: World) -> str:
    name = f"t-{mark()}"
    world.keys[name] = await new_key(world, name)
    return name


@pytest.fixture
async def person(world: World, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world, tenant) as client:
        yield client


async def ask(person: httpx.AsyncClient, listing: List, **params: Any) -> httpx.Response:
    return await person.get(listing.path, params=params, headers=HTML)


async def test_words_and_a_status_find_rows(world, tenant, person, listing):
    first = await listing.add(world, tenant, "support-train")
    second = await listing.add(world, tenant, "billing-train", is_other=True)
    for query, expected in (
        ("", {first, second}),
        ("SUPPORT", {first}),
        ("train billing", {second}),
        ("support billing", set()),
        (first[:-1], {first}),
        (f"status:{listing.words[0]}", {first}),
        (f"train status:{listing.words[1]}", {second}),
        (f"support status:{listing.words[1]}", set()),
    ):
        assert {*listing.rows(await ask(person, listing, q=query))} == expected, query


async def test_what_like_would_understand_is_searched_as_it_is(world, tenant, person, listing):
    exact = await listing.add(world, tenant, "100%_a")
    await listing.add(world, tenant, "100xxa")
    for query in ("100%_a", "%_", "0%"):
        assert listing.rows(await ask(person, listing, q=query)) == [exact], query
    for query in ("1%a", "\\", "%%"):
        assert listing.rows(await ask(person, listing, q=query)) == [], query


async def test_nothing_of_others_is_in_it(world, tenant, person, listing):
    other = f"t-{mark()}"
    await new_key(world, other)
    theirs, shared = (
        await listing.add(world, other, "support-theirs"),
        await listing.add(world, tenant, "shared"),
    )
    for query in ("support", theirs, f"status:{listing.words[0]} theirs"):
        assert listing.rows(await ask(person, listing, q=query)) == []
    assert listing.rows(await ask(person, listing)) == [shared]
    refused = {"/deployments": 200, "/models": 404}.get(listing.path, 400)
    assert (await ask(person, listing, q="support", after=theirs)).status_code == refused


async def test_an_empty_result_says_what_was_searched_and_how_to_drop_it(world, tenant, person, listing):
    await listing.add(world, tenant, "support")
    answer = await ask(person, listing, q=HOSTILE)
    assert f"No {listing.kind} fits {HOSTILE} . Clear the search" in words_of(answer)
    assert f'<a href="{listing.path}">Clear the search</a>' in answer.text
    assert "<script>alert" not in answer.text
    assert 'role="search"' in answer.text
    assert re.search(rf'<form[^>]* action="{listing.path}" method="get"', answer.text), (
        "it works without scripts"
    )


async def test_a_term_that_it_does_not_have_is_refused(person, listing):
    for term in ("status:nowhere", "cost>5", "base:qwen"):
        answer = await ask(person, listing, q=f"support {term}")
        assert answer.status_code == 400
        assert f"search: found '{term}', expected words or status: with one of" in words_of(answer)
        stream = await person.get(f"{listing.path}/stream", params={"q": term})
        assert stream.status_code == 400, "before it begins"
    typed = await person.get(listing.path, params={"q": "status:no"}, headers=HTML | {"hx-request": "true"})
    assert (typed.status_code, 'class="notice bad"' in typed.text) == (400, True)


async def test_pages_of_a_search_have_each_row_once(world, tenant, person, listing):
    expected = {await listing.add(world, tenant, f"support-{number:03}") for number in range(53)}
    for number in range(3):
        await listing.add(world, tenant, f"billing-{number}")
        await listing.add(world, tenant, f"support-other-{number}", is_other=True)
    path, seen, pages = f"{listing.path}?q=support+status:{listing.words[0]}", [], 0
    while path:
        answer = await person.get(path)
        seen += listing.rows(answer)
        assert f'value="support status:{listing.words[0]}"' in answer.text
        following = re.search(r'href="([^"]+)" rel="next"', answer.text)
        path, pages = unescape(following[1]) if following else "", pages + 1
    assert (len(seen), {*seen}, pages) == (53, expected, 2)


async def test_its_stream_keeps_the_search(world, tenant, person, listing):
    await listing.add(world, tenant, "support-1")
    answer = await ask(person, listing, q="support")
    stream = unescape(re.search(r'id="list" data-stream="([^"]+)"', answer.text)[1])
    assert "q=support" in stream
    async with person.stream("GET", stream) as events:
        lines = events.aiter_lines()
        await heard(lines, "ready")
        await listing.add(world, tenant, "billing-2")
        await listing.add(world, tenant, "support-3")
        _, _, part = await heard(lines, "part")
        while "support-3" not in json.dumps(part):
            _, _, part = await heard(lines, "part")
    assert part["id"] == "list"
    assert "billing-2" not in part["html"]


async def test_a_version_is_found_where_it_is_deployed_under_another_name(world, tenant, person):
    version = await world.a_version(tenant)
    await world.db.execute(ADD_ROUTE, tenant, "docs", version.model_id, "ready")
    [_, deployments, *_] = LISTS
    for query in (version.full_name, version.model_id, "docs status:ready"):
        assert deployments.rows(await ask(person, deployments, q=query)) == ["docs"], query


async def test_an_endpoint_is_found_by_its_whole_url_and_one_that_fails_is_enabled(world, tenant, person):
    [*_, webhooks, _] = LISTS
    failing = await webhooks.add(world, tenant, "a")
    await webhooks.add(world, tenant, "b", is_other=True)
    for query in ("https://hooks.example.com/a", "status:enabled"):
        assert webhooks.rows(await ask(person, webhooks, q=query)) == [failing], query


async def test_a_search_of_sweeps_takes_a_part_of_the_base_model(world, tenant, person):
    [_, _, sweeps, *_] = LISTS
    sweep = await sweeps.add(world, tenant, "rates")
    assert sweeps.rows(await ask(person, sweeps, q=world.base_name[:-1])) == [sweep]


class TestNamesOfDatasets:
    async def test_are_those_of_their_training_files(self, world, tenant, person):
        [datasets, *_] = LISTS
        named = await datasets.add(world, tenant, f"{HOSTILE}.jsonl")
        answer = await ask(person, datasets)
        assert f"{HOSTILE}.jsonl {named}" in words_of(answer)
        assert "<script>alert" not in answer.text

    async def test_go_with_the_file_and_are_nobody_elses(self, world, tenant, person):
        [datasets, *_] = LISTS
        dataset = await datasets.add(world, tenant, "mine.jsonl")
        sha256 = "SELECT files[1] FROM dataset WHERE dataset_id = $1"
        await world.db.execute(
            ADD_FILE, mark(), "demo", await world.db.fetchval(sha256, dataset), "theirs.jsonl"
        )
        assert f"mine.jsonl {dataset}" in words_of(await ask(person, datasets))
        await world.db.execute("UPDATE file SET state = 'deleting' WHERE tenant = $1", tenant)
        words = words_of(await ask(person, datasets))
        assert dataset in words
        assert not {"mine.jsonl", "theirs.jsonl"} & {*words.split()}
        assert datasets.rows(await ask(person, datasets, q="mine")) == []

    async def test_are_known_before_and_after_its_rows_are(self, world, tenant, person):
        """The request names the file at first, then the fact that answers it."""
        [datasets, *_] = LISTS
        dataset = await datasets.add(world, tenant, "first.jsonl")
        number = mark()
        await world.db.execute(ADD_FILE, number, tenant, a_sha(number), "second.jsonl")
        detail = """UPDATE dataset SET detail = jsonb_build_object('files', jsonb_build_object('training', $2::text))
                     WHERE dataset_id = $1"""
        await world.db.execute(detail, dataset, a_sha(number))
        assert f"second.jsonl {dataset}" in words_of(await ask(person, datasets, q="second"))
