"""What the record of an attempt, its Job and its pods say together."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from services.provisioner.backends.kubernetes.manifest import (
    ATTEMPT,
    FORGOTTEN,
    INDEX,
    NOTICE,
    QUEUE,
    UNRECORDED,
)
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState

SOURCES: Mapping[str, str] = {
    "PreemptionByScheduler": "preemption",
    "EvictionByEvictionAPI": "eviction",
    "DeletionByTaintManager": "taint",
}
"""What gave the notice, by the reason of a pod's condition DisruptionTarget."""
MOST_REASONS = 2
"""Of pods of one attempt, that are announced."""
KILLED = 128 + 9
LOST = "DeletionByPodGC"
"""Reason of the condition DisruptionTarget where the machine does not exist any more."""


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    attempt: str
    index: int
    phase: str
    created_at: str = ""
    host: str = ""
    address: str = ""
    scheduled_at: datetime | None = None
    waiting_for: str = ""
    """Why it is not scheduled, in the scheduler's words."""
    has_started: bool = False
    ends_at: datetime | None = None
    """When its grace ends; None while nobody has deleted it."""
    grace_seconds: int = 0
    """The grace that it was deleted with, which counts from when it was deleted first."""
    disruption: str = ""
    """Reason of its condition DisruptionTarget."""
    exit_code: int | None = None
    notice: datetime | None = None
    """When the platform ends it."""
    is_recorded: bool = True
    """Whether it may go away for all that we know."""

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing of it runs, and nothing will."""
        return self.phase in {"Succeeded", "Failed"} or (self.ends_at is not None and not self.host)

    def grace_until(self, deadline: datetime, *, now: datetime) -> float | None:
        """Return the grace in seconds with which a deletion ends it at the deadline; None where it ends by then.

        Kubernetes counts a shorter grace from the first deletion, so what is left of the time would end it earlier.
        """
        if self.ends_at is None:
            return (deadline - now).total_seconds()
        if deadline >= self.ends_at:
            return None
        return (deadline - self.ends_at).total_seconds() + self.grace_seconds

    @property
    def is_asked(self) -> bool:
        return self.ends_at is not None and not self.is_quiet


@dataclass(frozen=True)
class Job:
    name: str
    is_suspended: bool = False
    queue: str = ""
    is_over: bool = False


@dataclass(frozen=True)
class Record:
    name: str
    digest: str = ""
    nodes: int = 0
    was_submitted: bool = False
    """Whether its Job was created."""
    is_stopped: bool = False
    forgotten_on: str = ""
    has_keys: bool = False
    was_taken_back: bool = False
    """Whether its queue suspended the Job after it had begun; it was deleted then."""
    seen: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Node -> where it runs or ran, and how it ended."""


@dataclass(frozen=True)
class Attempt:
    """All that the cluster has of an attempt."""

    record: Record
    job: Job | None = None
    pods: tuple[Pod, ...] = ()

    @property
    def is_taken_back(self) -> bool:
        """Return whether its queue has suspended what had machines already."""
        is_suspended = self.job is not None and self.job.is_suspended
        return self.record.was_taken_back or (is_suspended and any(pod.host for pod in self.pods))

    def pod(self, index: int) -> Pod | None:
        """Return the node's pod, the first if there are several: an index runs once."""
        return next((pod for pod in self.pods if pod.index == index), None)


def parse_pod(content: Mapping[str, Any]) -> Pod:
    metadata, status = content["metadata"], content.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    scheduled, disruption = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    containers = [each.get("state", {}) for each in status.get("containerStatuses", ())]
    codes = [state["terminated"]["exitCode"] for state in containers if "terminated" in state]
    notice = metadata.get("annotations", {}).get(NOTICE)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        attempt=metadata["labels"].get(ATTEMPT, ""),
        index=int(metadata["labels"].get(INDEX, 0)),
        phase=status.get("phase", "Pending"),
        created_at=metadata.get("creationTimestamp", ""),
        host=content["spec"].get("nodeName", ""),
        address=status.get("podIP", ""),
        scheduled_at=_time(scheduled.get("lastTransitionTime"))
        if scheduled.get("status") == "True"
        else None,
        waiting_for=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        has_started=any("running" in state or "terminated" in state for state in containers),
        ends_at=_time(metadata.get("deletionTimestamp")),
        grace_seconds=metadata.get("deletionGracePeriodSeconds") or 0,
        disruption=disruption.get("reason", "") if disruption.get("status") == "True" else "",
        exit_code=codes[0] if codes else None,
        notice=_time(notice),
        is_recorded=UNRECORDED not in metadata.get("finalizers", ()),
    )


def parse_job(content: Mapping[str, Any]) -> Job:
    conditions = content.get("status", {}).get("conditions", ())
    return Job(
        name=content["metadata"]["name"],
        is_suspended=bool(content["spec"].get("suspend")),
        queue=content["metadata"]["labels"].get(QUEUE, ""),
        is_over=any(
            each["type"] in {"Complete", "Failed"} and each["status"] == "True" for each in conditions
        ),
    )


def parse_record(content: Mapping[str, Any]) -> Record:
    data = content.get("data") or {}
    nodes = int(data.get("nodes", 0))
    return Record(
        name=content["metadata"]["name"],
        digest=data.get("digest", ""),
        nodes=nodes,
        was_submitted="submitted" in data,
        is_stopped="stopped" in data,
        was_taken_back="taken-back" in data,
        has_keys="keyed" in data,
        forgotten_on=content["metadata"].get("labels", {}).get(FORGOTTEN, ""),
        seen={index: json.loads(data[f"node-{index}"]) for index in range(nodes) if f"node-{index}" in data},
    )


def status_of(
    attempt: Attempt, lost: Collection[str], *, now: datetime, gang_wait: timedelta
) -> AttemptStatus:
    """`lost`: machines that nobody hears of. `gang_wait`: how long part of a gang waits for the rest."""
    members = tuple(_member(attempt, index, lost) for index in range(attempt.record.nodes))
    if any(member.state is MemberState.ENDED for member in members):
        members = tuple(map(_not_queued, members))
    if not any(member.state is MemberState.QUEUED for member in members):
        return AttemptStatus(attempt.record.name, members, has_keys=attempt.record.has_keys)
    waiting_for = _reasons(attempt) or _queue(attempt.job) or _addresses(attempt)
    refusal = _refusal(attempt, waiting_for, now, gang_wait)
    has_keys = attempt.record.has_keys
    return AttemptStatus(attempt.record.name, members, waiting_for, refusal, has_keys=has_keys)


def seen_of(member: Member) -> Mapping[str, Any]:
    """Return what is recorded of a member: where it runs, and how it ended."""
    if member.state is not MemberState.ENDED:
        return {"host": member.host}
    notice = member.notice_deadline.isoformat() if member.notice_deadline else None
    ended = {"exit_code": member.exit_code, "cause": member.cause, "notice": notice}
    return {"host": member.host, "ended": ended | {"source": member.notice_source}}


def _not_queued(member: Member) -> Member:
    """Of an attempt that has lost a node already: nobody is to wait until it has all of them."""
    return replace(member, state=MemberState.STARTING) if member.state is MemberState.QUEUED else member


def _reasons(attempt: Attempt) -> str:
    """Return the scheduler's words for pods without a machine; of a gang those that have room wait for the others."""
    reasons = {pod.waiting_for: None for pod in attempt.pods if pod.waiting_for and not pod.is_quiet}
    return "; ".join([*reasons][:MOST_REASONS])


def _queue(job: Job | None) -> str:
    return f"suspended in queue {job.queue}" if job is not None and job.is_suspended and job.queue else ""


def _addresses(attempt: Attempt) -> str:
    """Return what a gang waits for that has all its machines: its processes meet at addresses of the cluster's."""
    names = [pod.name for pod in attempt.pods if pod.host and not pod.address and not pod.is_quiet]
    return f"{' and '.join(names)} to have an address" if names else ""


def _refusal(attempt: Attempt, waiting_for: str, now: datetime, gang_wait: timedelta) -> str:
    """Return why to give up where part of a gang has held its machines too long: another part may wait for them."""
    times = [pod.scheduled_at for pod in attempt.pods if pod.scheduled_at and not pod.is_quiet]
    if not times or now - min(times) < gang_wait:
        return ""
    waited = f"{len(times)} of {attempt.record.nodes} nodes have waited {gang_wait.total_seconds():g} s"
    return f"{waited} for the others: {waiting_for or 'Kubernetes does not say why'}"


def _member(attempt: Attempt, index: int, lost: Collection[str]) -> Member:
    seen = attempt.record.seen.get(index, {})
    if ended := seen.get("ended"):
        return Member(
            index,
            MemberState.ENDED,
            exit_code=ended["exit_code"],
            notice_deadline=_time(ended["notice"]),
            notice_source=ended["source"],
            cause=Cause(ended["cause"]),
            host=seen["host"],
            has_lost_machine=ended["cause"] == Cause.NODE_LOST,
        )
    pod = attempt.pod(index)
    if pod is None:
        return _without_pod(attempt, index, seen.get("host", ""))
    member = Member(index, MemberState.QUEUED, host=pod.host, address=pod.address)
    member = _with_notice(member, pod, attempt)
    if pod.is_quiet:
        code, cause = _end(pod, attempt)
        is_lost = cause is Cause.NODE_LOST
        return replace(member, state=MemberState.ENDED, exit_code=code, cause=cause, has_lost_machine=is_lost)
    if pod.ends_at is not None and pod.host in lost:
        return Member(index, MemberState.ENDED, cause=Cause.NODE_LOST, host=pod.host, has_lost_machine=True)
    if not pod.host or (attempt.record.nodes > 1 and not pod.address):
        return member
    return replace(member, state=MemberState.RUNNING if pod.has_started else MemberState.STARTING)


def _without_pod(attempt: Attempt, index: int, host: str) -> Member:
    """Of a node whose pod is not there: not yet, or nobody knows where it went."""
    if attempt.job is None and not attempt.record.was_submitted:
        return Member(index, MemberState.STARTING)
    if attempt.job is None:
        return Member(index, MemberState.ENDED, cause=Cause.UNKNOWN if host else Cause.CANCELLED, host=host)
    if attempt.job.is_over:
        return Member(index, MemberState.ENDED, cause=Cause.NODE_LOST, host=host)
    return Member(index, MemberState.QUEUED)


def _end(pod: Pod, attempt: Attempt) -> tuple[int | None, Cause]:
    """Return the exit code and the cause. A code says nothing where the kubelet has killed the runner."""
    was_killed = pod.exit_code == KILLED and pod.ends_at is not None
    code = None if was_killed else pod.exit_code
    if pod.disruption == LOST:
        return code, Cause.NODE_LOST
    if pod.disruption or (pod.ends_at is not None and attempt.is_taken_back):
        return code, Cause.PREEMPTED
    if code is not None:
        return code, Cause.EXITED
    return None, Cause.CANCELLED if pod.ends_at is not None else Cause.NODE_LOST


def _with_notice(member: Member, pod: Pod, attempt: Attempt) -> Member:
    """Give the member the notice of whoever deleted the pod; that of the platform is the platform's own."""
    if pod.notice is not None and (not pod.disruption or pod.ends_at is None or pod.notice <= pod.ends_at):
        return replace(member, notice_deadline=pod.notice)
    if pod.ends_at is None or not pod.host:
        return member
    source = "suspension" if attempt.is_taken_back else SOURCES.get(pod.disruption, "deletion")
    return replace(member, notice_deadline=pod.ends_at, notice_source=source)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
