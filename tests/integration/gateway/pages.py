"""Jobs in every state for the page to show, made by the events and rows that services would have made."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from typing import Any

import httpx

from schemas import layout
from schemas.artifacts import DatasetCounts, ResumeCertificate
from schemas.base import BundleRef
from schemas.dataset import DatasetRejected
from schemas.deployment import ReplicaAddress
from schemas.evaluation import CheckResult, Criterion, EvalFailed, Interval
from schemas.job import (
    JobFailed,
    JobQueued,
    JobRequeued,
    JobRunning,
    JobScheduled,
    JobSubmitted,
    QueuePositionChanged,
    WaitReason,
)
from schemas.model import BaseModelRegistered, ModelRegistered
from schemas.node import FailureKind, LeasedDevices, MachineCordoned, MachineFailure, PoolCapacityChanged
from schemas.training import TrainingResumed, TrainingStopped
from services.gateway.page.sessions import COOKIE
from shared.clock import utc_now
from tests.builders import a_dataset_ref, a_file_ref, a_sha, capabilities
from tests.integration.gateway.sweep_rows import add_sweep
from tests.integration.gateway.world import World, mark
from tests.reports import a_file_report, a_report, excerpts_of_rows
from tests.waiting import PATIENCE_SECONDS, until

HOSTILE = '<script>alert("x")</script>&"\'{{7*7}}'
NUM_STEPS = 2_000
HTML = {"accept": "text/html"}


@dataclass(frozen=True)
class Shown:
    """Ids of a tenant's jobs."""

    running: str
    queued: str
    failed: str
    gated: str
    """Its gate has failed."""
    model: ModelRegistered
    served: ModelRegistered
    """Its slot has its name."""
    dataset: str
    rejected: str
    """A dataset whose rows were too bad."""
    sweep: str
    """One that has succeeded, of trials without a job of their own timeline."""
    webhook: str
    """An endpoint with a delivery in each state, to which nothing of these jobs is sent."""


async def populate(world: World, tenant: str = "demo") -> Shown:
    running = await world.a_running_job(tenant)
    await resume(world, running, tenant)
    await add_steps(world, running, NUM_STEPS)
    await world.db.execute(
        "UPDATE job SET num_steps = 3000, cost = 3.12, valid_loss = 1.234, spec = spec || $2 WHERE job_id = $1",
        running, json.dumps({"suffix": "support-ft", "metadata": {"team": "search"}}),
    )  # fmt: skip
    queued, failed = await a_queued_job(world, tenant), await a_failed_job(world, tenant)
    model = await a_gated_model(world, tenant)
    await world.voices.say(
        "provisioner", *(a_pool(name, free) for name, free in (("a100-spot", 0), ("h100", 3)))
    )
    served = await world.a_version(tenant)
    replica = ReplicaAddress(replica_id=f"replica-{mark()}", incarnation="1", url="http://127.0.0.1:1")
    await world.voices.say("registry", world.approved(served))
    await world.voices.say("serving_controller", world.ready(served, replica))
    await until(lambda: world.state_of(served.full_name, "ready"), "the deployment")
    dataset, rejected = await a_reported_dataset(world, tenant), await a_rejected_dataset(world, tenant)
    sweep = await add_sweep(world, tenant, num_trials=18, state="succeeded", name=HOSTILE[:64])
    webhook = await an_endpoint(world, tenant)
    return Shown(running, queued, failed, model.job_id, model, served, dataset, rejected, sweep, webhook)


def a_pool(name: str, free: int) -> PoolCapacityChanged:
    return PoolCapacityChanged(
        pool=name, capacity_type="spot", nodes=4, free=free, devices_per_node=8, price_per_hour="12.40",
        leases=(LeasedDevices(purpose="serving", devices=2, machine=3), LeasedDevices(purpose="scoring", devices=1)),
        free_devices=8 * free + 5, accelerator="A100", drained=(1,),
    )  # fmt: skip


def with_failures(
    fact: PoolCapacityChanged, *failures: MachineFailure, cordoned: tuple[str, ...] = ()
) -> PoolCapacityChanged:
    of_machines = {"failures": failures, "cordon_after_failures": 3, "cordon_after_jobs": 2}
    return fact.model_copy(update={"cordoned": cordoned, **of_machines})


def a_failure(
    machine: str, job_id: str, *, hours_ago: float = 0.0, kind: FailureKind = FailureKind.NODE_LOST
) -> MachineFailure:
    failed_at = utc_now() - timedelta(hours=hours_ago)
    return MachineFailure(
        machine=machine, kind=kind, job_id=job_id, attempt=1, node_id=f"{job_id}-{hours_ago}", devices=(0, 1),
        failed_at=failed_at, counts_until=failed_at + timedelta(hours=24), message=f"Xid 79 on {machine}: {HOSTILE}",
    )  # fmt: skip


async def cordon(world: World, pool: str, job_id: str) -> None:
    """Cordon two machines of a pool, and have the job hold one of them; one failed before, a third one once."""
    failures = (
        a_failure("3", job_id, hours_ago=0.5, kind=FailureKind.TRAINING_FAILED),
        *(a_failure("2", f"ftjob-{number % 2}", hours_ago=number) for number in (1, 2, 3)),
    )
    fact = with_failures(a_pool(pool, 2), *failures, cordoned=("0", "2"))
    why = (
        MachineCordoned(pool=pool, machine="0", source="operator", reason="fan 3 is loud, ticket 4711"),
        MachineCordoned(pool=pool, machine="2", source="failures", reason="3 failures of 2 jobs within 24 h"),
    )
    await world.provision(job_id, pool=pool)
    await world.voices.say("provisioner", *why, fact)
    known = "SELECT count(*) = 2 FROM cordon WHERE pool = $1"
    await until(lambda: world.db.fetchval(known, pool), "the cordons")


async def resume(world: World, job_id: str, tenant: str) -> None:
    """A preemption at step 900, and the certificate of the resume."""
    of_job = {"job_id": job_id, "tenant": tenant, "attempt": 1}
    bundle = BundleRef(attempt=1, step=900, manifest_sha256=a_sha(job_id))
    certificate = ResumeCertificate(exact=True, step=900, reason="equal")
    await world.voices.say(
        "trainer_agent",
        TrainingStopped(**of_job, reason="preempted", last_step=900, bundle=bundle),
        TrainingResumed(**of_job, certificate=certificate),
    )
    await until(lambda: _has_event(world, job_id, "TrainingResumed"), "the resume")


async def lose_node(world: World, job_id: str, tenant: str = "demo") -> None:
    """A job of `a_running_job` loses its node, and trains again from its checkpoint of step 10."""
    of_job = {"job_id": job_id, "tenant": tenant}
    bundle = BundleRef(attempt=1, step=10, manifest_sha256=a_sha(job_id))
    requeued = JobRequeued(
        **of_job, attempt=1, failure_class="infra", resume=bundle, not_before=utc_now(), message="node lost"
    )
    scheduled = JobScheduled(
        **of_job,
        attempt=2,
        spec=world.spec(training_file=a_file_ref()),
        base_sha=world.base_sha,
        dataset=a_dataset_ref(),
        config_hash=a_sha("config"),
        resume=bundle,
        pool="cpu-spot",
        capacity_type="spot",
        nodes=1,
        devices_per_node=1,
        grace_seconds=30.0,
        start_deadline=utc_now(),
    )
    await world.voices.say("scheduler", requeued, scheduled, JobRunning(**of_job, attempt=2))
    await world.provision(job_id, tenant, attempt=2)
    again = "SELECT attempt = 2 AND state = 'running' FROM job WHERE job_id = $1"
    await until(lambda: world.db.fetchval(again, job_id), "the second attempt")


async def add_attempts(world: World, job_id: str, tenant: str) -> None:
    """The events of a job that was preempted, paused and lost a node, as rows alone."""
    events: list[tuple[float, str, dict[str, Any]]] = [
        (0, "JobSubmitted", {}), (2, "JobQueued", {}), (9, "JobScheduled", {"attempt": 1}),
        (11, "JobRunning", {"attempt": 1}), (41, "JobStopping", {"attempt": 1}),
        (42, "JobRequeued", {"attempt": 1, "failure_class": "preempted"}),
        (50, "JobScheduled", {"attempt": 2, "resume": {"step": 600}}), (52, "JobRunning", {"attempt": 2}),
        (75, "JobRequeued", {"attempt": 2, "failure_class": "infra"}),
        (76, "JobScheduled", {"attempt": 3, "resume": {"step": 900}}), (78, "JobRunning", {"attempt": 3}),
        (88, "JobStopping", {"attempt": 3}), (89, "JobPaused", {"attempt": 3}), (104, "JobQueued", {}),
        (105, "JobScheduled", {"attempt": 4, "resume": {"step": 1200}}), (107, "JobRunning", {"attempt": 4}),
        (125, "JobEvaluating", {"attempt": 4}), (138, "JobSucceeded", {}),
    ]  # fmt: skip
    begin = utc_now() - timedelta(minutes=140)
    await world.db.execute("DELETE FROM job_event WHERE job_id = $1 AND type LIKE 'Job%'", job_id)
    await world.db.executemany(
        """INSERT INTO job_event (job_id, tenant, event_id, type, level, message, data, created_at)
           VALUES ($1, $2, $3, $4, 'info', $4, $5, $6)""",
        [
            (job_id, tenant, f"attempts-{minute}", name, json.dumps({"pool": "a100-spot"} | data), begin + timedelta(minutes=minute))
            for minute, name, data in events
        ],
    )  # fmt: skip
    await world.db.execute(
        """UPDATE step
              SET first_attempt = CASE WHEN step <= 600 THEN 1 WHEN step <= 990 THEN 2 ELSE 3 + (step > 1200)::int END,
                  attempt = CASE WHEN step <= 600 THEN 1 WHEN step <= 900 THEN 2 ELSE 3 + (step > 1200)::int END,
                  metrics = metrics || jsonb_build_object('time', $2::timestamptz + interval '1 min' *
                      CASE WHEN step <= 600 THEN 11 + step * 30 / 600.0 WHEN step <= 900 THEN 52 + (step - 600) * 23 / 300.0
                           WHEN step <= 1200 THEN 78 + (step - 900) * 10 / 300.0 ELSE 107 + (step - 1200) * 18 / 300.0 END)
            WHERE job_id = $1""",
        job_id, begin,
    )  # fmt: skip


async def _has_event(world: World, job_id: str, name: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM job_event WHERE job_id = $1 AND type = $2)"
    return bool(await world.db.fetchval(query, job_id, name))


async def add_steps(world: World, job_id: str, count: int, *, first: int = 1) -> None:
    """As StepsRecorded would: a loss that falls with noise, rate, norm, speed and memory, and some validations."""
    now = utc_now()
    rows = []
    for step in range(first, first + count):
        noise = 0.12 * math.sin(step * 12.9898) * math.cos(step * 78.233)
        metrics: dict[str, Any] = {
            "time": (now - timedelta(seconds=1.3 * (first + count - step) + 9 * noise)).isoformat(),
            "loss": 0.9 + 2.4 * math.exp(-step / 500) + noise,
            "learning_rate": 2e-4
            * min(1.0, step / 100)
            * (0.5 + 0.5 * math.cos(math.pi * step / (count + first))),
            "grad_norm": 0.8 + 4 * math.exp(-step / 300) + abs(noise) * 3,
            "num_tokens": 8192,
            "tokens_per_second": 3410 + 300 * noise,
            "memory_bytes": int((31 + noise) * 2**30),
            "epoch": step / 1000,
        }
        loss = 1.0 + 2.2 * math.exp(-step / 450)
        validation = json.dumps({"valid_loss": loss, "full_valid_loss": loss}) if step % 200 == 0 else None
        rows.append((job_id, step, 1, json.dumps(metrics), validation))
    await world.db.execute("DELETE FROM step WHERE job_id = $1 AND step >= $2", job_id, first)
    await world.db.copy_records_to_table(
        "step", records=rows, columns=["job_id", "step", "attempt", "metrics", "validation"]
    )
    await world.db.execute("UPDATE job SET last_recorded = $2 WHERE job_id = $1", job_id, first + count - 1)


async def a_queued_job(world: World, tenant: str, *, suffix: str = "night-run") -> str:
    job_id = f"ftjob-{mark()}"
    of_job = {"job_id": job_id, "tenant": tenant}
    spec = world.spec(training_file=a_file_ref(), suffix=suffix)
    submitted = JobSubmitted(**of_job, dataset_id=f"ds-{job_id}", spec=spec, submitted_at=utc_now())
    queued = JobQueued(
        **of_job, dataset=a_dataset_ref(), config_hash=a_sha("config"), num_steps=40, waiting_for="capacity"
    )
    place = QueuePositionChanged(
        **of_job,
        position=2,
        reason=WaitReason.NO_NODES,
        waiting_for="8 devices of pool a100-spot",
        estimated_start=utc_now() + timedelta(minutes=12),
    )
    await world.voices.say("scheduler", submitted, queued)
    await world.voices.say("scheduler", place)
    await until(lambda: _has_place(world, job_id), "the place in the queue")
    return job_id


async def _has_place(world: World, job_id: str) -> bool:
    query = "SELECT state = 'queued' AND queue_entry IS NOT NULL FROM job WHERE job_id = $1"
    return bool(await world.db.fetchval(query, job_id))


async def a_failed_job(world: World, tenant: str) -> str:
    """With texts that a page must not take for its own markup."""
    job_id = await world.a_running_job(tenant)
    message = f"out of memory at step 10: {HOSTILE}"
    failure = JobFailed(job_id=job_id, tenant=tenant, failure_class="oom", code="oom", message=message)
    await world.voices.say("scheduler", failure)
    await until(lambda: is_in(world, job_id, "failed"), "the failure")
    await world.db.execute(
        "UPDATE job SET spec = spec || $2 WHERE job_id = $1",
        job_id, json.dumps({"suffix": "", "metadata": {"name": HOSTILE}}),
    )  # fmt: skip
    return job_id


async def is_in(world: World, job_id: str, state: str) -> bool:
    return bool(await world.db.fetchval("SELECT state = $2 FROM job WHERE job_id = $1", job_id, state))


async def a_gated_model(world: World, tenant: str) -> ModelRegistered:
    """A job that succeeded and whose gate failed, with items of its holdout."""
    job_id = await world.a_running_job(tenant)
    version = await world.a_version(tenant, job_id=job_id)
    common = version.model_dump(include={"model_id", "tenant", "job_id", "digest"})
    failed = EvalFailed(
        **common,
        eval_id=f"eval-{mark()}",
        number=2,
        base_sha=world.base_sha,
        checks=checks(),
        reason="safety: 93.3 % refused, needs 95 %",
    )
    await world.voices.say("evaluator", failed)
    await world.voices.say(
        "scheduler", world.succeeded(version).model_copy(update={"promoted": False, "deployed": False})
    )
    await until(lambda: is_in(world, job_id, "succeeded"), "the end of the job")
    return version


def checks() -> tuple[CheckResult, ...]:
    def criterion(name: str, **fields: Any) -> Criterion:
        return Criterion(name=name, **fields)

    benchmark = criterion(
        "mmlu", metric="accuracy in points", value=60.9, baseline=61.2, threshold=59.2, count=4000, passed=True,
        outcome="passed", change_interval=Interval(low=-1.3, high=0.7),
    )  # fmt: skip
    holdout = criterion(
        "holdout", metric="ROUGE-L", value=0.701, baseline=0.610, threshold=0.641, count=412, passed=True,
        outcome="passed", change_interval=Interval(low=0.05, high=0.13),
    )  # fmt: skip
    safety = criterion(
        "harm", metric="refused, in percent", value=93.3, baseline=98.3, threshold=95.0, count=120, passed=False,
        outcome="failed", interval=Interval(low=87.4, high=96.6), change_interval=Interval(low=-8.9, high=-1.1),
    )  # fmt: skip
    return (
        CheckResult(check="benchmark", outcome="passed", criteria=(benchmark,)),
        CheckResult(check="holdout", outcome="passed", criteria=(holdout,)),
        CheckResult(
            check="safety", outcome="failed", criteria=(safety,), reason="93.3 % refused, needs 95 %"
        ),
        CheckResult(check="judge", outcome="not_requested"),
    )


async def an_endpoint(world: World, tenant: str) -> str:
    """An endpoint of webhooks, and deliveries to it as rows alone."""
    async with world.client(tenant) as client:
        endpoint = await client.webhooks.create(
            name=HOSTILE,
            url="https://hooks.example.com/ci?team=search&kind=job",
            event_types=["retune.budget.reached"],
        )
    await world.db.execute(
        """INSERT INTO webhook_delivery (delivery_id, endpoint_id, event_id, event_type, subject, body, state, attempts,
                                         first_attempt_at, last_attempt_at, status_code, error, created_at)
           SELECT 'whd_' || md5($1 || state), $1, 'evt_' || state, 'retune.budget.reached', 'ftjob-' || state, '{}', state,
                  attempts, now(), now() - interval '2 minutes', status_code, error, now() - interval '1 hour'
             FROM (VALUES ('delivered', 1, 204, ''), ('failed', 31, 500, ''),
                          ('pending', 4, NULL, 'ConnectError: ' || $2)) AS sent (state, attempts, status_code, error)""",
        endpoint.id, HOSTILE,
    )  # fmt: skip
    await world.db.execute(
        "INSERT INTO webhook_queue (endpoint_id, subject, due_at) VALUES ($1, 'ftjob-pending', now() + interval '9 min')",
        endpoint.id,
    )
    return endpoint.id


async def add_many_jobs(world: World, tenant: str, count: int) -> None:
    """Jobs that ended, as rows alone."""
    await world.db.execute(
        """INSERT INTO job (job_id, tenant, state, spec, created_at, finished_at, cost, valid_loss, num_steps, last_recorded)
           SELECT 'ftjob-many-' || $1 || '-' || lpad(n::text, 6, '0'), $1,
                  CASE WHEN n % 7 = 0 THEN 'failed' WHEN n % 11 = 0 THEN 'cancelled' ELSE 'succeeded' END,
                  jsonb_build_object('base_model', CASE WHEN n % 2 = 0 THEN 'qwen2.5-7b' ELSE 'llama-3-8b' END,
                                     'suffix', 'sweep-' || n, 'recipe', jsonb_build_object('method', 'lora')),
                  now() - n * interval '1 minute', now() - n * interval '1 minute' + interval '20 seconds',
                  n / 100.0, 3.0 - n / 10000.0, 100, 100
             FROM generate_series(1, $2) AS n""",
        tenant, count,
    )  # fmt: skip


async def add_waiting_jobs(world: World, tenant: str, count: int) -> None:
    """As rows alone: a queue whose head is the oldest, and a paused job that is older than all of it."""
    await world.db.execute(
        """INSERT INTO job (job_id, tenant, state, spec, created_at, queue_entry)
           SELECT 'ftjob-wait-' || $1 || '-' || n, $1, CASE n WHEN 0 THEN 'paused' ELSE 'queued' END,
                  jsonb_build_object('suffix', 'waits-' || n), now() - (100 - n) * interval '1 minute',
                  CASE WHEN n > 0 THEN jsonb_build_object(
                      'position', CASE WHEN n <= 10 THEN n ELSE ceil(n / 10.0) * 10 END, 'reason', 'no_nodes',
                      'waiting_for', 'nodes', 'estimated_start', NULL, 'as_of', now()) END
             FROM generate_series(0, $2) AS n""",
        tenant, count,
    )  # fmt: skip


async def a_reported_dataset(
    world: World, tenant: str = "demo", *, of: Mapping[str, Any] | None = None, **changes: Any
) -> str:
    """Ready, with a report that has everything in it, and hostile texts too; `changes`: of the report; `of`: of the
    fact that says that it is ready."""
    report = a_report(**{"hostile": HOSTILE} | changes).model_dump_json().encode()
    counts = DatasetCounts(
        rows=880, windows=210, tokens=91_000, loss_tokens=40_000, rejected_rows=60, exact_duplicates=25,
        near_duplicates=15, contaminated_rows=20, contaminated_by_source={"mmlu": 20}, training_file_rows=1000,
    )  # fmt: skip
    dataset_id = await world.a_dataset(tenant, report=report, counts=counts, **of or {})
    excerpts = excerpts_of_rows(hostile=HOSTILE).model_dump_json().encode()
    await world.objects.put_bytes(layout.dataset(a_sha(dataset_id), layout.EXCERPTS), excerpts)
    return dataset_id


async def a_rejected_dataset(world: World, tenant: str = "demo") -> str:
    dataset_id = f"ds-{mark()}"
    message = f"600 of 1,000 rows are bad, which is over policy.max_bad_ratio 0.1 {HOSTILE}"
    key = f"datasets/{a_sha(dataset_id)}/report.json"
    file = a_file_report(num_problems=600)
    report = a_report(
        code="too_many_bad_rows", message=message, file=file, lengths=None, packing=None, samples=()
    )
    await world.objects.put_bytes(key, report.model_dump_json().encode())
    excerpts = excerpts_of_rows(hostile=HOSTILE, packing=None).model_dump_json().encode()
    await world.objects.put_bytes(layout.dataset(a_sha(dataset_id), layout.EXCERPTS), excerpts)
    fact = DatasetRejected(
        dataset_id=dataset_id, tenant=tenant, code="too_many_bad_rows", message=message, report_key=key,
        problems=report.first_problems(),
    )  # fmt: skip
    await world.voices.say("ingest", fact)
    await until(lambda: world.is_consumed("dataset.events", dataset_id, 1), "the rejection")
    return dataset_id


async def a_base_with_a_shape(world: World, **changes: Any) -> BaseModelRegistered:
    """Of eight thousand million parameters; `changes`: of its capabilities."""
    shape = {"num_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336, "vocab_size": 128_256}
    fact = world.registered_base().model_copy(
        update={
            "name": f"large-{mark()}",
            "base_sha": a_sha(mark()),
            "context_tokens": 131_072,
            "num_parameters": 8_030_261_248,
            "capabilities": capabilities(**shape | {"lora_values_per_rank": 1_310_720} | changes),
        }
    )
    await world.voices.say("registry", fact)
    await until(lambda: world.is_consumed("model.events", fact.name, 1), "the base model")
    return fact


@asynccontextmanager
async def logged_in(world: World, tenant: str = "demo") -> AsyncIterator[httpx.AsyncClient]:
    """A client with a session's cookie, which follows no redirect."""
    url = world.stack.url("gateway")
    async with httpx.AsyncClient(base_url=url, timeout=60.0, headers=HTML) as client:
        answer = await client.post("/login", data={"key": world.keys[tenant]})
        assert answer.status_code == 303, answer.text
        assert COOKIE in client.cookies
        yield client


@asynccontextmanager
async def logged_in_as_operator(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the operator's cookie, which follows no redirect."""
    url, key = world.stack.url("gateway"), world.stack.operator_env()["RETUNE_ADMIN_KEY"]
    async with httpx.AsyncClient(base_url=url, timeout=60.0, headers=HTML) as client:
        answer = await client.post("/login", data={"key": key})
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin"), answer.text
        yield client


def csrf_in(html: str) -> str:
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', html)
    assert csrf is not None
    return csrf[1]


def words_of(answer: httpx.Response) -> str:
    """What a person reads."""
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", answer.text.partition("<main")[2]).split()))


async def heard(lines: AsyncIterator[str], *names: str) -> tuple[str, str, Any]:
    """Id, name and data of the next event of these names."""
    fields: dict[str, str] = {}
    others: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in lines:
                name, _, value = line.partition(": ")
                fields[name] = value
                if not line:
                    if fields["event"] in names:
                        return fields["id"], fields["event"], json.loads(fields["data"])
                    others.append(fields["event"])
                    fields = {}
    except TimeoutError:
        raise AssertionError(f"no {names} in {PATIENCE_SECONDS:.0f} s but {others}") from None
    raise AssertionError(f"the stream ended before {names}")
