"""What the serving controller reads of all that was ever deployed, and in which order it loads what is wanted."""

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.serving_controller import store
from services.serving_controller.clients.files import ModelFiles
from services.serving_controller.model import Servable
from shared.errors import StorageUnavailable
from tests.integration import test_serving_controller as serving
from tests.integration.test_serving_controller import controller
from tests.waiting import until

pytestmark = [pytest.mark.stack]

objects, voice, listening, world = serving.objects, serving.voice, serving.listening, serving.world


class Reads:
    """How often the controller asked its store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = Counter[str]()
        for name in ("load_view", "servables_of_replica_set", "slots_serving", "replicas"):
            monkeypatch.setattr(store, name, self._counting(name, getattr(store, name)))

    def _counting(self, name: str, ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any) -> Any:
            self.counts[name] += 1
            return await ask(*args)

        return counted

    async def during_looks(self, number: int) -> Counter[str]:
        """Of that many looks, what was asked besides."""
        self.counts.clear()

        async def looked() -> bool:
            return self.counts["load_view"] >= number

        await until(looked, f"{number} looks")
        return self.counts - Counter(load_view=self.counts["load_view"])


async def test_what_is_served_and_does_not_change_is_not_read_again(stack, world, monkeypatch):
    one, two = await world.a_version(), await world.a_version()
    reads = Reads(monkeypatch)

    async def is_quiet() -> bool:
        return not await reads.during_looks(5)

    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("DeploymentReady", generation=1)
        await until(is_quiet, "five looks that read nothing else")
        await world.approve(two, "sales", 1)
        await world.heard("DeploymentReady", digest=two.digest)
        await until(is_quiet, "five looks that read nothing else")


async def test_what_is_withdrawn_is_wanted_no_more(stack, world):
    one, two = await world.a_version(), await world.a_version()
    async with controller(stack, world.engines) as service:
        await world.register()
        await world.approve(one, "support", 1)
        await world.approve(two, "sales", 1)
        for version in (one, two):
            await world.heard("DeploymentReady", digest=version.digest)
        await world.withdraw("support", 2)
        await world.heard("DeploymentStopped", digest=one.digest)
        rows = await service.database.fetch("SELECT slot, is_pending FROM wanted")
        assert [tuple(row) for row in rows] == [(world.slot("sales"), False)]
        await world.withdraw("sales", 2)
        await world.heard("DeploymentStopped", digest=two.digest)
        assert await service.database.fetchval("SELECT count(*) FROM wanted_replica_set") == 0


async def test_what_somebody_waits_for_is_loaded_first_then_what_was_asked_for_last(stack, world):
    versions = [await world.a_version() for _ in range(2)]
    async with controller(stack, world.engines) as service:
        await world.register()
        for number, version in enumerate(versions):
            await world.approve(version, f"slot-{number}", 1)
            await world.heard("DeploymentReady", digest=version.digest)
        await service.database.execute(
            "UPDATE wanted SET is_pending = true WHERE servable ->> 'digest' = $1", versions[0].digest
        )
        async with service.unit() as unit:
            replica_set = await store.servables_of_replica_set(unit.conn, world.pool)
    digests = [servable.digest for servable in replica_set.servables.values()]
    assert digests == [versions[0].digest, versions[1].digest]
    assert {name.rpartition("@")[2] for name in replica_set.pending} == {versions[0].digest}


async def test_an_adapter_that_cannot_be_fetched_now_holds_up_no_other(stack, world, monkeypatch):
    one, two = sorted([await world.a_version(), await world.a_version()], key=lambda each: each.model_id)
    fetch, tries = ModelFiles.adapter, Counter[str]()

    async def away(self: ModelFiles, servable: Servable, below: Path) -> Path:
        tries[servable.digest] += 1
        if servable.digest == one.digest and tries[two.digest] == 0:
            raise StorageUnavailable("GET: 503")
        return await fetch(self, servable, below)

    monkeypatch.setattr(ModelFiles, "adapter", away)
    async with controller(stack, world.engines):
        await world.approve(two, "sales", 1)
        await world.approve(one, "support", 1)
        await world.register()
        await world.heard("DeploymentReady", digest=two.digest)
        await world.heard("DeploymentReady", digest=one.digest)


async def test_files_of_models_that_nobody_serves_are_deleted(stack, world, monkeypatch):
    settings = stack.service_env("serving_controller")
    scratch = Path(settings["SERVING_CONTROLLER_SCRATCH_DIR"]).absolute()
    stray = {scratch / "base-models" / "nobodys", scratch / "models" / "nobodys"}
    new = scratch / "models" / "nobodys-yet"
    for directory in (*stray, new):
        directory.mkdir(parents=True)
    for directory in stray:
        os.utime(directory, (0, 0))
    one = await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("DeploymentReady", digest=one.digest)
    base = scratch / "base-models" / world.base_sha
    os.utime(base, (0, 0))
    async with controller(stack, world.engines):

        async def is_tidy() -> bool:
            return not any(directory.exists() for directory in stray)

        await until(is_tidy, "what nobody serves to be deleted")
    assert base.exists()
    assert new.exists()
