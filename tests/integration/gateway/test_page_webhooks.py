"""Webhooks on the page: endpoints, what became of their deliveries, and the buttons that do what the routes do."""

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.integration.gateway.pages import HOSTILE, csrf_in, heard, logged_in, words_of
from tests.integration.gateway.test_webhooks import RUNNING, owner, receiver, tenant
from tests.integration.gateway.world import World, mark, new_key
from tests.waiting import until

__all__ = ["owner", "receiver", "tenant"]

pytestmark = pytest.mark.stack

SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{20,}=*")


@pytest.fixture
async def person(world: World, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world, tenant) as client:
        yield client


async def press(
    person: httpx.AsyncClient, path: str, *, by_script: bool = True, **form: Any
) -> httpx.Response:
    data = {"csrf": csrf_in((await person.get("/webhooks")).text)} | form
    return await person.post(path, data=data, headers={"hx-request": "true"} if by_script else {})


def notice(answer: httpx.Response) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", answer.text).split())


async def test_nobody_has_an_endpoint_at_first(person):
    words = words_of(await person.get("/webhooks"))
    assert (
        "None yet. The form below makes one, or: retune webhooks create https://ci.example.com/hook" in words
    )


async def test_the_form_adds_an_endpoint_and_its_secret_is_shown_once(person, receiver, owner):
    form = {"name": HOSTILE, "url": receiver.url("/form"), "event_types": [RUNNING, "retune.gate.failed"]}
    added = await press(person, "/webhooks", by_script=False, **form)
    assert added.status_code == 200, added.text
    (secret,) = {*SECRET.findall(added.text)}
    endpoint_id = re.search(r"whe_[0-9a-f]+", added.text)[0]
    listed = await person.get("/webhooks")
    page = await person.get(f"/webhooks/{endpoint_id}")
    for answer in (listed, page):
        assert HOSTILE in words_of(answer)
        assert "<script>" not in answer.text
        assert SECRET.search(answer.text) is None
    assert "Nothing was sent yet. A test comes at once: retune webhooks test whe_" in words_of(page)
    await owner.run(f"ftjob-{mark()}", 1)
    (request,) = await receiver.until("/form", 1)
    assert request.unwrapped(secret).type == RUNNING


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"url": "https://10.1.2.3/hook"}, "expected an address of the public internet"),
        ({"name": ""}, "name: String should have at least 1 character"),
        ({"event_types": []}, "event_types:"),
        ({"event_types": ["nothing"]}, "expected one of"),
    ],
)
async def test_a_form_that_is_refused_keeps_what_was_typed(person, form, words):
    typed = {"name": "mine", "url": "https://hooks.example.com/x", "event_types": [RUNNING]} | form
    answer = await press(person, "/webhooks", by_script=False, **typed)
    assert answer.status_code == 400
    assert words in words_of(answer)
    assert f'value="{typed["url"]}"' in answer.text
    assert ("checked" in re.search(rf'value="{RUNNING}"[^>]*', answer.text)[0]) is (
        RUNNING in typed["event_types"]
    )


async def test_deliveries_say_what_was_answered_and_when_they_are_tried_again(person, owner):
    endpoint = await owner.endpoint("/failing", 500)
    job_id = f"ftjob-{mark()}"
    await owner.run(job_id, 1, 2)
    await owner.receiver.until("/failing", 2)

    async def words() -> str:
        return words_of(await person.get(f"/webhooks/{endpoint.id}"))

    async def has_failed() -> bool:
        return "failing nothing was taken since" in await words() and "status 500" in await words()

    await until(has_failed, "the failure on the page")
    shown = await words()
    assert f"retrying {RUNNING} {job_id}" in shown
    assert f"waiting {RUNNING} {job_id}" in shown
    assert "after an earlier one" in shown
    answer = await press(person, f"/webhooks/{endpoint.id}/disable")
    assert (answer.status_code, "what waits stays" in answer.text) == (200, True)
    assert "disabled switched off by its owner" in await words()
    assert "once it is enabled" in await words()
    owner.receiver.ways["/failing"] = [200]
    assert (await press(person, f"/webhooks/{endpoint.id}/enable")).status_code == 200
    await owner.until_delivered(endpoint, 2)
    assert "None is failed." in words_of(await person.get(f"/webhooks/{endpoint.id}?status=failed"))
    assert "enabled" in words_of(await person.get("/webhooks"))


async def test_an_endpoint_is_changed_and_keeps_its_secret(person, owner):
    endpoint = await owner.endpoint("/before", 200)
    form = {"name": f"new {HOSTILE}", "url": owner.receiver.url("/after"), "event_types": [RUNNING]}
    answer = await press(person, f"/webhooks/{endpoint.id}", by_script=False, **form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/webhooks/{endpoint.id}")
    changed = await owner.client.webhooks.retrieve(endpoint.id)
    assert (changed.name, changed.url, changed.event_types) == tuple(form.values())
    page = await person.get(f"/webhooks/{endpoint.id}")
    assert f'name="url" type="url" value="{form["url"]}"' in page.text
    assert "<script>" not in page.text
    await owner.run(f"ftjob-{mark()}", 1)
    (request,) = await owner.receiver.until("/after", 1)
    assert request.unwrapped(endpoint.signing_secret).type == RUNNING


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"url": "https://10.1.2.3/hook"}, "expected an address of the public internet"),
        ({"name": ""}, "name: String should have at least 1 character"),
        ({"event_types": ["nothing"]}, "expected one of"),
    ],
)
async def test_a_change_that_is_refused_changes_nothing_and_keeps_what_was_typed(person, owner, form, words):
    endpoint = await owner.endpoint("/same", 200)
    typed = {"name": "mine", "url": "https://hooks.example.com/x", "event_types": [RUNNING]} | form
    answer = await press(person, f"/webhooks/{endpoint.id}", by_script=False, **typed)
    assert answer.status_code == 400
    assert words in words_of(answer)
    assert f'value="{typed["url"]}"' in answer.text
    kept = await owner.client.webhooks.retrieve(endpoint.id)
    assert (kept.name, kept.url) == (endpoint.name, endpoint.url)
    other = f"t-{mark()}"
    owner.world.keys[other] = await new_key(owner.world, other)
    async with logged_in(owner.world, other) as client:
        csrf = csrf_in((await client.get("/webhooks")).text)
        foreign = await client.post(f"/webhooks/{endpoint.id}", data=typed | {"csrf": csrf})
        assert foreign.status_code == 404


async def test_a_page_of_deliveries_is_live(person, owner):
    endpoint = await owner.endpoint("/live")
    page = await person.get(f"/webhooks/{endpoint.id}")
    stream = re.search(r'data-stream="([^"]+)"', page.text)[1]
    async with person.stream("GET", stream) as events:
        lines = events.aiter_lines()
        await heard(lines, "ready")
        await owner.run(f"ftjob-{mark()}", 1)
        while True:
            _, _, part = await heard(lines, "part")
            if "delivered</span>" in part["html"]:
                break
    assert part["id"] == "webhook"


async def test_a_test_says_what_was_answered(person, owner):
    endpoint = await owner.endpoint("/test", 204, 500)
    path = f"/webhooks/{endpoint.id}/test"
    good = await press(person, path, event_type=RUNNING)
    assert notice(good) == f"{endpoint.url} answered 204 to {RUNNING}."
    assert f"delivered {RUNNING}" in words_of(await person.get("/webhooks"))
    bad = await press(person, path)
    assert notice(bad) == f"{endpoint.url} answered 500 to ping. Expected 200 to 299."
    assert "notice bad" in bad.text
    assert "failed ping" in words_of(await person.get("/webhooks")), "the last one is shown"
    await owner.receiver.stop()
    none = await press(person, path)
    assert (none.status_code, "refused" in none.text) == (400, True)
    unknown = await press(person, path, event_type="nothing")
    assert (unknown.status_code, "expected one of" in unknown.text) == (400, True)
    await owner.receiver.start()


async def test_an_event_is_sent_again_from_its_row(person, owner):
    endpoint = await owner.endpoint("/again")
    await owner.run(f"ftjob-{mark()}", 1)
    (delivery,) = await owner.until_delivered(endpoint, 1)
    page = await person.get(f"/webhooks/{endpoint.id}")
    path = f"/webhooks/{endpoint.id}/deliveries/{delivery['id']}/replay"
    assert f'action="{path}"' in page.text
    assert delivery["event_id"] in (await press(person, path)).text
    first, second = await owner.receiver.until("/again", 2)
    assert first.id == second.id


async def test_a_secret_is_rotated_and_an_endpoint_deleted_by_its_name(person, owner):
    endpoint = await owner.endpoint("/rotate")
    rotated = await press(person, f"/webhooks/{endpoint.id}/rotate", keeps_old="true")
    (secret,) = {*SECRET.findall(rotated.text)}
    await press(person, f"/webhooks/{endpoint.id}/test")
    (request,) = await owner.receiver.until("/rotate", 1)
    assert request.unwrapped(secret)
    assert request.unwrapped(endpoint.signing_secret), "for 24 hours"
    page = await person.get(f"/webhooks/{endpoint.id}")
    assert "and the one before it until" in words_of(page)
    assert secret not in page.text
    other = await press(person, f"/webhooks/{endpoint.id}/rotate", by_script=False)
    assert {*SECRET.findall(other.text)} - {secret}
    path = f"/webhooks/{endpoint.id}/delete"
    refused = await press(person, path, name="another")
    assert (refused.status_code, "expected" in refused.text) == (400, True)
    assert (await press(person, path, name="ours")).headers["hx-redirect"] == "/webhooks"
    assert (await person.get(f"/webhooks/{endpoint.id}")).status_code == 404


async def test_a_command_needs_the_token_of_the_session(person, owner):
    endpoint = await owner.endpoint("/csrf")
    for action in ("test", "disable", "rotate", "delete"):
        answer = await person.post(f"/webhooks/{endpoint.id}/{action}", data={"csrf": "x", "name": "ours"})
        assert answer.status_code == 403
    assert (await owner.state_of(endpoint))["status"] == "enabled"


async def test_a_list_and_a_log_continue_page_by_page(world, person, owner):
    endpoint = await owner.endpoint("/pages")
    await world.db.execute(
        """INSERT INTO webhook_delivery (delivery_id, endpoint_id, event_id, event_type, subject, body, state, created_at)
           SELECT 'whd_' || $1 || n, $1, 'evt_' || n, 'ping', 'subject-' || n, '{}', 'delivered', now()
             FROM generate_series(1, 30) AS n""",
        endpoint.id,
    )  # fmt: skip
    first = await person.get(f"/webhooks/{endpoint.id}")
    following = re.search(r'href="(\?[^"]+)" rel="next"', first.text)[1].replace("&amp;", "&")
    second = await person.get(f"/webhooks/{endpoint.id}{following}")
    seen = [
        *re.findall(r'title="subject-(\d+)"', first.text),
        *re.findall(r'title="subject-(\d+)"', second.text),
    ]
    assert [*map(int, seen)] == [*range(30, 0, -1)]
    assert "data-stream" not in second.text
    chosen = await person.get(f"/webhooks/{endpoint.id}?status=delivered")
    assert 'href="?status=delivered&amp;after=' in chosen.text
    for path in (f"/webhooks/{endpoint.id}?after=whd_nobody", "/webhooks?after=whe_nobody"):
        assert (await person.get(path)).status_code == 400
