"""Pure decisions of the control side: claims of runners become facts, or are dropped with a reason.

Every decision takes the attempt as it is stored. Facts of different topics come in any order, so each
decision looks at all that is known and not at which message was the last piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from schemas.base import FailureClass, Message
from schemas.envelope import Origin
from schemas.job import JobScheduled, JobStopping, StopReason
from schemas.node import AllocatedNode, NodesProvisioned, NodesReleased
from schemas.training import (
    BundleUploaded,
    CheckpointWritten,
    RunnerPrepared,
    RunnerReport,
    RunnerStarted,
    RunnerStopped,
    StartTraining,
    StepReached,
    StopTraining,
    TrainingCompleted,
    TrainingFailed,
    TrainingPrepared,
    TrainingResumed,
    TrainingStarted,
    TrainingStopped,
)
from services.trainer_agent.model import Attempt, AttemptState, Claim, Runner, Stop

SILENCE = timedelta(seconds=30)
"""Time after which a runner that a listening control side did not hear has gone or is cut off."""


class Purpose(StrEnum):
    """Why the reports are read to their present end before something is decided."""

    SILENCE = "silence"
    RELEASE = "release"


@dataclass(frozen=True)
class Decision:
    attempt: Attempt
    messages: tuple[Message, ...] = ()
    dropped: str = ""
    """Reason why a claim made no fact; recorded with the claim."""
    listen_until: datetime | None = None
    """Time at which to look for silent runners."""
    read_reports: Purpose | None = None


@dataclass(frozen=True)
class Directives:
    """What one runner shall do."""

    start: StartTraining | None = None
    stop: StopTraining | None = None


def directives_for(
    attempt: Attempt, node_index: int, *, report_id: str, now: datetime, newest: int
) -> Directives:
    """Return what the runner shall do whose RunnerStarted has this event id. `newest`: number of the newest attempt.

    Only the runner that passed the barrier is to start: one that began again on an empty disk is another one.
    """
    runner = attempt.runner(node_index)
    is_known = runner is not None and runner.report_id == report_id
    is_over = attempt.number < newest or not attempt.is_open or attempt.nodes_released
    stop = attempt.stop or (Stop(StopReason.FAILURE, now) if is_over and not is_known else None)
    has_started = attempt.state is AttemptState.TRAINING and is_known
    return Directives(
        start=_start_directive(attempt) if has_started else None,
        stop=_stop_directive(attempt, stop) if stop else None,
    )


def on_job_scheduled(attempt: Attempt, event: JobScheduled, origin: Origin) -> Decision:
    return Decision(replace(attempt, order=event, origin=origin))


def on_superseded(attempt: Attempt) -> Decision:
    """End an old attempt that is still open: a newer attempt of the job was scheduled."""
    if not attempt.is_open:
        return Decision(attempt)
    return _close_without_word(attempt, "a newer attempt of the job was scheduled")


def on_job_stopping(attempt: Attempt, event: JobStopping) -> Decision:
    """Relay the stop, and relay it again whenever its reason or deadline changes."""
    stop = Stop(event.reason, event.deadline)
    if stop == attempt.stop:
        return Decision(attempt)
    stopping = replace(attempt, stop=stop)
    return Decision(stopping, (_stop_directive(stopping, stop),))


def on_nodes_provisioned(attempt: Attempt, event: NodesProvisioned) -> Decision:
    return Decision(_with_nodes(attempt, event.nodes))


def on_provisioning_failed(attempt: Attempt) -> Decision:
    """Record that the attempt has no nodes: what their runners claimed until they were removed counts for nothing."""
    return Decision(replace(attempt, nodes=()))


def on_nodes_released(attempt: Attempt, event: NodesReleased) -> Decision:
    known = _with_nodes(attempt, event.nodes) if attempt.nodes is None else attempt
    released = replace(known, nodes_released=True)
    return Decision(released, read_reports=Purpose.RELEASE if released.is_open else None)


def on_claim(attempt: Attempt, claim: Claim, *, now: datetime, newest: int) -> Decision:
    """Decide about a runner's claim. `newest`: number of the job's newest attempt."""
    if reason := why_not_signed(attempt.public_keys, claim):
        return Decision(attempt, dropped=reason)
    match claim.report:
        case RunnerStarted() as started:
            return on_runner_started(attempt, started, report_id=claim.event_id, now=now, newest=newest)
        case RunnerPrepared() as prepared:
            return on_runner_prepared(attempt, prepared, newest=newest)
        case StepReached() as reached:
            return on_step_reached(attempt, reached, newest=newest)
        case BundleUploaded() as uploaded:
            return on_bundle_uploaded(attempt, uploaded, newest=newest)
        case RunnerStopped() as stopped:
            return on_runner_stopped(attempt, stopped, newest=newest)
    raise AssertionError(f"no decision about {claim.report.type}")


def why_not_signed(public_keys: Sequence[str] | None, claim: Claim) -> str:
    """Return why nothing proves that the claim is of the node that it names; empty where its signature does.

    Nodes without keys are asked for nothing, and neither is a claim that an older release has kept.
    """
    if public_keys is None or claim.signed is None:
        return ""
    index = claim.report.node_index
    if index < len(public_keys) and claim.signed.is_by(public_keys[index]):
        return ""
    return f"not signed by node {index} of the attempt"


def on_runner_started(
    attempt: Attempt, claim: RunnerStarted, *, report_id: str, now: datetime, newest: int
) -> Decision:
    if claim.attempt < newest or not attempt.is_open or attempt.stop:
        return _answer_with_stop(attempt, claim, now=now)
    if reason := _why_not_its_own(attempt, claim, node_id=claim.node_id):
        return Decision(attempt, dropped=reason)
    runner = attempt.runner(claim.node_index)
    if runner and runner.report_id == report_id:
        return Decision(attempt)  # the same report, come again
    if attempt.state is AttemptState.TRAINING:
        return _on_second_start(attempt, claim)
    if reason := _why_not_its_address(attempt, claim):
        return replace(_fail(attempt, FailureClass.INFRA, reason, node_id=claim.node_id), dropped=reason)
    known = attempt.with_runner(
        Runner(
            claim.node_index,
            claim.node_id,
            claim.host,
            claim.port,
            report_id,
            seen_at=now,
            certificate=claim.certificate,
        )
    )
    return replace(_start_if_complete(known), listen_until=None if attempt.runners else now + SILENCE)


def on_runner_prepared(attempt: Attempt, claim: RunnerPrepared, *, newest: int) -> Decision:
    if reason := _why_void(attempt, claim, newest=newest):
        return Decision(attempt, dropped=reason)
    return Decision(attempt, (TrainingPrepared(**_who(attempt), preparation=claim.preparation),))


def on_step_reached(attempt: Attempt, claim: StepReached, *, newest: int) -> Decision:
    if reason := _why_void(attempt, claim, newest=newest):
        return Decision(attempt, dropped=reason)
    reached = replace(attempt, last_step=max(attempt.last_step, claim.step))
    if claim.certificate is None:
        return Decision(reached)
    return Decision(reached, (TrainingResumed(**_who(attempt), certificate=claim.certificate),))


def on_bundle_uploaded(attempt: Attempt, claim: BundleUploaded, *, newest: int) -> Decision:
    if reason := _why_void(attempt, claim, newest=newest):
        return Decision(attempt, dropped=reason)
    if claim.bundle.attempt != attempt.number:
        reason = f"a bundle of attempt {claim.bundle.attempt} claimed by attempt {attempt.number}"
        return Decision(attempt, dropped=reason)
    fact = CheckpointWritten(
        **_who(attempt),
        bundle=claim.bundle,
        kind=claim.kind,
        metrics=dict(claim.metrics),
        best=claim.best,
    )
    step = max(attempt.last_step, claim.bundle.step)
    return Decision(replace(attempt, last_step=step, last_bundle=claim.bundle), (fact,))


def on_runner_stopped(attempt: Attempt, claim: RunnerStopped, *, newest: int) -> Decision:
    if reason := _why_void(attempt, claim, newest=newest):
        return Decision(attempt, dropped=reason)
    runner = attempt.runner(claim.node_index)
    heard = attempt.with_runner(replace(runner, has_stopped=True)) if runner else attempt
    heard = replace(heard, last_step=max(heard.last_step, claim.last_step))
    if claim.node_index == 0:
        return _close_on_word_of_runner_0(heard, claim)
    if claim.outcome == "failed":
        return _fail_by_claim(heard, claim)
    if heard.state is AttemptState.GATHERING:
        return _fail(heard, FailureClass.PREEMPTED, f"runner {claim.node_index} stopped before the start")
    return Decision(heard)


def on_silence_due(attempt: Attempt, *, now: datetime, listening_since: datetime) -> Decision:
    """Decide when the listening timer fires. Nobody is called silent before the reports are read to their end."""
    due = _silent_at(attempt, listening_since=listening_since)
    if due is None:
        return Decision(attempt)
    if due > now:
        return Decision(attempt, listen_until=due)
    return Decision(attempt, read_reports=Purpose.SILENCE)


def on_reports_read(
    attempt: Attempt, purpose: Purpose, *, now: datetime, listening_since: datetime
) -> Decision:
    """Decide once all reports are applied that were in the log when their reading was asked for."""
    if not attempt.is_open:
        return Decision(attempt)
    if purpose is Purpose.RELEASE:
        return _close_without_word(attempt, "its nodes are gone and runner 0 said nothing of its end")
    due = _silent_at(attempt, listening_since=listening_since)
    if due is None or due > now:
        return Decision(attempt, listen_until=due)
    silent = sorted(runner.node_index for runner in attempt.runners if runner.seen_at + SILENCE <= now)
    message = f"no report from runner {', '.join(map(str, silent))} for {SILENCE.seconds} s"
    return _fail(attempt, FailureClass.INFRA, message)


def _start_if_complete(attempt: Attempt) -> Decision:
    """Start training at the gang barrier: with all runners of the attempt or none."""
    order = attempt.order
    if order is None or attempt.state is not AttemptState.GATHERING or attempt.stop or attempt.failure:
        return Decision(attempt)
    if not attempt.is_complete:
        return Decision(attempt)
    members = tuple(member.model_copy(update={"certificate": None}) for member in attempt.members)
    started = TrainingStarted(**_who(attempt), members=members)
    return Decision(attempt.to(AttemptState.TRAINING), (_start_directive(attempt), started))


def _start_directive(attempt: Attempt) -> StartTraining:
    order = attempt.order
    assert order is not None, "asked of attempts that were scheduled"
    return StartTraining(
        **_who(attempt),
        recipe=order.spec.recipe,
        base_sha=order.base_sha,
        dataset=order.dataset,
        config_hash=order.config_hash,
        resume=order.resume,
        nodes=order.nodes,
        devices_per_node=order.devices_per_node,
        members=attempt.members,
        grace_seconds=order.grace_seconds,
        device=order.device,
        start_from=order.start_from,
        steps_before=order.steps_before,
    )


def _on_second_start(attempt: Attempt, claim: RunnerStarted) -> Decision:
    message = f"runner {claim.node_index} started again after training began"
    return replace(_fail(attempt, FailureClass.INFRA, message), dropped=message)


def _answer_with_stop(attempt: Attempt, claim: RunnerStarted, *, now: datetime) -> Decision:
    stop = attempt.stop if attempt.is_open and attempt.stop else Stop(StopReason.FAILURE, now)
    reason = f"attempt {claim.attempt} is stopping or has ended"
    return Decision(attempt, (_stop_directive(attempt, stop),), dropped=reason)


def _why_void(attempt: Attempt, claim: RunnerReport, *, newest: int) -> str:
    if claim.attempt < newest:
        return f"claim of attempt {claim.attempt}, attempt {newest} is the newest"
    if not attempt.is_open:
        return f"attempt {claim.attempt} has had its last fact"
    return _why_not_its_own(attempt, claim)


def _why_not_its_own(attempt: Attempt, claim: RunnerReport, *, node_id: str | None = None) -> str:
    """Return why a claim does not count: it is for another tenant, or from a node that the attempt does not have."""
    if claim.tenant != attempt.tenant:
        return f"claim for tenant {claim.tenant}, the job is of {attempt.tenant}"
    if not attempt.has_node(claim.node_index, node_id):
        return f"claim of node {claim.node_index} ({node_id or 'no id'}), the attempt has {attempt.nodes}"
    return ""


def _why_not_its_address(attempt: Attempt, claim: RunnerStarted) -> str:
    """Return why the other nodes of the gang would not find it where its cluster backend has it; empty if they do."""
    if attempt.addresses is None or len(attempt.addresses) == 1:
        return ""
    address = attempt.addresses[claim.node_index]
    if claim.host == address:
        return ""
    return f"node {claim.node_id} says that it is reached at {claim.host[:100]}, its cluster backend has {address}"


def _with_nodes(attempt: Attempt, nodes: tuple[AllocatedNode, ...]) -> Attempt:
    by_index = sorted(nodes, key=lambda node: node.index)
    keys = tuple(node.public_key for node in by_index if node.public_key is not None)
    public_keys = keys if keys and len(keys) == len(nodes) else None
    addresses = tuple(node.address for node in by_index if node.address is not None)
    return replace(
        attempt,
        nodes=tuple(node.node_id for node in by_index),
        public_keys=public_keys,
        addresses=addresses if addresses and len(addresses) == len(nodes) else None,
    )


def _close_on_word_of_runner_0(attempt: Attempt, claim: RunnerStopped) -> Decision:
    if claim.outcome == "completed" and claim.bundle is not None:
        done = TrainingCompleted(
            **_who(attempt), bundle=claim.bundle, last_step=claim.last_step, message=claim.message
        )
        return Decision(attempt.to(AttemptState.CLOSED), (done,))
    failed = Decision(attempt)
    if claim.outcome == "completed":
        failed = _fail(attempt, FailureClass.INTERNAL, "runner 0 completed without a final bundle")
    elif claim.outcome == "failed":
        failed = _fail_by_claim(attempt, claim)
    stopped = TrainingStopped(
        **_who(attempt), reason=_reason(failed.attempt), last_step=claim.last_step, bundle=claim.bundle
    )
    return Decision(failed.attempt.to(AttemptState.CLOSED), (*failed.messages, stopped))


def _close_without_word(attempt: Attempt, message: str) -> Decision:
    """End the attempt with what is known: runner 0 will not speak any more."""
    failed = Decision(attempt) if attempt.stop else _fail(attempt, FailureClass.INFRA, message)
    stopped = TrainingStopped(
        **_who(attempt), reason=_reason(failed.attempt), last_step=attempt.furthest_step, bundle=None
    )
    return Decision(failed.attempt.to(AttemptState.CLOSED), (*failed.messages, stopped))


def _fail_by_claim(attempt: Attempt, claim: RunnerStopped) -> Decision:
    """Fail with the claim's class. What a machine did names its node, so that a person knows where to look; but who
    does not hear its peer any more is no evidence against its own machine.
    """
    failure, message = claim.failure_class or FailureClass.INTERNAL, claim.message
    runner = attempt.runner(claim.node_index)
    node_id = runner.node_id if runner else None
    if node_id is not None and failure is FailureClass.INFRA:
        message = f"node {node_id}: {message}"
    is_alone = attempt.nodes is not None and len(attempt.nodes) == 1
    return _fail(
        attempt, failure, message, node_id=None if claim.lost_connection and not is_alone else node_id
    )


def _fail(attempt: Attempt, failure: FailureClass, message: str, *, node_id: str | None = None) -> Decision:
    if attempt.failure is not None:
        return Decision(attempt)
    fact = TrainingFailed(
        **_who(attempt),
        failure_class=failure,
        message=message,
        last_step=attempt.furthest_step,
        node_id=node_id,
    )
    return Decision(replace(attempt, failure=failure), (fact,))


def _reason(attempt: Attempt) -> str:
    if attempt.stop:
        return attempt.stop.reason.value
    return "failure" if attempt.failure else "unasked"


def _silent_at(attempt: Attempt, *, listening_since: datetime) -> datetime | None:
    """Return when the first runner counts as silent; None where nobody is listened to.

    `listening_since`: since when this process can read what runners write; before, it could hear nobody.
    """
    if not attempt.is_open or attempt.stop or attempt.failure or attempt.nodes_released:
        return None
    heard = [max(runner.seen_at, listening_since) for runner in attempt.runners if not runner.has_stopped]
    return min(heard) + SILENCE if heard else None


def _stop_directive(attempt: Attempt, stop: Stop) -> StopTraining:
    return StopTraining(**_who(attempt), reason=stop.reason, deadline=stop.deadline)


def _who(attempt: Attempt) -> dict[str, Any]:
    return {"job_id": attempt.job_id, "tenant": attempt.tenant, "attempt": attempt.number}
