"""Histories of a stack on which one job was preempted, continued, passed its gate and is served; and broken ones."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from ops.doctor.finding import Finding
from ops.doctor.history import (
    Checkpoint,
    DesiredVersion,
    Entry,
    Evaluation,
    Generation,
    History,
    Job,
    Kernel,
    Limits,
    Manifest,
    ModelVersion,
    Part,
    Replica,
    Route,
    Row,
    Snapshot,
    Store,
)
from ops.doctor.invariants import check
from ops.doctor.topics import entry_of
from schemas import layout
from schemas.base import BundleRef, CapacityType, FailureClass, Message
from schemas.dataset import DatasetReady
from schemas.envelope import Envelope, to_headers
from schemas.gate import GateSpec
from schemas.job import (
    Artifact,
    JobEvaluating,
    JobQueued,
    JobRequeued,
    JobRunning,
    JobScheduled,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
    StopReason,
    SubmitJob,
)
from schemas.node import NodesProvisioned, PoolCapacityChanged
from schemas.topics import LISTENS, SERVICES, TENANT_FACT_TYPES, Topic, tenant_events, topic_of
from schemas.training import RunnerStarted
from shared.messaging.delivery import Delivery, read, topic_named
from shared.record import Record
from tests.builders import (
    NOON,
    TENANT,
    a_bundle,
    a_dataset,
    a_dataset_ref,
    a_file_ref,
    a_job_spec,
    a_model_version,
    a_sha,
)
from tests.unit.scheduler import incoming
from tests.unit.scheduler.incoming import FINAL

JOB = {"job_id": "ftjob-1", "tenant": TENANT}
MODEL = a_model_version()
SERVED = f"{MODEL.full_name}@{MODEL.digest}"
EMERGENCY = a_bundle(20)
READ_AT = NOON + timedelta(hours=1)
LIMITS = Limits()


@dataclass
class Publisher:
    """Writes messages as services do: a row in an outbox, a record in a topic, and everybody's inboxes."""

    entries: list[Entry] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    sequences: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)
    now: datetime = NOON
    offsets: Counter[str] = field(default_factory=Counter)
    copies_for: str = ""
    """Tenant whom the gateway copies every fact for."""

    def publish(self, writer: str, message: Message, *, cause: str = "") -> str:
        """The event's id."""
        self.now += timedelta(seconds=1)
        topic = topic_of(type(message), writer=writer)
        number = self.sequences.get(writer, {}).get((topic.name, message.key), 0) + 1
        event_id = f"{message.type}-{message.key}-{number}"
        envelope = Envelope(
            event_id,
            message.type,
            message.version,
            f"/retune/{writer}",
            self.now,
            message.key,
            causation_id=cause,
        )
        self._write(writer, topic, envelope, message)
        if self.copies_for and type(message) in TENANT_FACT_TYPES:
            self._write("gateway", tenant_events(self.copies_for), envelope, message)
        return event_id

    def _write(self, writer: str, topic: Topic, envelope: Envelope, message: Message) -> None:
        """`envelope`: without its number in the topic."""
        stream = (topic.name, message.key)
        given = self.sequences.setdefault(writer, {})
        number = given.get(stream, 0) + 1
        value = message.model_dump_json().encode()
        numbered = replace(envelope, sequence=number if topic.is_event_stream else None)
        location = (topic.name, 0, self.offsets[topic.name])
        delivery = read(Record(*location, message.key.encode(), tuple(to_headers(numbered)), value))
        self.offsets[topic.name] += 1
        assert isinstance(delivery, Delivery), delivery
        entry = entry_of(delivery)
        self.entries.append(entry)
        if writer in SERVICES:
            given[stream] = number
            columns = (message.type, entry.sha256, envelope.time, envelope.causation_id, self.now, True)
            self.rows.setdefault(writer, []).append(Row(envelope.id, *stream, number, *columns))

    def kernel(self, service: str) -> Kernel:
        heard = {topic.name for topic in LISTENS[service]}
        mine = [entry for entry in self.entries if entry.topic in heard]
        return Kernel(
            outbox=tuple(self.rows.get(service, ())),
            sequences=dict(self.sequences.get(service, {})) if service in self.rows else {},
            inbox={(entry.topic, entry.event_id): entry.sha256 for entry in mine},
            positions={
                (each.topic, each.key): each.sequence
                for each in mine
                if topic_named(each.topic).is_event_stream
            },
        )

    def history(self, **changes: Any) -> History:
        fields = {
            "began_at": READ_AT - timedelta(seconds=5),
            "read_at": READ_AT,
            "entries": tuple(
                sorted(self.entries, key=lambda each: (each.topic, each.partition, each.offset))
            ),
            "kernels": {service: self.kernel(service) for service in SERVICES},
            "snapshot": a_snapshot(),
            "store": a_store(),
        }
        return History(**fields | changes)


def scheduled(attempt: int, resume: BundleRef | None = None) -> JobScheduled:
    return JobScheduled(
        **JOB,
        attempt=attempt,
        spec=a_job_spec(),
        base_sha=a_sha("tiny"),
        dataset=a_dataset_ref(),
        config_hash=a_sha("config"),
        resume=resume,
        pool="cpu-spot",
        capacity_type=CapacityType.SPOT,
        nodes=1,
        devices_per_node=1,
        grace_seconds=30,
        start_deadline=NOON + timedelta(minutes=5),
    )


def queued() -> JobQueued:
    return JobQueued(
        **JOB, dataset=a_dataset_ref(), config_hash=a_sha("config"), num_steps=600, waiting_for="a node"
    )


def submitted() -> JobSubmitted:
    return JobSubmitted(**JOB, dataset_id="ds-1", spec=a_job_spec(), submitted_at=NOON)


def running(attempt: int = 1) -> JobRunning:
    return JobRunning(**JOB, attempt=attempt)


def stopping(attempt: int = 1) -> JobStopping:
    return JobStopping(
        **JOB, attempt=attempt, reason=StopReason.PREEMPT, deadline=NOON + timedelta(minutes=1)
    )


def requeued(resume: BundleRef | None = EMERGENCY, attempt: int = 1) -> JobRequeued:
    return JobRequeued(
        **JOB,
        attempt=attempt,
        failure_class=FailureClass.PREEMPTED,
        resume=resume,
        not_before=NOON,
        message="taken back",
    )


def evaluating(attempt: int = 2) -> JobEvaluating:
    fields = Artifact(
        **JOB,
        attempt=attempt,
        bundle=FINAL,
        dataset=a_dataset_ref(),
        config_hash=a_sha("config"),
        base_model="tiny",
        base_sha=a_sha("tiny"),
        template_sha256=a_sha("template"),
        kind="adapter",
        rank=32,
        full_name="ft:tiny:acme:test:",
        auto_deploy=True,
        holdout=None,
        gate=GateSpec(),
        benchmarks={},
        suites={},
    )
    return JobEvaluating(**fields.model_dump())


def succeeded() -> JobSucceeded:
    return JobSucceeded(
        **JOB,
        fine_tuned_model=MODEL.full_name,
        model_id=MODEL.model_id,
        promoted=True,
        deployed=True,
        message="passed the gate and is served",
    )


def provisioned(attempt: int = 1) -> NodesProvisioned:
    return NodesProvisioned(
        **JOB, attempt=attempt, pool="cpu-spot", capacity_type=CapacityType.SPOT, nodes=()
    )


def capacity(nodes: int = 2) -> PoolCapacityChanged:
    return PoolCapacityChanged(
        pool="cpu-spot",
        capacity_type=CapacityType.SPOT,
        nodes=nodes,
        free=nodes,
        devices_per_node=1,
        price_per_hour=1,
    )


def runner_started(attempt: int = 1) -> RunnerStarted:
    return RunnerStarted(**JOB, attempt=attempt, node_index=0, host="127.0.0.1", port=1, node_id="n-0")


def dataset_ready() -> DatasetReady:
    known = a_dataset()
    assert known.counts is not None
    return DatasetReady(
        dataset_id="ds-1",
        tenant=TENANT,
        dataset_version=a_sha("dataset"),
        manifest_sha256=a_sha("dataset manifest"),
        base_sha=a_sha("tiny"),
        template_sha256=a_sha("template"),
        counts=known.counts,
        benchmarks={},
        suites={},
        files=known.files,
    )


def first_attempt(publisher: Publisher) -> None:
    """Up to the place in the queue that it came back to."""
    publisher.publish("registry", incoming.base_registered())
    publisher.publish("provisioner", capacity())
    publisher.publish("ingest", dataset_ready())
    submit = publisher.publish("gateway", SubmitJob(**JOB, dataset_id="ds-1", spec=a_job_spec()))
    publisher.publish("scheduler", submitted(), cause=submit)
    publisher.publish("scheduler", queued())
    began = publisher.publish("scheduler", scheduled(1))
    publisher.publish("provisioner", provisioned(), cause=began)
    publisher.publish("runner", runner_started())
    started = publisher.publish("trainer_agent", incoming.started())
    publisher.publish("scheduler", running(), cause=started)
    publisher.publish("scheduler", stopping())
    publisher.publish("trainer_agent", incoming.written(EMERGENCY))
    publisher.publish("trainer_agent", incoming.stopped(EMERGENCY, last_step=20))
    publisher.publish("checkpoint_watcher", incoming.verified(EMERGENCY))
    gone = publisher.publish("provisioner", incoming.released())
    publisher.publish("scheduler", requeued(), cause=gone)


def second_attempt(publisher: Publisher) -> None:
    final = replace_attempt(FINAL)
    publisher.publish("scheduler", scheduled(2, EMERGENCY))
    publisher.publish("provisioner", provisioned(2))
    publisher.publish("trainer_agent", incoming.started(attempt=2))
    publisher.publish("scheduler", running(2))
    publisher.publish("trainer_agent", incoming.written(final, attempt=2))
    publisher.publish("trainer_agent", incoming.completed(final, attempt=2))
    checked = publisher.publish("checkpoint_watcher", incoming.verified(final))
    publisher.publish("scheduler", evaluating(), cause=checked)
    publisher.publish("provisioner", incoming.released(attempt=2))
    publisher.publish("registry", incoming.registered())
    publisher.publish("evaluator", incoming.eval_passed())
    publisher.publish("registry", incoming.promoted())
    publisher.publish("scheduler", succeeded())


def replace_attempt(bundle: BundleRef) -> BundleRef:
    return bundle.model_copy(update={"attempt": 2})


def the_story() -> Publisher:
    publisher = Publisher()
    first_attempt(publisher)
    second_attempt(publisher)
    return publisher


def a_history(**changes: Any) -> History:
    """Nothing is wrong with it."""
    return the_story().history(**changes)


def history_of(*steps: Callable[[Publisher], None]) -> History:
    """As far as these steps go, with a scheduler that is in no state that they would contradict."""
    publisher = Publisher()
    for step in steps:
        step(publisher)
    return publisher.history(snapshot=Snapshot())


def a_model(**changes: Any) -> ModelVersion:
    fields = {
        "model_id": MODEL.model_id,
        "tenant": TENANT,
        "job_id": "ftjob-1",
        "digest": MODEL.digest,
        "base_sha": a_sha("tiny"),
        "dataset_version": a_sha("dataset"),
        "config_hash": a_sha("config"),
        "bundle": replace_attempt(FINAL),
        "stage": "staging",
        "eval_id": "ev-1",
        "is_archived": False,
    }
    return ModelVersion(**fields | changes)


def a_route(**changes: Any) -> Route:
    fields = {
        "tenant": TENANT,
        "slot": MODEL.full_name,
        "generation": 1,
        "model_id": MODEL.model_id,
        "digest": MODEL.digest,
        "base_sha": a_sha("tiny"),
        "served_name": SERVED,
        "is_adapter": True,
        "replicas": (("serve-0", "i-1"),),
    }
    return Route(**fields | changes)


def a_replica(**changes: Any) -> Replica:
    fields = {"replica_id": "serve-0", "incarnation": "i-1", "phase": "ready"}
    return Replica(**{"loaded": frozenset({SERVED})} | fields | changes)


def a_verdict(**changes: Any) -> Evaluation:
    fields = {"eval_id": "ev-1", "state": "passed", "digest": MODEL.digest}
    return Evaluation(**{"base_sha": a_sha("tiny")} | fields | changes)


def a_snapshot(**changes: Any) -> Snapshot:
    """What the tables say at the end of the stream."""
    fields: dict[str, Any] = {
        "jobs": {"ftjob-1": Job("ftjob-1", TENANT, "succeeded", 2, a_sha("config"))},
        "pools": {"cpu-spot": 2},
        "checkpoints": (
            Checkpoint("ftjob-1", EMERGENCY, "verified"),
            Checkpoint("ftjob-1", replace_attempt(FINAL), "verified"),
        ),
        "watched": {"ftjob-1": (2, False)},
        "datasets": {a_sha("dataset"): ("ready", a_sha("dataset manifest"))},
        "base_models": {a_sha("tiny"): a_sha("manifest")},
        "models": (a_model(),),
        "evaluations": {"ev-1": a_verdict()},
        "files": (a_file_ref(),),
        "generations": (Generation(TENANT, MODEL.full_name, 1, MODEL.model_id, MODEL.digest),),
        "routes": (a_route(),),
        "expected_loaded": frozenset({SERVED}),
        "replicas": (a_replica(),),
        "desired_versions": (DesiredVersion(TENANT, MODEL.full_name, MODEL.digest),),
        "expiring": frozenset({"ftjob-1"}),
    }
    return Snapshot(**fields | changes)


def bundle_key(bundle: BundleRef, path: str = layout.MANIFEST) -> str:
    return layout.checkpoint("ftjob-1", bundle.attempt, bundle.step, path)


def a_store() -> Store:
    """One part in each manifest."""
    manifests = {
        layout.dataset(a_sha("dataset")): a_sha("dataset manifest"),
        layout.base_model(a_sha("tiny")): a_sha("manifest"),
        layout.model(MODEL.digest): a_sha("model manifest"),
        bundle_key(EMERGENCY): EMERGENCY.manifest_sha256,
        bundle_key(replace_attempt(FINAL)): FINAL.manifest_sha256,
    }
    parts = {key: Part(key.replace(layout.MANIFEST, "parts/1"), 100, a_sha("part")) for key in manifests}
    file = a_file_ref()
    sizes = {layout.blob(file.sha256): file.size_bytes}
    sizes |= {part.key: part.size_bytes for part in parts.values()} | dict.fromkeys(manifests, 10)
    return Store(sizes, {key: Manifest(sha256, (parts[key],)) for key, sha256 in manifests.items()})


def alarms(history: History, limits: Limits = LIMITS) -> dict[str, list[Finding]]:
    """What each invariant found, by its number."""
    by_invariant: dict[str, list[Finding]] = {}
    for finding in check(history, limits):
        by_invariant.setdefault(finding.invariant.split()[0], []).append(finding)
    return by_invariant


def with_kernel(history: History, service: str, **changes: Any) -> History:
    kernels = {**history.kernels, service: replace(history.kernels[service], **changes)}
    return replace(history, kernels=kernels)


def without(history: History, event_type: str) -> History:
    """The records of that type are not in their topic."""
    return replace(history, entries=tuple(entry for entry in history.entries if entry.type != event_type))


def with_entry(history: History, old: Entry, *new: Entry) -> History:
    """`new` instead of `old`."""
    index = history.entries.index(old)
    return replace(history, entries=(*history.entries[:index], *new, *history.entries[index + 1 :]))


def the_entry(history: History, event_type: str) -> Entry:
    """The first one of that type."""
    return next(entry for entry in history.entries if entry.type == event_type)
