"""The one place that invents test data. Each builder states a whole, valid thing; a test names what matters."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.base import BundleRef, CapacityType, DatasetRef, FailureClass, FileRef, Message
from schemas.capabilities import BaseCapabilities, LossForm
from schemas.envelope import Envelope, to_headers
from schemas.job import PauseReason, StopReason
from schemas.lifecycle import JobState
from schemas.specification import JobSpec, Recipe, Resources
from schemas.topics import PARKED_TOPICS, TOPICS
from schemas.training import PackingDistances, PackingVerdict, Preparation
from services.scheduler.decide.admission import plan_of
from services.scheduler.decide.ledger import Booking, DeviceType, Ledger, Pool
from services.scheduler.model import (
    ATTEMPT_OPEN,
    Attempt,
    Dataset,
    DatasetState,
    Evaluation,
    Facts,
    Job,
    ModelVersion,
    Placement,
    Stop,
    TrainingResult,
)
from shared.messaging.delivery import Delivery, read
from shared.record import Record

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
TENANT = "acme"


def a_sha(name: str = "anything") -> str:
    """The same name gives the same sha256."""
    return hashlib.sha256(name.encode()).hexdigest()


def a_file_ref(name: str = "train.jsonl") -> FileRef:
    return FileRef(file_id=f"file-{name}", sha256=a_sha(name), size_bytes=1000, filename=name)


def a_bundle(step: int = 10, *, attempt: int = 1, name: str = "") -> BundleRef:
    return BundleRef(attempt=attempt, step=step, manifest_sha256=a_sha(name or f"bundle {attempt} {step}"))


def a_dataset_ref(name: str = "dataset") -> DatasetRef:
    return DatasetRef(version=a_sha(name), manifest_sha256=a_sha(f"{name} manifest"))


def a_preparation(**changes: Any) -> Preparation:
    fields = {
        "device": "cpu",
        "world_size": 1,
        "precision": "float32",
        "num_parameters": 100,
        "num_trainable": 10,
        "batch_size": 4,
        "micro_batch_size": 1,
        "gradient_checkpointing": False,
        "packing": PackingVerdict.PROVED,
        "distances": PackingDistances(packed=1e-7, noise=1e-7, leak=0.1),
        "memory_bytes": 2**30,
    }
    return Preparation(**fields | changes)


def a_job_spec(
    *, recipe: Recipe | None = None, resources: Resources | None = None, **changes: Any
) -> JobSpec:
    fields = {
        "base_model": "tiny",
        "base_sha": a_sha("tiny"),
        "recipe": recipe or Recipe(),
        "resources": resources or Resources(),
        "training_file": a_file_ref(),
        "suffix": "test",
    }
    return JobSpec(**fields | changes)


def a_dataset(state: DatasetState = DatasetState.READY, **changes: Any) -> Dataset:
    """What the scheduler knows of one SubmitDataset."""
    ready = {
        "ref": a_dataset_ref(),
        "base_sha": a_sha("tiny"),
        "template_sha256": a_sha("template"),
        "counts": DatasetCounts(rows=2000, windows=400, tokens=90_000, loss_tokens=40_000),
        "benchmarks": {"stdlib": a_sha("benchmark")},
        "suites": {"refusals": a_sha("suite")},
        "files": DatasetFiles(training=a_file_ref().sha256),
    }
    fields = {"dataset_id": "ds-1", "tenant": TENANT, "state": state, "message": f"the dataset is {state}"}
    return Dataset(**fields | (ready if state is DatasetState.READY else {}) | changes)


def a_placement(pool: str = "cpu-spot", **changes: Any) -> Placement:
    fields = {
        "pool": pool,
        "capacity_type": CapacityType.SPOT,
        "nodes": 1,
        "devices_per_node": 1,
        "machines": (0,),
    }
    return Placement(**fields | changes)


def an_attempt(number: int = 1, *, facts: Facts | None = None, stop: Stop | None = None) -> Attempt:
    return Attempt(
        number=number,
        placement=a_placement(),
        resume=None,
        scheduled_at=NOON,
        start_deadline=NOON + timedelta(minutes=5),
        facts=facts or Facts(),
        stop=stop,
    )


def a_stop(
    reason: StopReason = StopReason.PREEMPT,
    *,
    failure_class: FailureClass | None = None,
    deadline: datetime = NOON + timedelta(seconds=30),
    pause_reason: PauseReason | None = None,
) -> Stop:
    if reason is StopReason.FAILURE:
        failure_class = failure_class or FailureClass.INFRA
    if reason is StopReason.PAUSE:
        pause_reason = pause_reason or PauseReason.USER
    return Stop(reason, NOON, deadline, f"stopped: {reason}", failure_class, pause_reason)


def a_job(state: JobState = JobState.RUNNING, *, attempt: int = 1, **changes: Any) -> Job:
    """A job as it would be in that state; from `provisioning` on with one attempt."""
    spec = changes.pop("spec", None) or a_job_spec()
    facts, stop = changes.pop("facts", None), changes.pop("stop", None)
    fields: dict[str, Any] = {
        "id": "ftjob-1",
        "tenant": TENANT,
        "state": state,
        "spec": spec,
        "dataset_id": "ds-1",
        "submitted_at": NOON,
    }
    if state is not JobState.VALIDATING:
        dataset = a_dataset()
        fields |= {"dataset": dataset, "plan": plan_of(spec, dataset), "queued_at": NOON}
    if state in ATTEMPT_OPEN | {JobState.EVALUATING} or facts:
        stop = stop or (a_stop() if state is JobState.STOPPING else None)
        fields["run"] = an_attempt(attempt, facts=facts or _facts_of(state), stop=stop)
    if state is JobState.EVALUATING:
        fields["verified"] = frozenset({a_bundle(step=600)})
    return Job(**fields | changes)


def _facts_of(state: JobState) -> Facts:
    if state is JobState.EVALUATING:
        ending = TrainingResult(completed=True, last_step=600, bundle=a_bundle(step=600))
        return Facts(started=True, ending=ending, named=frozenset({a_bundle(step=600)}))
    return Facts(started=state is not JobState.PROVISIONING)


def a_model_version(**changes: Any) -> ModelVersion:
    fields = {"model_id": "mv-1", "full_name": "ft:tiny:acme:test:0123abcd", "digest": a_sha("model")}
    return ModelVersion(**fields | changes)


def an_evaluation(**fields: Any) -> Evaluation:
    return Evaluation(**{"model": a_model_version()} | fields)


def a_pool(
    name: str = "cpu-spot", *, booked: int = 0, bookings: Sequence[Booking] = (), **changes: Any
) -> Pool:
    """`booked`: machines that are held whole, and nobody knows until when."""
    fields = {
        "name": name,
        "capacity_type": CapacityType.ON_DEMAND if "demand" in name else CapacityType.SPOT,
        "nodes": 2,
        "devices_per_node": 1,
        "price_per_hour": Decimal(1),
        "changed_at": NOON - timedelta(hours=1),
    }
    pool = Pool(**fields | changes).with_bookings(bookings)
    return replace(pool, free={each: 0 if each < booked else left for each, left in pool.free.items()})


def a_booking(
    *machines: int, devices: int = 1, since: datetime = NOON, ends_by: datetime | None = None
) -> Booking:
    return Booking(machines, devices, since, ends_by)


def a_ledger(*pools: Pool, **held: int | Mapping[str, int]) -> Ledger:
    """`held`: devices by tenant, of the first pool or by pool."""
    pools = pools or (a_pool(),)
    types = {pool.name: pool.device_type for pool in pools}
    devices_held: dict[str, Counter[DeviceType]] = {}
    for tenant, devices in held.items():
        by_pool = devices if isinstance(devices, Mapping) else {pools[0].name: devices}
        devices_held[tenant] = Counter()
        for name, count in by_pool.items():
            devices_held[tenant][types[name]] += count
    return Ledger(pools, devices_held)


def capabilities(**changes: Any) -> BaseCapabilities:
    """Of a Llama that can be trained with every method."""
    fields = {
        "family": "llama",
        "architecture": "LlamaForCausalLM",
        "num_layers": 2,
        "hidden_size": 64,
        "vocab_size": 512,
        "attention": "sdpa",
        "loss": LossForm(),
        "lora_targets": ("k_proj", "q_proj"),
        "lora_values_per_rank": 512,
    }
    return BaseCapabilities(**fields | changes)


def delivered(
    message: Message, *, minute: float = 0, correlation_id: str = "", sequence: int = 1
) -> Delivery:
    """The message as it would be read from its topic."""
    topic = PARKED_TOPICS.get(message.key) or next(each for each in TOPICS if type(message) in each.messages)
    envelope = Envelope(
        id=uuid4().hex,
        type=message.type,
        version=message.version,
        source="/retune/test",
        time=NOON + timedelta(minutes=minute),
        key=message.key,
        sequence=sequence if topic.is_event_stream else None,
        correlation_id=correlation_id,
    )
    value = message.model_dump_json().encode()
    record = Record(topic.name, 0, 7, message.key.encode(), tuple(to_headers(envelope)), value)
    delivery = read(record)
    assert isinstance(delivery, Delivery), delivery
    return delivery
