"""The operator's pages: who may see them, what they decide, and what is shown once."""

import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest

from schemas.access import KafkaUserReady
from schemas.node import FailureKind, MachineCordoned, MachineUncordoned
from services.gateway.access import key_digest
from tests.integration.gateway.pages import (
    HOSTILE,
    HTML,
    a_failure,
    a_pool,
    csrf_in,
    heard,
    logged_in,
    logged_in_as_operator,
    with_failures,
    words_of,
)
from tests.integration.gateway.world import World, mark, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

KEY = re.compile(r"sk-retune-[A-Za-z0-9_-]{20,}")


@pytest.fixture(scope="module")
async def operator(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in_as_operator(world) as client:
        yield client


@pytest.fixture
async def tenant(world: World) -> str:
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    return tenant


async def press(operator: httpx.AsyncClient, path: str, **form: Any) -> httpx.Response:
    return await operator.post(path, data={"csrf": csrf_in((await operator.get("/admin")).text)} | form)


async def is_known(world: World, key: str) -> bool:
    answer = await world.http.get("/v1/quotas", headers={"authorization": f"Bearer {key}"})
    return answer.status_code == 200


class TestRights:
    @pytest.mark.parametrize(
        "path",
        [
            *("/admin", "/admin/tenants/demo", "/admin/machines", "/admin/subscribers", "/admin/audit"),
            *("/admin/costs", "/admin/costs.csv", "/admin/costs/stream"),
        ],
    )
    async def test_a_tenants_key_opens_nothing(self, world, path):
        async with logged_in(world) as client:
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={path}")
            form = await client.get(answer.headers["location"])
            assert "it needs the operator's key, and no tenant's key opens it" in words_of(form)
            again = await client.post("/login", data={"key": world.keys["demo"], "next": path})
            assert (await client.get(again.headers["location"])).status_code == 303
            assert "/admin" not in (await client.get("/")).text, "what nobody may is not offered"

    async def test_the_operators_cookie_opens_no_tenants_page(self, operator):
        token = operator.cookies["retune_operator"]
        for name in ("retune_operator", "retune_session"):
            answer = await operator.get("/jobs", headers={"cookie": f"{name}={token}"})
            assert answer.status_code == 303

    async def test_the_cookie_is_sent_to_its_pages_alone_and_ends_with_the_log_out(self, world):
        async with logged_in_as_operator(world) as client:
            [cookie] = [each for each in client.cookies.jar if each.name == "retune_operator"]
            assert (cookie.path, cookie.has_nonstandard_attr("HttpOnly")) == ("/admin", True)
            page = await client.get("/admin")
            assert page.status_code == 200
            token = cookie.value
            await client.post("/admin/logout", data={"csrf": csrf_in(page.text)})
            answer = await client.get("/admin", headers={"cookie": f"retune_operator={token}"})
            assert answer.status_code == 303

    async def test_a_session_of_another_operators_key_is_over(self, world):
        async with logged_in_as_operator(world) as client:
            digest = key_digest(client.cookies["retune_operator"])
            changed = "UPDATE page_session SET key_id = 'operator-before' WHERE sha256 = $1"
            assert await world.db.execute(changed, digest) == "UPDATE 1"
            assert (await client.get("/admin")).status_code == 303

    @pytest.mark.parametrize("form", [{}, {"csrf": "0" * 64}])
    async def test_a_form_of_others_is_refused(self, world, form):
        async with logged_in_as_operator(world) as client:
            for path in ("/admin", "/admin/tenants/demo/keys", "/admin/subscribers", "/admin/users/x/remove"):
                assert (await client.post(path, data=form)).status_code == 403
            csrf = csrf_in((await client.get("/admin")).text)
            foreign = await client.post(
                "/admin/tenants/demo/keys", data={"csrf": csrf}, headers={"sec-fetch-site": "cross-site"}
            )
            assert foreign.status_code == 403


class TestMachines:
    async def test_are_shown_with_who_holds_them_and_why_they_take_no_work(self, world, operator):
        pool = f"pool-{mark()}"
        job = await world.a_running_job()
        await world.provision(job, pool=pool)
        fact = a_pool(pool, 3)
        why = MachineCordoned(pool=pool, machine="2", source="operator", reason=HOSTILE)
        await world.voices.say("provisioner", fact.model_copy(update={"cordoned": ("2",)}), why)
        known = "SELECT EXISTS (SELECT FROM cordon WHERE pool = $1)"
        await until(lambda: world.db.fetchval(known, pool), "the cordon")
        held = "SELECT EXISTS (SELECT FROM job_event WHERE job_id = $1 AND data ->> 'pool' = $2)"
        await until(lambda: world.db.fetchval(held, job, pool), "the nodes")
        page = await operator.get("/admin/machines")
        # Its reason and the command twice: a phone has them below the machine's name.
        command = f"retune nodes uncordon {pool} 2 copy command"
        assert (
            f"cordoned 2 0 – {HOSTILE} {command} – {HOSTILE} by an operator, just now {command}"
            in words_of(page)
        )
        assert "<script>alert" not in page.text
        assert "of demo, attempt 1" in words_of(page)
        assert job in words_of(page)
        async with operator.stream("GET", "/admin/machines/stream") as events:
            lines = events.aiter_lines()
            await heard(lines, "part")
            await world.voices.say("provisioner", MachineUncordoned(pool=pool, machine="2"), fact)
            while f"uncordon {pool}" in (part := (await heard(lines, "part"))[2])["html"]:
                pass
            assert part["id"] == "machines"
            failed = with_failures(fact, a_failure("0", job, kind=FailureKind.TRAINING_FAILED))
            await world.voices.say("provisioner", failed)
            while "Xid 79" not in (part := (await heard(lines, "part"))[2])["html"]:
                pass
            assert "<script>alert" not in part["html"]
        page = await operator.get("/admin/machines")
        assert (
            "free 0 0 – 1 failure: counting 1 from 1 job; cordoned at 3 from 2 jobs 1 counting 1 from 1 job"
            in words_of(page)
        )
        assert f"0 devices 0, 1 training failed {job} attempt 1: Xid 79 on 0: {HOSTILE}" in words_of(page)
        key = world.stack.operator_env()["RETUNE_ADMIN_KEY"]
        answer = await world.http.get("/v1/admin/pools", headers={"authorization": f"Bearer {key}"})
        (listed,) = (each["failures"] for each in answer.json()["data"] if each["pool"] == pool)
        assert [(each["machine"], each["kind"]) for each in listed] == [("0", "training_failed")]


class TestTenants:
    async def test_are_made_with_a_key_that_is_shown_once(self, world, operator):
        name = f"t-{mark()}"
        answer = await press(operator, "/admin", name=name, tier="premium")
        assert answer.status_code == 200, words_of(answer)
        (key,) = {*KEY.findall(answer.text)}
        assert f"The login to Kafka of tenant-{name} , whose password is shown only now" in words_of(answer)
        assert await is_known(world, key)
        page = await operator.get(f"/admin/tenants/{name}")
        assert KEY.search(page.text) is None
        assert f"{name} premium 1" in words_of(await operator.get(f"/admin?after={name[:-1]}"))
        again = await press(operator, "/admin", name=name)
        assert (again.status_code, KEY.search(again.text)) == (400, None)
        assert f"there is a tenant '{name}': its page adds keys" in words_of(again)

    async def test_that_are_refused_keep_what_was_typed(self, operator):
        answer = await press(operator, "/admin", name=HOSTILE)
        assert answer.status_code == 400
        assert "<script>alert" not in answer.text
        assert f'value="{HOSTILE}"' in unescape(answer.text)
        assert 'aria-invalid="true"' in answer.text

    async def test_have_keys_that_are_added_and_revoked_one_by_one(self, world, operator, tenant):
        (added,) = {*KEY.findall((await press(operator, f"/admin/tenants/{tenant}/keys")).text)}
        assert await is_known(world, added)
        ids = re.findall(
            r'<code class="id">(key-[0-9a-f]+)</code></td>',
            (await operator.get(f"/admin/tenants/{tenant}")).text,
        )
        assert len(ids) == 2
        path = f"/admin/tenants/{tenant}/keys/{ids[0]}/revoke"
        assert (await press(operator, path, typed=ids[1])).status_code == 400
        assert await is_known(world, added)
        assert (await press(operator, path, typed=ids[0])).status_code == 303
        assert (await is_known(world, added), await is_known(world, world.keys[tenant])) == (False, True)
        words = words_of(await operator.get(f"/admin/tenants/{tenant}"))
        assert words.index("revoked") < words.index("active")
        other = await press(operator, f"/admin/tenants/demo/keys/{ids[1]}/revoke", typed=ids[1])
        assert (other.status_code, await is_known(world, world.keys[tenant])) == (404, True)
        assert (await press(operator, "/admin/tenants/nobody/keys")).status_code == 404

    async def test_have_quotas_that_are_decided(self, world, operator, tenant):
        path = f"/admin/tenants/{tenant}"
        assert (await press(operator, f"{path}/quotas", open_jobs="5", streams="none")).status_code == 303
        shown = (await world.ask("GET", "/quotas", tenant=tenant)).json()
        assert (shown["decided"], shown["limits"]["open_jobs"]) == ({"open_jobs": 5, "streams": None}, 5)
        page = await operator.get(path)
        assert 'name="open_jobs" value="5"' in page.text
        assert "0 of 5 now." in words_of(page)
        refused = await press(operator, f"{path}/quotas", open_jobs=HOSTILE)
        assert refused.status_code == 400
        assert "open_jobs: Input should be a valid integer" in words_of(refused)
        assert f'name="open_jobs" value="{HOSTILE}"' in unescape(refused.text)
        assert "<script>alert" not in refused.text
        assert (await press(operator, f"{path}/quotas")).status_code == 303
        assert (await world.ask("GET", "/quotas", tenant=tenant)).json()["decided"] == {}


class TestKafka:
    async def test_logins_of_a_tenant_have_their_topics(self, world, operator):
        user, path = f"tenant-other.{mark()}", "/admin/tenants/other"
        ready = KafkaUserReady(
            user=user, tenant="other", reads=("tenant.other.events",), writes=("tenant.other.commands",),
            group_prefix=f"{user}.",
        )  # fmt: skip
        await world.voices.say("accounts", ready)

        async def is_shown() -> bool:
            words = words_of(await operator.get(path))
            return f"{user} tenant.other.events tenant.other.commands {user}." in words

        await until(is_shown, "the login on the page")
        assert user not in (await operator.get("/admin/subscribers")).text
        rotated = await press(operator, f"/admin/users/{user}/rotate", of_tenant="other")
        assert f"The login to Kafka of {user} , whose password is shown only now" in words_of(rotated)
        assert "It works once accounts has answered" in words_of(rotated)
        remove = f"/admin/users/{user}/remove"
        assert (await press(operator, remove, typed="other", of_tenant="other")).status_code == 400
        removed = await press(operator, remove, typed=user, of_tenant="other")
        assert removed.headers["location"] == path
        added = await press(operator, f"{path}/users", user="ci")
        assert "The login to Kafka of tenant-other.ci" in words_of(added)
        refused = await press(operator, f"{path}/users", user=HOSTILE)
        assert (refused.status_code, "<script>alert" in refused.text) == (400, False)

    async def test_subscribers_are_made(self, operator):
        name = f"s-{mark()}"
        answer = await press(
            operator, "/admin/subscribers", name=name, topics=["job.events"], of_tenants="demo, other"
        )
        assert answer.status_code == 200, words_of(answer)
        assert f"subscriber-{name} , whose password is shown only now" in words_of(answer)
        absent = await press(operator, "/admin/subscribers", name=name, of_tenants="nobody")
        assert "tenant 'nobody' does not exist" in words_of(absent)
        refused = await press(operator, "/admin/subscribers", name="", topics=["job.events"])
        assert refused.status_code == 400
        assert re.search(r'value="job.events" checked', refused.text)


async def test_the_audit_says_its_command(operator):
    assert "retune audit verify" in words_of(await operator.get("/admin/audit"))


async def test_programs_list_tenants_and_keys(world, tenant):
    headers = {"authorization": f"Bearer {world.stack.operator_env()['RETUNE_ADMIN_KEY']}"}
    listed = (await world.http.get(f"/v1/admin/tenants?after={tenant[:-1]}&limit=1", headers=headers)).json()
    assert [(each["id"], each["active_keys"]) for each in listed["data"]] == [(tenant, 1)]
    path = f"/v1/admin/tenants/{tenant}/keys"
    [key] = (await world.http.get(path, headers=headers)).json()["data"]
    assert (key["prefix"], key["revoked_at"]) == (world.keys[tenant][:14], None)
    for _ in range(2):
        revoked = (await world.http.post(f"{path}/{key['id']}/revoke", headers=headers)).json()
        assert revoked["revoked_at"] is not None
    assert not await is_known(world, world.keys[tenant])
    assert (await world.http.get("/v1/admin/tenants/nobody/keys", headers=headers)).status_code == 404
    own = await world.http.get(path, headers={"authorization": f"Bearer {world.keys['demo']}"} | HTML)
    assert own.status_code == 401
