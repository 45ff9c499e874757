"""The serving controller on real Kafka, Postgres and S3; replicas are stand-ins, so that single ones can fail.

Real vLLM is in tests/serving.
"""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import BundleRef
from schemas.model import (
    AdaptersStale,
    BaseModelRegistered,
    DeploymentApproved,
    DeploymentWithdrawn,
    ModelRegistered,
)
from services.serving_controller import handlers
from services.serving_controller.clients.files import LocalFiles, ModelFiles
from services.serving_controller.handlers.rounds import ReconcileLoop
from services.serving_controller.handlers.steps import Steps
from services.serving_controller.model import pool_of
from services.serving_controller.settings import Settings
from shared.postgres.migrate import migrate
from shared.service import Service
from shared.settings import Timing
from shared.storage.s3 import S3ObjectStore
from tests.chaos.groups import remove_members
from tests.chaos.scale import note
from tests.integration.engines import Engines
from tests.integration.voices import Ear, Voices, ear, voices
from tests.stored import put_base, put_model
from tests.waiting import until

pytestmark = pytest.mark.stack

MODULE = "model.layers.0.self_attn.o_proj"
numbers = itertools.count(1)


class World:
    """One base model of its own, its versions, and a slot for each test."""

    def __init__(
        self, voices: Voices, ear: Ear, engines: Engines, objects: S3ObjectStore, base_sha: str, root: Path
    ) -> None:
        self.voices = voices
        self.ear = ear
        self.engines = engines
        self.objects = objects
        self.base_sha = base_sha
        self.base_name = f"tiny-{base_sha[:8]}"
        self.pool = pool_of(base_sha)
        self.replica = f"{self.pool}-0"
        self._root = root
        self._generation = itertools.count(1)

    async def register(self) -> None:
        fact = BaseModelRegistered(
            name=self.base_name,
            base_sha=self.base_sha,
            manifest_sha256="1" * 64,
            source="directory",
            template_sha256="2" * 64,
            context_tokens=512,
            num_parameters=1,
        )
        await self.voices.say("registry", fact)

    async def a_version(self, *, rank: int = 8, known: bool = True) -> DeploymentApproved:
        """A model version in S3; the approval that names it, for `approve` to complete."""
        number = next(numbers)
        directory = self._root / f"adapter-{number}"
        write_adapter(directory, gain=float(number), rank=rank)
        digest = await put_model(self.objects, directory, base_sha=self.base_sha)
        if known:
            await self.voices.say("registry", self._registered(number, digest))
        return DeploymentApproved(
            slot="",
            tenant="demo",
            generation=0,
            model_id=f"mv-{self.base_sha[:6]}-{number}",
            job_id=None,
            kind="adapter",
            digest=digest,
            base_model=self.base_name,
            base_sha=self.base_sha,
            eval_id="eval-1",
            rank=rank,
        )

    def _registered(self, number: int, digest: str) -> ModelRegistered:
        return ModelRegistered(
            model_id=f"mv-{self.base_sha[:6]}-{number}",
            tenant="demo",
            job_id=f"ftjob-{number}",
            digest=digest,
            full_name=f"ft:tiny:demo:{number}:{digest[:8]}",
            kind="adapter",
            rank=8,
            base_model=self.base_name,
            base_sha=self.base_sha,
            dataset_version="d" * 64,
            config_hash="e" * 64,
            template_sha256="f" * 64,
            bundle=BundleRef(attempt=1, step=1, manifest_sha256="0" * 64),
        )

    async def approve(self, version: DeploymentApproved, slot: str, generation: int) -> None:
        named = version.model_copy(update={"slot": self.slot(slot), "generation": generation})
        await self.voices.say("registry", named)

    async def withdraw(self, slot: str, generation: int) -> None:
        fact = DeploymentWithdrawn(
            slot=self.slot(slot), tenant="demo", generation=generation, reason="asked for"
        )
        await self.voices.say("registry", fact)

    def slot(self, name: str) -> str:
        return f"{name}-{self.base_sha[:8]}"

    async def heard(self, name: str, **fields: Any) -> Any:
        """The first fact of this type and these fields."""

        async def first_fact() -> Any:
            return next(iter(self.facts(name, **fields)), None)

        return await until(first_fact, f"{name} {fields}; heard {self.ear.types(self.pool)}")

    def facts(self, name: str, **fields: Any) -> list[Any]:
        return [
            each.message
            for each in self.ear.heard[self.pool]
            if each.message.type == name
            and all(getattr(each.message, field) == value for field, value in fields.items())
        ]


def write_adapter(directory: Path, *, gain: float, rank: int) -> None:
    directory.mkdir()
    tensors = {
        f"base_model.model.{MODULE}.lora_A.weight": np.ones((rank, 4), np.float32),
        f"base_model.model.{MODULE}.lora_B.weight": np.full((4, rank), gain / 100, np.float32),
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(
        json.dumps({"r": rank, "lora_alpha": 16, "target_modules": ["o_proj"]})
    )


async def put_a_base(objects: S3ObjectStore, directory: Path) -> str:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"number": next(numbers)}))
    save_file({f"{MODULE}.weight": np.zeros((4, 4), np.float32)}, directory / "model.safetensors")
    return await put_base(objects, directory)


@asynccontextmanager
async def controller(
    stack: Stack,
    engines: Engines,
    *,
    replicas: int = 1,
    keep_seconds: float = 60.0,
    instance: int = 0,
    **changes: Any,
) -> AsyncIterator[Service]:
    settings = Settings(
        **{
            name.removeprefix("SERVING_CONTROLLER_").lower(): value
            for name, value in stack.service_env("serving_controller").items()
        }
        | {"instance": instance},
        timing=Timing(lease_renew=timedelta(seconds=0.5)),
        look_every_seconds=0.1,
        replicas_per_pool=replicas,
        keep_seconds=keep_seconds,
        unanswered_seconds=0.5,
        **changes,
    )
    service = Service("serving_controller", settings)
    async with engines.http as http:
        rounds = rounds_of(service, engines, http, settings)
        handlers.register(
            service,
            rounds,
            keep=settings.policy.keep,
            look_every=timedelta(seconds=settings.look_every_seconds),
        )
        async with service.running():
            yield service
    if instance:
        # Else its partitions are nobody's until its session has timed out.
        await remove_members(stack, service.name, f"{service.name}-{instance}")


def rounds_of(
    service: Service, engines: Engines, http: httpx.AsyncClient, settings: Settings
) -> ReconcileLoop:
    files = LocalFiles(ModelFiles(service.objects, scratch=settings.scratch_dir), engines.folder)
    policy = replace(settings.policy, max_adapters=engines.max_adapters)
    unanswered = timedelta(seconds=settings.unanswered_seconds)
    steps = Steps(engines, files, http, policy=policy, clock=service.clock)
    return ReconcileLoop(service, steps, policy=policy, unanswered=unanswered, leases=settings.leases)


@pytest.fixture(scope="module")
async def objects(stack: Stack) -> S3ObjectStore:
    key = stack.s3_credentials("root")
    return S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)


@pytest.fixture
async def world(stack: Stack, objects: S3ObjectStore, tmp_path: Path, voice: Voices, listening: Ear) -> World:
    await migrate("serving_controller", stack.postgres_dsn("serving_controller"))
    await forget_pools(stack)
    base_sha = await put_a_base(objects, tmp_path / "base")
    return World(voice, listening, Engines(tmp_path / "replicas"), objects, base_sha, tmp_path)


async def forget_pools(stack: Stack) -> None:
    """No replica of an earlier test is started beside this one's."""
    conn = await asyncpg.connect(stack.postgres_dsn("serving_controller"))
    try:
        await conn.execute(
            "TRUNCATE base_model, slot, slot_use, wanted, wanted_replica_set, retired, replica, candidate, held_lease"
        )
    finally:
        await conn.close()


@pytest.fixture(scope="module")
async def voice(stack: Stack) -> AsyncIterator[Voices]:
    async with voices(stack) as speaking:
        yield speaking


@pytest.fixture(scope="module")
async def listening(stack: Stack) -> AsyncIterator[Ear]:
    async with ear(stack, "deployment.events") as heard:
        yield heard


async def test_a_registered_base_model_is_served_by_its_own_name(stack, world):
    async with controller(stack, world.engines):
        await world.register()
        ready = await world.heard("ReplicaReady")
    assert (ready.base_model, ready.served_base) == (world.base_name, world.base_name)
    assert ready.replica.replica_id == world.replica
    assert world.engines.names(world.replica) == set()


async def test_versions_are_swapped_kept_for_a_while_and_rolled_back(stack, world):
    one, two = await world.a_version(), await world.a_version()
    async with controller(stack, world.engines, keep_seconds=0.5):
        await world.register()
        await world.approve(one, "support", 1)
        first = await world.heard("DeploymentReady", generation=1)
        assert first.served_name.endswith(f"@{one.digest}")
        assert first.replicas == ((await world.heard("AdapterLoaded", digest=one.digest)).replica,)
        await world.approve(two, "support", 2)
        await world.heard("DeploymentReady", generation=2, digest=two.digest)
        await until(lambda: _names(world, {two.digest}), "the old version to be unloaded")
        await world.approve(one, "support", 3)
        await world.heard("DeploymentReady", generation=3, digest=one.digest)
        back = await world.heard("DeploymentRolledBack", generation=3)
    assert (back.digest, back.previous_digest) == (one.digest, two.digest)


async def _names(world: World, digests: set[str]) -> bool:
    return {name.rpartition("@")[2] for name in world.engines.names(world.replica)} == digests


async def test_what_one_of_two_replicas_refuses_is_served_by_none_and_the_version_before_stays(stack, world):
    one, two = await world.a_version(), await world.a_version()
    async with controller(stack, world.engines, replicas=2):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("ReplicaReady", replica=(await replica_of(world, 1)))
        await until(lambda: everywhere(world, one.digest), "both replicas to serve the first version")
        world.engines.refusing[f"{world.pool}-1"] = two.digest
        await world.approve(two, "support", 2)
        failed = await world.heard("DeploymentFailed", generation=2)
        await until(lambda: _names(world, {one.digest}), "the refused version to be unloaded everywhere")
        assert (failed.code, failed.digest) == ("load", two.digest)
        assert "the disk is on fire" in failed.reason
        assert world.facts("DeploymentReady", generation=2) == []
        assert world.facts("DeploymentStopped") == []


async def test_what_a_restarted_replica_refuses_for_a_while_stays_served_by_the_other(stack, world):
    one, broken = await world.a_version(), f"{world.pool}-1"
    async with controller(stack, world.engines, replicas=2):
        await world.register()
        await world.approve(one, "support", 1)
        await until(lambda: everywhere(world, one.digest), "both replicas to serve the version")
        world.engines.refusing[broken] = one.digest
        world.engines.running[broken].is_alive = False
        await until(lambda: _started_again(world, broken, 2), "the replica to be given up once more")
        del world.engines.refusing[broken]
        await until(lambda: everywhere(world, one.digest), "both replicas to serve the version again")
    assert world.facts("DeploymentFailed") == []


async def _started_again(world: World, replica_id: str, times: int) -> bool:
    return world.engines.starts_of(world.pool).count(replica_id) > times


async def replica_of(world: World, index: int) -> Any:
    ready = await until(lambda: _ready(world, index), f"replica {index}")
    return ready.replica


async def _ready(world: World, index: int) -> Any:
    ready = [
        fact for fact in world.facts("ReplicaReady") if fact.replica.replica_id == f"{world.pool}-{index}"
    ]
    return ready[0] if ready else None


async def everywhere(world: World, digest: str) -> bool:
    ready = world.facts("DeploymentReady", digest=digest)
    return bool(ready) and len(ready[-1].replicas) == 2


async def test_of_two_controllers_one_makes_rounds_and_the_other_continues_with_its_replicas(stack, world):
    one, two = await world.a_version(), await world.a_version()
    async with controller(stack, world.engines, replicas=2, instance=1):
        async with controller(stack, world.engines, replicas=2):
            await world.register()
            await world.approve(one, "support", 1)
            await until(lambda: everywhere(world, one.digest), "both replicas to serve the first version")
        await world.approve(two, "support", 2)
        await until(lambda: everywhere(world, two.digest), "both replicas to serve the second version")
    assert sorted(world.engines.starts_of(world.pool)) == [f"{world.pool}-0", f"{world.pool}-1"]
    assert (world.facts("DeploymentFailed"), world.facts("ReplicaLost")) == ([], [])
    note("two serving controllers", replicas_started=len(world.engines.starts_of(world.pool)))


async def test_an_adapter_that_is_not_active_is_never_routed(stack, world):
    one = await world.a_version()
    world.engines.idle.add(f"ft:tiny:demo:{one.model_id.rpartition('-')[2]}:{one.digest[:8]}@{one.digest}")
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        failed = await world.heard("DeploymentFailed", generation=1)
    assert failed.code == "probe"
    assert world.facts("DeploymentReady") == []


async def test_a_dead_replica_is_lost_and_comes_back_with_the_same_set(stack, world):
    one = await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        before = await world.heard("DeploymentReady", generation=1)
        world.engines.running[world.replica].is_alive = False
        lost = await world.heard("ReplicaLost")
        again = await until(lambda: _again(world), "the deployment to be ready again")
    assert lost.replica.incarnation == before.replicas[0].incarnation
    assert again.replicas[0].incarnation != before.replicas[0].incarnation
    assert again.generation == 1


async def _again(world: World) -> Any:
    ready = world.facts("DeploymentReady", generation=1)
    return ready[1] if len(ready) > 1 else None


async def test_a_controller_that_starts_again_continues_without_a_word(stack, world):
    one, two = await world.a_version(), await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("DeploymentReady", generation=1)
    before, starts = world.ear.types(world.pool), world.engines.starts_of(world.pool)
    async with controller(stack, world.engines):
        await world.approve(two, "another", 1)
        await world.heard("DeploymentReady", digest=two.digest)
    assert world.ear.types(world.pool) == [*before, "AdapterLoaded", "DeploymentReady"]
    assert world.engines.starts_of(world.pool) == starts


async def test_what_a_controller_loaded_and_did_not_write_down_is_loaded_again(stack, world):
    one = await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.heard("ReplicaReady")
        number = one.model_id.rpartition("-")[2]
        name = f"ft:tiny:demo:{number}:{one.digest[:8]}@{one.digest}"
        world.engines.running[world.replica].adapters[name] = 0.0
        await world.approve(one, "support", 1)
        ready = await world.heard("DeploymentReady", generation=1)
    assert ready.served_name == name
    assert world.engines.running[world.replica].adapters[name] != 0.0


async def test_the_highest_generation_wins_and_a_withdrawal_counts(stack, world):
    one, two = await world.a_version(), await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 5)
        await world.heard("DeploymentReady", generation=5)
        await world.approve(two, "support", 4)
        await world.withdraw("support", 6)
        stopped = await world.heard("DeploymentStopped", generation=6)
        await world.approve(two, "support", 5)
        await world.approve(one, "support", 7)
        await world.heard("DeploymentReady", generation=7)
    assert stopped.digest == one.digest
    assert [fact.generation for fact in world.facts("DeploymentReady")] == [5, 7]


async def test_what_is_withdrawn_and_approved_again_at_once_is_ready_at_once(stack, world, monkeypatch):
    """Between two looks, beside a slot that has the same version: the replica set is what it was."""
    monkeypatch.setattr("services.serving_controller.handlers.rounds.FULL_LOOK_SECONDS", 3600.0)
    one = await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "beside", 1)
        for generation in (1, 3, 5, 7):
            await world.withdraw("support", generation - 1)
            await world.approve(one, "support", generation)
            await world.heard("DeploymentReady", slot=world.slot("support"), generation=generation)


async def test_a_stale_base_is_unrouted_and_refused_until_it_is_registered_again(stack, world):
    one = await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("DeploymentReady", generation=1)
        stale = AdaptersStale(base_model=world.base_name, stale_sha=world.base_sha, new_sha="0" * 64)
        await world.voices.say("registry", stale)
        await world.heard("DeploymentStopped", generation=1)
        assert (await world.heard("DeploymentFailed", generation=1)).code == "stale"
        await world.approve(one, "support", 2)
        assert (await world.heard("DeploymentFailed", generation=2)).code == "stale"
        await world.register()
        await world.approve(one, "later", 1)
        await world.heard("DeploymentReady", slot=world.slot("later"))


async def test_an_approval_waits_for_the_name_of_its_version(stack, world):
    one = await world.a_version(known=False)
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("ReplicaReady")
        number = int(one.model_id.rpartition("-")[2])
        await world.voices.say("registry", world._registered(number, one.digest))
        ready = await world.heard("DeploymentReady", generation=1)
    assert ready.served_name == f"ft:tiny:demo:{number}:{one.digest[:8]}@{one.digest}"


async def test_a_version_whose_files_are_gone_fails_with_their_name(stack, world):
    one = await world.a_version()
    await world.objects.delete([layout.model(one.digest, "files/adapter_model.safetensors")])
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        failed = await world.heard("DeploymentFailed", generation=1)
    assert failed.code == "load"
    assert f"models/{one.digest}/files/adapter_model.safetensors does not exist" in failed.reason


async def test_a_higher_rank_exchanges_the_replica(stack, world):
    one, high = await world.a_version(), await world.a_version(rank=64)
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("DeploymentReady", generation=1)
        await world.approve(high, "high", 1)
        await world.heard("DeploymentReady", slot=world.slot("high"))
        lost = await world.heard("ReplicaLost")
    assert "rank 64 is needed" in lost.reason
    assert world.engines.running[world.replica].spec.max_lora_rank == 64
