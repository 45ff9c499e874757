"""What the files of an attempt and its job say together."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from services.provisioner.backends.folders import exit_code, have_keys, nodes_of, notice_deadline, read
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.backends.slurm.jobs import NEVER, Job, Machine, MachineState

LIMIT_SLACK = timedelta(seconds=60)
"""Slurm sends the signal of a time limit by so much too early."""


@dataclass(frozen=True)
class Cluster:
    """Our jobs and the cluster's machines at one moment."""

    jobs: tuple[Job, ...]
    machines: Mapping[str, Machine]
    now: datetime
    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Job's id -> names of its machines, by index of the node."""

    def of(self, name: str) -> list[Job]:
        """Return the jobs of that name, the oldest first: names are not unique."""
        return sorted((job for job in self.jobs if job.name == name), key=lambda job: job.id)

    def job_of(self, root: Path) -> Job | None:
        """Return the attempt's job: the one whose script ran, else the one that was recorded, else the oldest."""
        jobs = self.of(root.name)
        recorded = read(root / "started") or read(root / "job")
        return next((job for job in jobs if str(job.id) == recorded), jobs[0] if jobs else None)

    def address(self, job: Job | None, index: int) -> str:
        """Return the address of the job's machine of that index; empty where slurmctld does not say it."""
        names = self.names.get(job.id, ()) if job is not None else ()
        machine = self.machines.get(names[index]) if index < len(names) else None
        return machine.address if machine else ""


def status_of(root: Path, job: Job | None, cluster: Cluster) -> AttemptStatus:
    nodes = nodes_of(root)
    ended = json.loads(read(root / "ended") or "null")
    if job is not None and job.is_pending and not read(root / "started"):
        members = tuple(Member(index, MemberState.QUEUED) for index in range(len(nodes)))
        refusal = f"Slurm says {job.reason}" if job.reason in NEVER else ""
        return AttemptStatus(root.name, members, job.reason, refusal, has_keys=have_keys(root))
    members = tuple(_member(node, job, ended, cluster) for node in nodes)
    return AttemptStatus(root.name, members, has_keys=have_keys(root))


def end_of(job: Job, cluster: Cluster) -> dict[str, Any]:
    """Return what is kept of a job that is over: why, and which machines were lost then."""
    lost = [name for name, machine in cluster.machines.items() if machine.state is MachineState.LOST]
    return {"cause": job.cause, "lost": sorted(lost), "is_by_machine": job.has_lost_a_node}


def is_quiet(node: Path) -> bool:
    """Return whether the node has said that nothing of its runner is left."""
    return (node / "exit").exists() or (node / "gone").exists()


def may_live(root: Path, job: Job | None) -> bool:
    """Return whether a runner may run on although its job is over or forgotten."""
    if not any(read(node / "host") and not is_quiet(node) for node in nodes_of(root)):
        return False
    ended = json.loads(read(root / "ended") or "null")
    was_seen_to_end = ended is not None and not ended["is_by_machine"]
    return (
        (root / "again").exists()
        or (job is None and not was_seen_to_end)
        or (job is not None and job.has_lost_a_node)
    )


def _member(node: Path, job: Job | None, ended: Mapping[str, Any] | None, cluster: Cluster) -> Member:
    host, code = read(node / "host"), exit_code(node)
    index = int(node.name)
    member = Member(
        index,
        MemberState.STARTING,
        notice_deadline=notice_deadline(node),
        host=host,
        address=cluster.address(job, index),
    )
    if code is not None:
        return replace(member, state=MemberState.ENDED, exit_code=code, cause=Cause.EXITED)
    if ended is not None:
        is_lost = ended["is_by_machine"] and host in ended["lost"]
        return replace(member, state=MemberState.ENDED, cause=_cause(host, ended), has_lost_machine=is_lost)
    if is_quiet(node):
        return replace(member, state=MemberState.ENDED, cause=Cause.CANCELLED)
    if job is None:
        is_asked_for = (node.parent / "job").exists() or (node.parent / "started").exists()
        state = MemberState.ENDED if is_asked_for else MemberState.STARTING
        return replace(member, state=state, cause=Cause.UNKNOWN if is_asked_for else None)
    running = replace(member, state=MemberState.RUNNING) if host else member
    return _with_notice(running, node, job, cluster)


def _cause(host: str, ended: Mapping[str, Any]) -> Cause:
    """Where one machine of several is lost, Slurm ends the others: that is nothing that they did."""
    if ended["is_by_machine"] and ended["lost"] and host not in ended["lost"]:
        return Cause.CANCELLED
    return Cause(ended["cause"])


def _with_notice(member: Member, node: Path, job: Job, cluster: Cluster) -> Member:
    """Give the member the notice that Slurm has given, unless it has an earlier one."""
    notice = _notice(member, node, job, cluster)
    if notice is None or (member.notice_deadline is not None and member.notice_deadline <= notice[0]):
        return member
    return replace(member, notice_deadline=notice[0], notice_source=notice[1])


def _notice(member: Member, node: Path, job: Job, cluster: Cluster) -> tuple[datetime, str] | None:
    grace = timedelta(seconds=json.loads(read(node.parent / "spec.json"))["grace_seconds"])
    if job.preempted_at is not None:
        return max(job.ends_at or job.preempted_at, job.preempted_at), "preemption"
    if job.has_limit and job.ends_at is not None and job.ends_at - cluster.now <= grace + LIMIT_SLACK:
        return job.ends_at, "time limit"
    machine = cluster.machines.get(member.host)
    if machine and machine.state is MachineState.DRAINING and member.notice_deadline is None:
        return cluster.now + grace, "drain"
    return None
