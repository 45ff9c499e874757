"""What a tenant has on the pages of exports, alerts, one slot and a dataset with a price, for their pictures."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from schemas.alert import AlertRule
from schemas.artifacts import DatasetFiles
from schemas.base import DeviceKind
from schemas.model import (
    BaseModelRegistered,
    ModelExportFailed,
    ModelExportProgressed,
    ModelExportStarted,
    ModelRegistered,
)
from shared.clock import utc_now
from tests.integration.gateway.alerting import clear, page_of_an_alert, raise_alert
from tests.integration.gateway.owned_routes import a_ready_export, of_export, parity
from tests.integration.gateway.pages import Shown, a_base_with_a_shape, a_pool, a_reported_dataset
from tests.integration.gateway.test_deployments import the_story
from tests.integration.gateway.test_mutes import muted, raised
from tests.integration.gateway.world import ROW, World
from tests.reports import a_file_report
from tests.waiting import until

PRICED = "h100-spot"
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NEWEST_FAILURE = "SELECT max(number) FROM recent_event WHERE tenant = $1 AND type = 'JobFailed'"


@dataclass(frozen=True)
class Pictured:
    """Ids beside those of `Shown`."""

    tenant: str
    alert: str
    exported: str
    """A version with exports in each state."""
    priced: str
    """A dataset of rows with which a job would have a price."""
    event: int
    """Number of a job's failure."""


async def picture(world: World, shown: Shown, tenant: str) -> Pictured:
    """Needs the steps of `shown.running`. The slot with a history is `handbook`."""
    alert = await alerts(world, shown, tenant)
    exported = await exports(world, tenant)
    await the_story(world, tenant, "handbook")
    priced = await a_priced_dataset(world, tenant)
    await add_settings(world, shown)
    event = await world.db.fetchval(NEWEST_FAILURE, tenant)
    return Pictured(tenant, alert, exported.model_id, priced, event)


async def add_settings(world: World, shown: Shown) -> None:
    """Other ones in each job, for a comparison, as rows alone."""
    of_recipes: tuple[tuple[str, dict[str, Any]], ...] = (
        (shown.running, {"learning_rate": 2e-4, "schedule": "cosine", "lora": {"rank": 32}}),
        (shown.gated, {"learning_rate": 1e-5, "schedule": "wsd", "lora": {"rank": 64, "target_modules": MODULES}}),
        (shown.queued, {"learning_rate": 0.0025, "lora": {"rank": 8, "target_modules": MODULES[:2]}}),
    )  # fmt: skip
    for job_id, changes in of_recipes:
        await world.db.execute(
            "UPDATE job SET spec = jsonb_set(spec, '{recipe}', spec -> 'recipe' || $2) WHERE job_id = $1",
            job_id,
            json.dumps(changes),
        )


async def alerts(world: World, shown: Shown, tenant: str) -> str:
    """A spike that has cleared and one that is open, a stall that is muted of all jobs, one that is muted of one job, and
    one that pauses the job. Returns the id of the open spike."""
    cleared = await raise_alert(
        world, shown.running, tenant=tenant, step=600, value=2.904, message="loss 2.904, usually 1.55 to 1.71"
    )
    await clear(world, cleared, step=612)
    address = await page_of_an_alert(
        world, shown.running, 1_500, tenant=tenant, episode=2, value=3.412, message="loss 3.412, usually 1.02 to 1.18",
    )  # fmt: skip
    await raised(world, tenant, shown.running)
    await raised(world, tenant, shown.gated)
    await raised(
        world, tenant, shown.gated, AlertRule.VALIDATION_RISE, action="pause", value=1.311, limit=1.287, unit="loss",
        step=1_200, message="the validation loss is 1.311, 0.06 above its least, for the third time",
    )  # fmt: skip
    await muted(world, tenant)
    until_then = utc_now() + timedelta(hours=7, minutes=20)
    await muted(world, tenant, rule="loss_spike", job_id=shown.running, until=until_then)
    return address.rpartition("/")[2]


async def exports(world: World, tenant: str) -> ModelRegistered:
    """One that is ready, one under way and one whose files are too far from the model; one was never asked for."""
    base = await a_base_with_a_shape(world)
    version = await world.a_version(tenant, base_model=base.name, base_sha=base.base_sha)
    await a_ready_export(world, version, b"of a model " * 4_000)
    under_way, far = of_export(version, "q8_0"), of_export(version, "q4_0")
    await world.voices.say(
        "registry",
        ModelExportStarted(**under_way, estimated_bytes=8_500_000_000),
        ModelExportProgressed(**under_way, activity="comparing", done=17, total=34, seconds_left=61.0),
        ModelExportStarted(**far, estimated_bytes=4_600_000_000),
        ModelExportFailed(
            **far, code="parity", message="the files are too far from the trained model",
            parity=parity(mean_kl=0.21, max_kl=1.4, equal_next_tokens=0.84, passed=False),
        ),
    )  # fmt: skip
    count = (
        "SELECT count(*) = 3 FROM export WHERE model_id = $1 AND (state <> 'running' OR progress IS NOT NULL)"
    )
    await until(lambda: world.db.fetchval(count, version.model_id), "the exports")
    return version


async def a_priced_dataset(world: World, tenant: str) -> str:
    """On rows of files that are still there, with a pool in which six jobs on the same base model have ended."""
    base = await a_base_with_a_shape(world)
    file = (await world.upload(tenant, name="support.jsonl"))["retune"]["sha256"]
    holdout = (await world.upload(tenant, name="held-out.jsonl", content=ROW * 120))["retune"]["sha256"]
    pool = a_pool(PRICED, 3).model_copy(update={"device": DeviceKind.CUDA, "device_memory_bytes": 80 * 2**30})
    await world.voices.say("provisioner", pool)
    await until(lambda: world.is_consumed("node.events", PRICED, 1), "the pool")
    await add_attempt_times(world, base)
    of = {"base_sha": base.base_sha, "files": DatasetFiles(training=file, holdout=holdout)}
    report = a_file_report(sha256=file)
    return await a_reported_dataset(world, tenant, of=of, hostile="", file=report)


async def remove_price(world: World) -> None:
    """Of jobs of other tests nobody knows the price."""
    await world.db.execute("DELETE FROM pool WHERE name = $1", PRICED)
    await world.db.execute("DELETE FROM attempt_time WHERE pool = $1", PRICED)


async def add_attempt_times(world: World, base: BaseModelRegistered) -> None:
    """As rows alone: each of half an hour of training, quicker and slower ones, and estimates of them."""
    await world.db.execute(
        """INSERT INTO attempt_time (job_id, attempt, pool, base_sha, method, num_devices, flops, training_seconds,
                                     other_seconds, estimated_seconds, ended_at)
           SELECT 'ftjob-ended-' || n, 1, $1, $2, 'lora', 1, 2.5e17, 1800 + 60 * n, 190 + 10 * n, 1850, now() - n * interval '1 h'
             FROM generate_series(1, 6) AS n""",
        PRICED, base.base_sha,
    )  # fmt: skip
