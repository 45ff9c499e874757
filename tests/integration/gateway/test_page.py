"""The page on the real gateway, as a browser asks for it: sessions, rights, forms, what is shown and how it is written."""

import asyncio
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest

from schemas.deployment import ReplicaAddress
from services.gateway import page
from services.gateway.page.sessions import COOKIE
from tests.integration.gateway.alerting import raise_alert
from tests.integration.gateway.owned_routes import a_ready_export
from tests.integration.gateway.pages import (
    HOSTILE,
    HTML,
    NUM_STEPS,
    Shown,
    add_attempts,
    add_many_jobs,
    add_steps,
    csrf_in,
    heard,
    logged_in,
    populate,
    words_of,
)
from tests.integration.gateway.world import World, digest_of, mark, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

OF_A_JOB = "/jobs/{running}"
PAGES = (
    *("/", "/jobs", OF_A_JOB, f"{OF_A_JOB}/timeline", f"{OF_A_JOB}/logs", f"{OF_A_JOB}/checkpoints"),
    *(
        f"{OF_A_JOB}/settings",
        "/jobs/{queued}",
        "/jobs/{failed}",
        "/jobs/{gated}",
        f"{OF_A_JOB}/cost",
        f"{OF_A_JOB}/events",
        "/models/{version}/gate",
    ),
    *(
        "/models",
        "/models/{version}",
        "/models/{version}/exports",
        "/deployments",
        "/deployments/{slot}/history",
        "/alerts",
        "/jobs/new",
        "/jobs/new?from={running}",
        "/datasets",
        "/datasets/{dataset}",
    ),
    *("/sweeps", "/sweeps/{sweep}", "/costs", "/webhooks", "/webhooks/{webhook}"),
)
MAX_FIRST_LOAD_BYTES = 150_000


@pytest.fixture(scope="module")
async def shown(world: World) -> Shown:
    return await populate(world)


@pytest.fixture(scope="module")
async def person(world: World, shown: Shown) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world) as client:
        yield client


def address(template: str, shown: Shown) -> str:
    return template.format(**vars(shown), version=shown.model.model_id, slot=shown.served.full_name)


class TestPages:
    @pytest.mark.parametrize("template", PAGES)
    async def test_have_headers_titles_and_no_markup_of_others(self, person, shown, template):
        answer = await person.get(address(template, shown))
        assert answer.status_code == 200, answer.text
        headers = answer.headers
        assert headers["content-type"].startswith("text/html")
        policy = headers["content-security-policy"].split("; ")
        assert {"default-src 'self'", "frame-ancestors 'none'", "form-action 'self'"} <= {*policy}
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert headers["referrer-policy"] == "same-origin"
        assert re.search(r"<title>.+ · retune</title>", answer.text)
        assert "<script>" not in answer.text
        assert re.findall(r"<script(?! (?:defer|type=.module.) src=)", answer.text) == []
        assert re.findall(r"\s(?:style|onclick|onload)=", answer.text) == []

    @pytest.mark.parametrize("template", ["/", "/jobs", "/datasets", "/deployments", "/webhooks", OF_A_JOB])
    async def test_load_little(self, person, shown, template):
        """All that a browser asks for before it shows the page, as it is sent."""
        answer = await person.get(address(template, shown))
        links = {*re.findall(r'(?:src|href)="(/static/[^"#]+)', answer.text)}
        size = len(answer.content)
        for link in links:
            async with person.stream("GET", link) as asset:
                assert asset.status_code == 200
                assert "immutable" in asset.headers["cache-control"]
                size += sum([len(part) async for part in asset.aiter_raw()])
        assert len(links) >= 3
        assert size <= MAX_FIRST_LOAD_BYTES

    async def test_of_the_queue_say_why_and_when(self, person, shown):
        for path in ("/", f"/jobs/{shown.queued}"):
            assert "number 2 in the queue, waits for 8 devices of pool a100-spot; starts in " in words_of(
                await person.get(path)
            )

    async def test_of_a_pool_say_what_services_lease_of_it(self, person, shown):
        words = words_of(await person.get("/"))
        assert (
            "1 of 4 nodes of 8 devices 29 of 32 devices free 1 drained: not counted, since they take no work"
            " leased: 2 held by serving, 1 kept for scoring"
        ) in words

    async def test_of_a_job_show_its_numbers_with_units(self, person, shown):
        answer = await person.get(f"/jobs/{shown.running}")
        assert f'step={NUM_STEPS}"' in answer.text, "the stream begins after what the page draws"
        words = words_of(answer)
        assert "training: 2,000 of 3,000 steps" in words
        assert "$3.12" in words
        assert "tokens/s" in words
        assert "resumed at step 900, exact" in words
        assert "Pause" in words

    async def test_show_hostile_text_as_it_is(self, person, shown):
        answer = await person.get(f"/jobs/{shown.failed}")
        assert f"oom: out of memory at step 10: {HOSTILE}" in unescape(answer.text)
        assert "Continue from its newest checkpoint" in words_of(answer)

    async def test_of_deployments_say_where_they_are_resident(self, world, person):
        tenant = f"t-{mark()}"
        world.keys[tenant] = await new_key(world, tenant)
        resident, idle = await world.a_version(tenant), await world.a_version(tenant)
        replica = ReplicaAddress(replica_id=f"replica-{mark()}", incarnation="1", url="http://127.0.0.1:1")
        await world.voices.say("registry", world.approved(resident), world.approved(idle))
        async with logged_in(world, tenant) as client:
            assert "0 of 2 slots are resident" in words_of(await client.get("/deployments"))
            await world.voices.say("serving_controller", world.ready(resident, replica), world.ready(idle))
            await until(lambda: world.state_of(idle.full_name, "ready"), "the second deployment")
            await until(lambda: world.state_of(resident.full_name, "ready"), "the first deployment")
            words = words_of(await client.get("/deployments"))
        assert "1 of 2 slots are resident" in words
        assert len(re.findall(r" 1 (?:1 replica|none now) unknown ", words)) == 2

    async def test_of_a_gate_show_each_number_beside_its_base(self, person, shown):
        words = words_of(await person.get(address("/models/{version}/gate", shown)))
        assert "93.3 % refused, needs 95 %" in words
        assert "98.3 93.3" in words
        assert "-5.0 [-8.9, -1.1] at least 95.0" in words
        assert words.index("safety harm") < words.index("benchmark mmlu") < words.index("judge")
        assert "its newest evaluation has not passed" in words

    async def test_that_are_not_there_say_so_in_words(self, person):
        for path in ("/jobs/ftjob-nobody", "/models/mv-nobody/gate", "/nowhere"):
            answer = await person.get(path)
            assert (answer.status_code, "Not found" in answer.text) == (404, True)
            assert re.search(r"request\s+<code class=.id.>req-[0-9a-f]{16}</code>", answer.text)
        assert "Log out" in (await person.get("/jobs/ftjob-nobody")).text

    async def test_are_for_browsers_and_programs_get_what_they_got(self, world):
        answer = await world.http.get("/")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
        assert (await world.http.get("/jobs")).json()["error"]["code"] == "not_logged_in"


class TestSessions:
    async def test_are_a_cookie_that_no_script_and_no_other_site_has(self, world):
        for headers, is_secure in ((HTML, False), (HTML | {"x-forwarded-proto": "https"}, True)):
            data = {"key": world.keys["demo"], "next": "/jobs?q=x"}
            answer = await world.http.post("/login", data=data, headers=headers)
            assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?q=x")
            cookie = answer.headers["set-cookie"].lower()
            assert {"httponly", "samesite=strict", "path=/"} <= {*cookie.split("; ")}
            assert ("secure" in cookie) is is_secure
            token = answer.cookies[COOKIE]
            world.http.cookies.clear()
            assert world.keys["demo"] not in answer.headers["set-cookie"]
            kept = await world.db.fetchval(
                "SELECT key_id FROM page_session WHERE sha256 = $1", digest_of(token)
            )
            assert kept.startswith("key-")

    @pytest.mark.parametrize("key", ["", "sk-retune-nobody", "x" * 300])
    async def test_need_a_known_key(self, world, key):
        answer = await world.http.post("/login", data={"key": key}, headers=HTML)
        assert answer.status_code in (400, 401)
        assert "set-cookie" not in answer.headers

    @pytest.mark.parametrize("path", ["https://evil", "//evil", "/\\evil", "evil", "/a\nb"])
    async def test_lead_to_no_other_site(self, world, path):
        answer = await world.http.post("/login", data={"key": world.keys["demo"], "next": path}, headers=HTML)
        world.http.cookies.clear()
        assert answer.headers["location"] == "/"

    @pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/ftjob-1/timeline", "/models/x/gate"])
    async def test_that_are_none_are_asked_to_log_in(self, world, path):
        answer = await world.http.get(path, headers=HTML)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")
        part = await world.http.get("/jobs", headers=HTML | {"hx-request": "true"})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/login")

    async def test_end_with_their_key(self, world):
        tenant = f"t-{mark()}"
        world.keys[tenant] = await new_key(world, tenant)
        async with logged_in(world, tenant) as client:
            assert (await client.get("/jobs")).status_code == 200
            async with client.stream("GET", "/now/stream") as events:
                lines = events.aiter_lines()
                await heard(lines, "ready")
                admin = {"authorization": f"Bearer {world.stack.operator_env()['RETUNE_ADMIN_KEY']}"}
                await world.http.post(f"/v1/admin/tenants/{tenant}/keys/revoke", headers=admin)
                await heard(lines, "ended")
            assert (await client.get("/jobs")).headers["location"].startswith("/login")

    async def test_end_when_somebody_logs_out(self, world):
        async with logged_in(world) as client:
            token = client.cookies[COOKIE]
            page = await client.get("/jobs")
            assert (await client.post("/logout", data={"csrf": csrf_in(page.text)})).status_code == 303
            again = await client.get("/jobs", headers={"cookie": f"{COOKIE}={token}"})
        assert again.headers["location"].startswith("/login")


class TestForms:
    @pytest.mark.parametrize(
        ("csrf", "headers"),
        [
            ("", {}), ("0" * 64, {}), (None, {"origin": "https://evil.example"}), (None, {"origin": "null"}),
            (None, {"sec-fetch-site": "cross-site"}), (None, {"sec-fetch-site": "same-site"}),
        ],
    )  # fmt: skip
    async def test_of_others_do_nothing(self, world, person, shown, csrf, headers):
        own = csrf_in((await person.get("/jobs")).text)
        form = {"csrf": own if csrf is None else csrf}
        for path in (f"/jobs/{shown.running}/pause", f"/models/{shown.model.model_id}/approve", "/logout"):
            answer = await person.post(path, data=form, headers=headers)
            assert answer.status_code == 403, path
        assert "PauseJob" not in world.ear.types(shown.running)
        assert (await person.get("/jobs")).status_code == 200

    async def test_of_another_site_log_nobody_in(self, world):
        headers = HTML | {"sec-fetch-site": "cross-site"}
        answer = await world.http.post("/login", data={"key": world.keys["demo"]}, headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)

    async def test_send_what_programs_send(self, world, person, shown):
        form = {"csrf": csrf_in((await person.get(f"/jobs/{shown.running}")).text)}
        answer = await person.post(f"/jobs/{shown.running}/pause", data=form, headers={"hx-request": "true"})
        assert (answer.status_code, "Pause asked" in answer.text) == (200, True)
        assert (await world.heard(shown.running, "PauseJob")).message.tenant == "demo"

    async def test_to_remove_a_slot_have_its_name(self, world, person, shown):
        form = {"csrf": csrf_in((await person.get("/deployments")).text)}
        slot = shown.served.full_name
        answer = await person.post(f"/deployments/{slot}/remove", data=form | {"name": "x"})
        assert (answer.status_code, "name: found" in answer.text) == (400, True)
        assert "UndeployModel" not in world.ear.types(slot)
        asking = asyncio.create_task(person.post(f"/deployments/{slot}/remove", data=form | {"name": slot}))
        assert (await world.heard(slot, "UndeployModel")).message.tenant == "demo"
        await asking

    async def test_to_deploy_send_what_programs_send(self, world, person, shown):
        words = words_of(await person.get(f"/models/{shown.served.model_id}"))
        assert f"job {shown.served.job_id}" in words
        form = {"csrf": csrf_in((await person.get("/deployments")).text)}
        asking = asyncio.create_task(person.post(f"/models/{shown.served.model_id}/deploy", data=form))
        sent = await world.heard(shown.served.model_id, "DeployModel")
        assert (sent.message.model_id, sent.message.tenant) == (shown.served.model_id, "demo")
        assert (await asking).headers["location"] == "/deployments"

    async def test_to_deploy_name_the_slot(self, world, person, shown):
        version = await world.a_version()
        path = f"/models/{version.model_id}"
        form = {"csrf": csrf_in((await person.get("/models")).text), "slot": " librarian "}
        asking = asyncio.create_task(person.post(f"{path}/deploy", data=form))
        assert (await world.heard(version.model_id, "DeployModel")).message.slot == "librarian"
        await asking

    async def test_that_are_refused_say_why(self, world, person, shown):
        html = (await person.get(f"/jobs/{shown.failed}")).text
        form = {"csrf": csrf_in(html)}
        await world.db.execute("UPDATE checkpoint SET state = 'expired' WHERE job_id = $1", shown.failed)
        answer = await person.post(
            f"/jobs/{shown.failed}/continue", data=form, headers={"hx-request": "true"}
        )
        assert answer.status_code == 400
        assert "checkpoint" in words_of_part(answer)


async def newest_alert(world: World, job_id: str) -> str:
    return f"alert-{await world.db.fetchval('SELECT max(number) FROM alert WHERE job_id = $1', job_id)}"


def words_of_part(answer: httpx.Response) -> str:
    assert answer.text.startswith("<p")
    return re.sub(r"<[^>]*>", "", answer.text)


VALUES = {
    "tab": ["timeline", "settings", "cost", "events"],
    "action": ["pause", "cancel", "retry", "continue", "resume"],
}


class TestTenantsAreApart:
    def asked(self, ids: dict[str, str]) -> list[tuple[str, str]]:
        """Every route of a tenant's page about one thing, built from the routes themselves."""
        routes = [
            route
            for router in page.ROUTERS
            for route in router.routes
            if ("_id}" in route.path or "{slot" in route.path) and not route.path.startswith("/admin/")
        ]
        asked = []
        for route in routes:
            path = route.path.replace(":path", "").format(**ids, tab="{tab}", action="{action}")
            for name, values in VALUES.items():
                if f"{{{name}}}" in path:
                    asked += [(*route.methods, path.replace(f"{{{name}}}", value)) for value in values]
                    break
            else:
                asked.append((*route.methods, path))
        return asked

    async def test_what_is_anothers_looks_like_what_does_not_exist(self, world, shown):
        own = {"job_id": shown.running, "model_id": shown.model.model_id, "slot": shown.served.full_name}
        own |= {"dataset_id": shown.dataset, "sweep_id": shown.sweep}
        own |= {"checkpoint": f"ftckpt-{shown.running}-1-10"}
        await raise_alert(world, shown.running)
        own |= {"alert_id": await newest_alert(world, shown.running)}
        own |= {"endpoint_id": shown.webhook, "delivery_id": "whd_0000"}
        own |= {"export_id": await a_ready_export(world, shown.model), "path": "config.json"}
        absent = {name: f"{value[:-4]}zzzz" for name, value in own.items()}
        parameters = {"metric": "loss", "attempt": "1"}
        async with logged_in(world, "other") as client:
            form = {"csrf": csrf_in((await client.get("/jobs")).text)}
            pairs = [*zip(self.asked(own), self.asked(absent), strict=True)]
            assert len(pairs) >= 15
            for (method, path), (_, missing) in pairs:
                answers = []
                for each, ids in ((path, own), (missing, absent)):
                    options: dict[str, Any] = {"data": form} if method == "POST" else {"params": parameters}
                    answer = await client.request(method, each, **options)
                    text = re.sub(r"req-[0-9a-f]{16}", "", answer.text)
                    for name, value in ids.items():
                        text = text.replace(value, name)
                    answers.append((answer.status_code, text))
                assert answers[0] == answers[1], path
                assert answers[0][0] == 404, path

    async def test_lists_hold_ones_own_only(self, world, shown):
        async with logged_in(world, "other") as client:
            searched = ("/jobs", "/jobs?q=ftjob", f"/jobs?q={shown.running}")
            events = ("/events", f"/events?q={shown.running}", f"/events?subject={shown.failed}")
            lists = ("/models", "/deployments", "/alerts", "/sweeps", "/webhooks")
            for path in ("/", *searched, *lists, *events):
                answer = await client.get(path)
                assert answer.status_code == 200
                jobs = {shown.running, shown.queued, shown.failed, shown.gated}
                ids = {*jobs, shown.served.model_id, shown.webhook} - {path.rpartition("=")[2]}
                assert [each for each in ids if each in answer.text] == []

    async def test_a_page_continues_after_no_job_of_others(self, world, shown):
        async with logged_in(world, "other") as client:
            answer = await client.get(f"/jobs?after={shown.running}")
        assert (answer.status_code, "is not in this list" in answer.text) == (400, True)


class TestLists:
    COUNT = 120

    @pytest.fixture(scope="class")
    @classmethod
    async def client(cls, world: World) -> AsyncIterator[httpx.AsyncClient]:
        tenant = f"t-{mark()}"
        world.keys[tenant] = await new_key(world, tenant)
        async with logged_in(world, tenant) as client:
            assert "No jobs yet" in (await client.get("/jobs")).text
            assert "retune jobs submit" in (await client.get("/")).text
            await add_many_jobs(world, tenant, cls.COUNT)
            yield client

    async def names(self, client: httpx.AsyncClient, path: str) -> list[int]:
        """Numbers of the jobs of all pages."""
        seen: list[int] = []
        while path:
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text
            seen += map(int, re.findall(r'title="sweep-(\d+)"', answer.text))
            following = re.search(r'href="([^"]+)" rel="next"', answer.text)
            path = unescape(following[1]) if following else ""
        return seen

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", [*range(1, 121)]),
            ("sort=cost", [*range(120, 0, -1)]),
            ("sort=loss", [*range(120, 0, -1)]),
            ("sort=ended", [*range(1, 121)]),
            ("q=status:failed", [*range(7, 121, 7)]),
            ("q=base:qwen+status:cancelled", [22, 44, 66, 88, 110]),
            ("q=cost>1.15", [116, 117, 118, 119, 120]),
            ("q=ended<10min", [*range(1, 11)]),
            ("q=sweep-11+000118", [118]),
            ("q=sweep_1", []),
        ],
    )
    async def test_are_searched_sorted_and_paged_by_the_server(self, client, query, expected):
        assert await self.names(client, f"/jobs?{query}") == expected

    async def test_count_what_fits(self, client):
        words = words_of(await client.get("/jobs?q=status:failed+base:qwen"))
        assert "8 jobs that fit status:failed base:qwen clear" in words
        assert "all 60 active 0 paused 0 succeeded 47 failed 8 cancelled 5" in words

    async def test_are_sent_no_row_that_the_page_has(self, client):
        for query in ("", "?q=status:failed", "?sort=cost", "?q=nothing-like-it"):
            page = await client.get(f"/jobs{query}")
            stream = unescape(re.search(r'data-stream="([^"]+)"', page.text)[1])
            async with client.stream("GET", stream) as events:
                assert (await heard(events.aiter_lines(), "part", "newer", "ready"))[1] == "ready"

    async def test_lead_from_an_id_to_its_job(self, client, person, shown):
        path = f"/jobs?q={shown.running}"
        assert (await person.get(path)).headers["location"] == f"/jobs/{shown.running}"
        for kind, name in (
            ("datasets", shown.dataset),
            ("models", shown.model.model_id),
            ("sweeps", shown.sweep),
        ):
            assert (await person.get(f"/jobs?q={name}")).headers["location"] == f"/{kind}/{name}"
        typed = await person.get(path, headers={"hx-request": "true"})
        assert typed.headers["hx-redirect"] == f"/jobs/{shown.running}"

    async def test_say_what_a_search_may_be(self, client):
        answer = await client.get("/jobs?q=status:nowhere")
        assert answer.status_code == 400
        assert "search: found 'status:nowhere', expected one of active, paused" in unescape(answer.text)
        assert "No job fits" in (await client.get("/jobs?q=nothing-like-it")).text


class TestCurves:
    async def test_have_few_points_and_the_extremes_of_all(self, person, shown):
        drawn = (await person.get(f"/jobs/{shown.running}/curve?metric=loss&pixels=100&weight=0.6")).json()
        assert (drawn["every"], drawn["num_points"], drawn["steps"][-1]) == (32, NUM_STEPS, NUM_STEPS)
        assert len(drawn["steps"]) == len(drawn["smooth"]) <= 101
        whole = (await person.get(f"/jobs/{shown.running}/curve?metric=loss&pixels=4000")).json()
        assert (whole["every"], min(whole["last"])) == (1, min(drawn["low"]))

    async def test_are_over_time_or_tokens_by_the_same_buckets(self, world, person):
        job = await world.a_running_job()
        await add_steps(world, job, 1_500)
        await add_attempts(world, job, "demo")
        path = f"/jobs/{job}/curve?metric=loss&pixels=100"
        over = {name: (await person.get(f"{path}&x={name}")).json() for name in ("step", "time", "tokens")}
        steps = over["step"]["steps"]
        assert "x" not in over["step"]
        assert steps == over["time"]["steps"] == over["tokens"]["steps"]
        assert over["tokens"]["x"] == [8192 * step for step in steps]
        assert (over["time"]["x"][0], over["time"]["x"][-1]) == (3.0, 114 * 60.0)
        assert [steps[at - 1] for at in over["time"]["breaks"]] == [591, 895, 1199]
        window = (await person.get(f"{path}&x=time&first=601&last=604")).json()
        assert window["x"] == [41 * 60 + 4.6 * number for number in range(1, 5)]

    async def test_over_time_are_empty_once_their_steps_are_kept_no_more(self, world, person):
        job = await world.a_running_job()
        await world.db.execute("DELETE FROM step WHERE job_id = $1", job)
        for name in ("time", "tokens"):
            drawn = (await person.get(f"/jobs/{job}/curve?metric=valid_loss&x={name}")).json()
            assert (drawn["steps"], drawn["x"]) == ([10], []), "its checkpoint has the loss"

    async def test_of_validations_have_the_steps_that_were_validated(self, person, shown):
        drawn = (await person.get(f"/jobs/{shown.running}/curve?metric=valid_loss")).json()
        assert drawn["steps"] == [10, *range(200, NUM_STEPS + 1, 200)]

    async def test_take_no_other_number(self, person, shown):
        answer = await person.get(f"/jobs/{shown.running}/curve?metric=time")
        assert answer.status_code == 400


async def test_the_list_of_programs_is_what_it_was(world):
    """The page's search is of the page alone."""
    answer = await world.ask("GET", "/fine_tuning/jobs?q=x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
    await until(lambda: world.ask("GET", "/fine_tuning/jobs"), "the list")
