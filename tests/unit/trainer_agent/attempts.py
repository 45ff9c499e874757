"""Attempts, and what is told and claimed of them."""

from datetime import UTC, datetime, timedelta

from schemas.base import BundleRef, CapacityType, DatasetRef, FileRef
from schemas.job import JobScheduled, JobStopping, StopReason
from schemas.node import AllocatedNode, NodesProvisioned, NodesReleased
from schemas.specification import JobSpec
from schemas.topics import AGENT_REPORTS
from schemas.training import (
    BundleKind,
    BundleMetrics,
    BundleUploaded,
    RunnerPrepared,
    RunnerReport,
    RunnerStarted,
    RunnerStopped,
    StepReached,
)
from services.trainer_agent import decide
from services.trainer_agent.decide import Decision
from services.trainer_agent.model import Attempt, AttemptState, Claim, Runner
from shared.record import Record
from shared.signatures import PrivateKey, signed_part
from tests.builders import a_preparation

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
LONG_AGO = NOON - timedelta(days=1)
SHA = "a" * 64
MEASURED = BundleMetrics(train_loss=1.0)
SECOND = timedelta(seconds=1)
WHO = {"job_id": "ftjob-1", "tenant": "acme"}
A_CLAIM = WHO | {"attempt": 1, "node_index": 0}


def a_schedule(*, attempt: int = 1, nodes: int = 2) -> JobScheduled:
    return JobScheduled(
        **WHO,
        attempt=attempt,
        spec=JobSpec(
            base_model="tiny", base_sha=SHA, training_file=FileRef(file_id="file-1", sha256=SHA, size_bytes=1)
        ),
        base_sha=SHA,
        dataset=DatasetRef(version=SHA, manifest_sha256=SHA),
        config_hash=SHA,
        resume=None,
        pool="spot",
        capacity_type=CapacityType.SPOT,
        nodes=nodes,
        devices_per_node=1,
        grace_seconds=30,
        start_deadline=NOON + timedelta(minutes=5),
    )


def a_runner(index: int = 0, *, seen_at: datetime = NOON, has_stopped: bool = False) -> Runner:
    return Runner(
        index,
        f"node-{index}",
        "127.0.0.1",
        4000 + index,
        f"started-{index}",
        seen_at,
        has_stopped=has_stopped,
    )


def an_attempt(*, nodes: int = 2, started: int = 0, **changes: object) -> Attempt:
    runners = tuple(a_runner(index) for index in range(started))
    given = tuple(f"node-{index}" for index in range(nodes))
    fields = {"order": a_schedule(nodes=nodes), "nodes": given, "runners": runners} | changes
    return Attempt("ftjob-1", 1, "acme", **fields)


def in_training(**changes: object) -> Attempt:
    return an_attempt(started=2, **({"state": AttemptState.TRAINING} | changes))


def started(index: int = 0, *, attempt: int = 1, **changes: object) -> RunnerStarted:
    fields = WHO | {"attempt": attempt, "node_index": index, "node_id": f"node-{index}"} | changes
    return RunnerStarted(**{"host": "127.0.0.1", "port": 4000 + index} | fields)


def given(*indices: int) -> tuple[AllocatedNode, ...]:
    return tuple(
        AllocatedNode(node_id=f"node-{index}", index=index, price_per_hour="1", allocated_at=NOON)
        for index in indices
    )


def provisioned(*indices: int) -> NodesProvisioned:
    return NodesProvisioned(
        **WHO, attempt=1, pool="spot", capacity_type=CapacityType.SPOT, nodes=given(*indices)
    )


def released(*indices: int) -> NodesReleased:
    return NodesReleased(**WHO, attempt=1, nodes=given(*indices))


def a_claim(report: RunnerReport, *, signer: PrivateKey | None = None, event_id: str = "e-1") -> Claim:
    """Return the claim as it comes; `signer`: who signs it."""
    key, value = report.key.encode(), report.model_dump_json().encode()
    headers = [("ce_id", event_id.encode())]
    if signer is not None:
        headers = signer.signed(headers, topic=AGENT_REPORTS.name, key=key, value=value)
    record = Record(AGENT_REPORTS.name, 0, 0, key, tuple(headers), value)
    return Claim(event_id, report, signed_part(record))


def on_started(attempt: Attempt, claim: RunnerStarted, *, newest: int = 1, report_id: str = "") -> Decision:
    return decide.on_runner_started(
        attempt, claim, report_id=report_id or f"started-{claim.node_index}", now=NOON, newest=newest
    )


def stopped(index: int = 0, *, outcome: str = "stopped", **changes: object) -> RunnerStopped:
    fields = WHO | {"attempt": 1, "node_index": index, "outcome": outcome, "last_step": 7} | changes
    return RunnerStopped(**fields)


def on_stopped(attempt: Attempt, claim: RunnerStopped, *, newest: int = 1) -> Decision:
    return decide.on_runner_stopped(attempt, claim, newest=newest)


def stopping(*, reason: StopReason = StopReason.CANCEL, seconds: float = 30) -> JobStopping:
    return JobStopping(**WHO, attempt=1, reason=reason, deadline=NOON + timedelta(seconds=seconds))


def a_bundle(*, attempt: int = 1, step: int = 7) -> BundleRef:
    return BundleRef(attempt=attempt, step=step, manifest_sha256=SHA)


def uploaded(**changes: object) -> BundleUploaded:
    fields = {"bundle": a_bundle(), "kind": BundleKind.PERIODIC, "metrics": MEASURED.by_name}
    return BundleUploaded(**(A_CLAIM | fields | changes))


def reached(**changes: object) -> StepReached:
    return StepReached(**(A_CLAIM | {"step": 1, "num_steps": 9} | changes))


def prepared(**changes: object) -> RunnerPrepared:
    return RunnerPrepared(**(A_CLAIM | changes), preparation=a_preparation())


def types(decision: Decision) -> list[type]:
    return [type(message) for message in decision.messages]


def only(decision: Decision, message_type: type) -> object:
    matching = [message for message in decision.messages if isinstance(message, message_type)]
    assert len(matching) == 1, f"expected one {message_type.__name__}, got {types(decision)}"
    return matching[0]
