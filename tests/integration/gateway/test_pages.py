"""Lists of models, deployments and logins that are longer than a page."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from openai.pagination import AsyncCursorPage
from openai.types import Model

from tests.integration.gateway.world import World, mark, new_key

pytestmark = pytest.mark.stack


async def walked(ask: Callable[[dict[str, Any]], Awaitable[httpx.Response]], **params: Any) -> list[Any]:
    """Every item of a list, by the `last_id` of each page."""
    items: list[Any] = []
    while True:
        page = (await ask(params)).json()
        items += page["data"]
        assert len(page["data"]) <= params["limit"]
        if not page["has_more"]:
            return items
        params["after"] = page["last_id"]


class TestModelsAndDeployments:
    """Of a tenant that has more than a page of each; two of its versions have the same weights, so one name."""

    COUNT = 1_005

    @pytest.fixture(scope="class")
    @classmethod
    async def tenant(cls, world: World) -> str:
        tenant = f"t-{mark()}"
        world.keys[tenant] = await new_key(world, tenant)
        await world.db.execute(
            """INSERT INTO model (model_id, tenant, full_name, digest, job_id, base_model, base_sha, dataset_version,
                                  stage, detail, created_at)
               SELECT $1 || '-' || n, $1, 'ft:' || $1 || ':' || CASE WHEN n = 3 THEN 2 ELSE n END, 'd', 'ftjob-' || n,
                      $2, $3, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, 'dev', '{}',
                      now() - n / 10 * interval '1 minute'
                 FROM generate_series(1, $4) AS n""",
            tenant, world.base_name, world.base_sha, cls.COUNT,
        )  # fmt: skip
        await world.db.execute(
            """INSERT INTO route (tenant, slot, generation, model_id, digest, state, reason, served_name, replicas,
                                  updated_at)
               SELECT tenant, model_id, 1, model_id, 'd', 'ready', '', '', '[]', now() FROM model WHERE tenant = $1""",
            tenant,
        )  # fmt: skip
        return tenant

    async def versions(self, world: World, tenant: str) -> list[str]:
        query = "SELECT model_id FROM model WHERE tenant = $1 ORDER BY created_at DESC, model_id DESC"
        return [row["model_id"] for row in await world.db.fetch(query, tenant)]

    @pytest.mark.parametrize("limit", [100, 1_000])
    async def test_follow_one_another_base_models_first(self, world, tenant, limit):
        listed = await walked(
            lambda params: world.ask("GET", "/models", tenant=tenant, params=params), limit=limit
        )
        kinds = [model["retune"]["kind"] for model in listed]
        bases = [model["id"] for model in listed if model["retune"]["kind"] == "base"]
        assert kinds == sorted(kinds)
        assert world.base_name in bases == sorted(bases)
        tuned = [model["retune"]["model_id"] for model in listed[len(bases) :]]
        assert tuned == await self.versions(world, tenant)

    async def test_pages_of_one_cross_from_base_models_to_versions(self, world, tenant):
        last = (await world.ask("GET", "/models", tenant=tenant, params={"type": "base"})).json()["last_id"]
        page = await world.ask("GET", "/models", tenant=tenant, params={"after": last, "limit": 1})
        newest = (await self.versions(world, tenant))[0]
        assert (page.json()["last_id"], page.json()["has_more"]) == (newest, True)

    async def test_have_a_large_page_where_nobody_asks_for_another(self, world, tenant):
        """OpenAI's client reads one page of models, and takes it for all."""
        page = (await world.ask("GET", "/models", tenant=tenant)).json()
        assert (len(page["data"]), page["has_more"]) == (1_000, True)
        async with world.client(tenant) as client:
            assert len([model async for model in client.models.list()]) == 1_000
            bases = [model.id async for model in client.models.list(extra_query={"type": "base"})]
        assert world.base_name in bases
        slots = (await world.ask("GET", "/deployments", tenant=tenant)).json()
        assert (len(slots["data"]), slots["has_more"]) == (1_000, True)

    async def test_are_followed_by_the_official_client_s_pages(self, world, tenant):
        """By the id of a page's last item, which is a name."""
        async with world.client(tenant) as client:
            query = {"type": "fine-tuned", "limit": 400, "dataset_version": "odd"}
            models = client.get_api_list(
                "/models", model=Model, page=AsyncCursorPage[Model], options={"params": query}
            )
            listed = [model.id async for model in models]
        assert len(listed) == len(set(listed)) == (self.COUNT + 1) // 2

    async def test_do_not_begin_behind_a_name_of_several_versions(self, world, tenant):
        answer = await world.ask("GET", f"/models?after=ft:{tenant}:2", tenant=tenant)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
        begun = await world.ask("GET", f"/models?after={tenant}-3&limit=1", tenant=tenant)
        versions = await self.versions(world, tenant)
        assert begun.json()["last_id"] == versions[versions.index(f"{tenant}-3") + 1]

    async def test_of_deployments_follow_by_slot(self, world, tenant):
        listed = await walked(
            lambda params: world.ask("GET", "/deployments", tenant=tenant, params=params), limit=300
        )
        assert [each["slot"] for each in listed] == sorted(await self.versions(world, tenant))

    async def test_of_kafka_users_follow_by_name(self, world, tenant):
        await world.db.execute(
            """INSERT INTO kafka_user (name, tenant, reads, writes, group_prefix, changed_at)
               SELECT $1 || '-' || n, $1, '{}', '{}', 'g', now() FROM generate_series(1, 7) AS n""",
            tenant,
        )
        admin = {"authorization": f"Bearer {world.stack.operator_env()['RETUNE_ADMIN_KEY']}"}

        async def ask(params: dict[str, Any]) -> httpx.Response:
            return await world.http.get("/v1/admin/kafka-users", headers=admin, params=params)

        names = [user["username"] for user in await walked(ask, limit=3)]
        assert names == sorted(names)
        assert len([name for name in names if name.startswith(tenant)]) == 7
