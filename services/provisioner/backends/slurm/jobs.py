"""What Slurm's commands print, as values.

Versions differ: 22.05 prints words and numbers, later ones lists and objects.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from services.provisioner.backends.protocol import Cause

CAUSES: Mapping[str, Cause] = {
    "BOOT_FAIL": Cause.START_TIMEOUT,
    "CANCELLED": Cause.CANCELLED,
    # Of a runner that has left no exit code these say that it is gone, and not how its work ended.
    "COMPLETED": Cause.NODE_LOST,
    "DEADLINE": Cause.START_TIMEOUT,
    "FAILED": Cause.NODE_LOST,
    "NODE_FAIL": Cause.NODE_LOST,
    "OUT_OF_MEMORY": Cause.NODE_LOST,
    "PREEMPTED": Cause.PREEMPTED,
    "REVOKED": Cause.CANCELLED,
    "TIMEOUT": Cause.PREEMPTED,
}
"""Why the runners of a job ended that is in a last state."""

NEVER = frozenset(
    {
        *("BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"),
        *("PartitionNodeLimit", "PartitionTimeLimit"),
        *("AssocMaxNodePerJobLimit", "AssocMaxWallDurationPerJobLimit"),
        *("QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit"),
    }
)
"""Reasons of a pending job that waiting does not cure, unless somebody changes the cluster."""

FULL = (
    "job submit limit",
    "Node count specification invalid",
    "Requested node configuration is not available",
    "temporarily unable to accept job",
)
"""What sbatch says where there is no room for the job, not even in the queue."""


class MachineState(StrEnum):
    UP = "up"
    DRAINING = "draining"  # takes no new job; those that run there continue
    LOST = "lost"  # slurmctld does not hear of it


@dataclass(frozen=True)
class Machine:
    state: MachineState
    address: str
    """Its NodeAddr."""


@dataclass(frozen=True)
class Job:
    id: int
    name: str
    states: frozenset[str]
    """Its state, with `COMPLETING` beside it or, in 22.05, in its place."""
    reason: str = ""
    comment: str = ""
    preempted_at: datetime | None = None
    ends_at: datetime | None = None
    """When Slurm ends it: by its time limit, or after the grace of a preemption."""
    has_limit: bool = False
    machines: str = ""
    """Machines that it has, as Slurm writes them: `n[1-2]`."""

    @property
    def is_pending(self) -> bool:
        return "PENDING" in self.states

    @property
    def is_over(self) -> bool:
        return "COMPLETING" not in self.states and not self.states.isdisjoint(CAUSES)

    @property
    def has_lost_a_node(self) -> bool:
        return "NODE_FAIL" in self.states

    @property
    def cause(self) -> Cause:
        """Why its runners are gone. A job that was preempted may end in any state: its time of preemption tells."""
        if self.preempted_at is not None:
            return Cause.PREEMPTED
        return next((cause for state, cause in CAUSES.items() if state in self.states), Cause.UNKNOWN)


def parse_jobs(text: str) -> list[Job]:
    """Read what `squeue --json` prints. Raises ValueError or KeyError."""
    return [_job(entry) for entry in json.loads(text)["jobs"]]


def parse_machines(text: str) -> dict[str, Machine]:
    """Read what `sinfo --noheader --Node --format=%N|%T|%o` prints."""
    rows = (line.split("|") for line in text.split())
    return {name: Machine(_state(state), address) for name, state, address in rows}


def comment_of(folder: str, digest: str) -> str:
    """Return a job's comment: whose it is, and of which specification. Everybody on the cluster can read it."""
    return json.dumps({"retune": folder, "digest": digest}, sort_keys=True)


def folder_of(comment: str) -> str:
    """Return the folder of the installation whose job has this comment; empty where it is none of ours."""
    try:
        content = json.loads(comment)
    except ValueError:
        return ""
    return str(content.get("retune", "")) if isinstance(content, dict) else ""


def _job(entry: Mapping[str, Any]) -> Job:
    states = entry["job_state"]
    return Job(
        id=entry["job_id"],
        name=entry["name"],
        states=frozenset([states] if isinstance(states, str) else states),
        reason=_word(entry.get("state_reason")),
        comment=entry.get("comment") or "",
        preempted_at=_time(entry.get("preempt_time")),
        ends_at=_time(entry.get("end_time")),
        has_limit=_number(entry.get("time_limit")) is not None,
        machines=entry.get("nodes") or "",
    )


def _word(value: str | None) -> str:
    """Slurm's word; empty where it has none, which it writes as `None`."""
    return "" if value in (None, "None") else value


def _number(value: Any) -> int | None:
    """A number that is set: as it is, or of an object that says so."""
    if isinstance(value, dict):
        return value["number"] if value.get("set") and not value.get("infinite") else None
    return value or None


def _time(value: Any) -> datetime | None:
    seconds = _number(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _state(state: str) -> MachineState:
    if state.endswith("*") or state.startswith(("down", "fail", "unknown")):
        return MachineState.LOST
    return MachineState.DRAINING if state.startswith("drain") else MachineState.UP
