"""What the provisioner asks of a cluster backend, and what it answers. One contract suite runs on every backend.

Names at the cluster backend are attempt names, so that nothing is created twice. Backends never start anything again
on their own: only the scheduler does, under a new attempt number and so a new name.
"""

import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from schemas.base import DeviceKind
from services.provisioner.model import node_id

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class AttemptSpec:
    """What is started: the nodes of an attempt of a job, or the one node of a service's lease."""

    name: str
    """`a-<job>-e<attempt>`, or `r-<digest of the lease>-e1`: a DNS label of at most 52 characters."""
    pool: str
    nodes: int
    devices_per_node: int
    argv: tuple[str, ...]
    job_id: str = ""
    tenant: str = ""
    attempt: int = 0
    lease_id: str = ""
    """Lease that the node is for; empty for an attempt of a job."""
    variables: tuple[str, ...] | None = None
    """Names of those variables of the operator's file for nodes that it gets; None: all."""
    devices: tuple[tuple[int, ...], ...] = ()
    """Numbers of the devices that each node has; a backend that assigns devices itself passes over them."""
    device: DeviceKind | None = None
    """Kind of the devices."""
    env: tuple[tuple[str, str], ...] = ()
    """Secrets are not here: a backend gets them its own way."""
    grace_seconds: float = 30.0
    excluded: tuple[str, ...] = ()
    """Machines that it must not run on, by the names that the backend gives them (`Member.host`)."""

    @property
    def digest(self) -> str:
        """sha256 of all fields: equal names must have equal digests."""
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()

    @property
    def fields(self) -> dict[str, Any]:
        """All fields but those of leases where there is none, which an older release does not know."""
        fields = asdict(self)
        if not self.lease_id:
            del fields["lease_id"], fields["variables"]
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "AttemptSpec":
        """Return the specification whose fields were written as JSON."""
        tuples = {name: tuple(fields[name]) for name in ("argv", "excluded") if name in fields}
        tuples["env"] = tuple((name, value) for name, value in fields["env"])
        if fields.get("variables") is not None:
            tuples["variables"] = tuple(fields["variables"])
        return cls(**{**fields, **tuples})

    def given(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Return what its program gets of the operator's variables for nodes."""
        if self.variables is None:
            return variables
        return {name: value for name, value in variables.items() if name in self.variables}

    def node_env(self, index: int) -> Mapping[str, str]:
        """Return the variables from which a program knows whose node it is."""
        if self.lease_id:
            return {"RUNNER_LEASE_ID": self.lease_id, "RUNNER_NODE_ID": node_id(self.name, index)}
        return {
            "RUNNER_JOB_ID": self.job_id,
            "RUNNER_TENANT": self.tenant,
            "RUNNER_ATTEMPT": str(self.attempt),
            "RUNNER_NODE_INDEX": str(index),
            "RUNNER_NODE_ID": node_id(self.name, index),
        }

    def device_env(self, index: int) -> Mapping[str, str]:
        """Return the variables that leave a node no other devices of its machine than its own."""
        if not self.devices:
            return {}
        numbers = ",".join(map(str, self.devices[index]))
        visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": numbers}
        return {"RUNNER_DEVICES": numbers} | (visible if self.device == DeviceKind.CUDA else {})


class MemberState(StrEnum):
    QUEUED = "queued"  # waits in the backend's own queue; it may stay there for as long as it takes
    STARTING = "starting"  # asked for, its process is not there yet
    RUNNING = "running"
    ENDED = "ended"


class Cause(StrEnum):
    """Why a member ended. Success is no cause: only a runner reports that."""

    EXITED = "exited"  # its runner exited, whatever with
    PREEMPTED = "preempted"  # the backend took it for somebody else, or its time there was over
    NODE_LOST = "node_lost"  # its machine or all of its processes went away; what runs there may run on
    CANCELLED = (
        "cancelled"  # somebody ended it at the backend, or the backend itself because of another member
    )
    START_TIMEOUT = "start_timeout"  # the backend gave up to start it
    UNKNOWN = "unknown"  # the backend does not know it any more, which says nothing about its processes


@dataclass(frozen=True)
class Member:
    """One node of an attempt at the cluster backend."""

    index: int
    state: MemberState
    exit_code: int | None = None
    """Exit code of its runner; None while it runs, and where nobody saw it end."""
    notice_deadline: datetime | None = None
    """The backend will end it then."""
    notice_source: str = ""
    """What the backend says gave this notice, where the platform did not."""
    cause: Cause | None = None
    """Why it ended; None while it has not."""
    host: str = ""
    """Name of the machine that it runs on, once that is known."""
    has_lost_machine: bool = False
    """Whether the backend lost the machine, and not its processes alone, which we may have ended."""
    address: str = ""
    """Address at which the other nodes reach it, as the backend has it, once that is known."""


@dataclass(frozen=True)
class AttemptStatus:
    """An attempt that was started and not forgotten."""

    name: str
    members: tuple[Member, ...]
    waiting_for: str = ""
    """While it is queued: what it waits for, in the backend's words."""
    refusal: str = ""
    """While it is queued: why the backend will never start it, in its words."""
    has_keys: bool = False
    """Whether its nodes were given the keys that prove their claims; an older release gave them none."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the address of each node; none where one is not known."""
        addresses = tuple(member.address for member in self.members)
        return addresses if all(addresses) else ()

    def has_other_reason_than(self, announced: str) -> bool:
        """Return whether the backend gives another reason to wait than was announced.

        Reasons that differ in numbers alone are one: others take and leave nodes all the time.
        """
        return bool(self.waiting_for) and NUMBER.sub("", self.waiting_for) != NUMBER.sub("", announced)

    @property
    def is_queued(self) -> bool:
        return any(member.state is MemberState.QUEUED for member in self.members)


class SpecConflict(Exception):
    """The name exists at the cluster backend with another specification, was stopped before, or is no DNS label."""


class NoCapacity(Exception):
    """The backend has no room for the attempt and did not queue it either; the sentence has its words."""


class BackendFailed(Exception):
    """The backend could not do what it was asked; the sentence says what and why."""


class Backend(Protocol):
    async def start(self, spec: AttemptSpec) -> None:
        """Start all nodes of the attempt, or queue them at the backend. Calling it again is success.

        Raises: SpecConflict if it cannot be, NoCapacity if it cannot be for now.
        """

    async def inspect(self, name: str) -> AttemptStatus | None:
        """Return what the backend has of the attempt. None: it does not know the name, which says nothing about its
        runners."""

    async def list_owned(self) -> list[AttemptStatus]:
        """Return all that the backend has of this installation; what no attempt accounts for is an orphan."""

    def watch(self) -> AsyncIterator[AttemptStatus]:
        """Yield statuses as they change, and all of them at the beginning and now and then; without end."""

    async def machines(self, pool: str) -> frozenset[str]:
        """Return the names (`Member.host`) of the pool's machines that take work, those too that have no room now."""

    async def notify(self, name: str, index: int, deadline: datetime) -> None:
        """Notify the node's runner that it ends at `deadline`, on Postgres' clock; nothing more happens here."""

    async def end(self, name: str, index: int) -> None:
        """Withdraw the node's grant, then end it at once, with all its processes."""

    async def stop(self, name: str, grace_seconds: float) -> None:
        """Ask all nodes to end, wait, withdraw all grants, end the nodes. This also takes an unknown name, which can
        then not be created.

        Returns once none of their processes runs: only then may another attempt train. A backend that cannot see that
        returns when a runner without its grant must have ended itself.
        """

    async def forget(self, name: str) -> None:
        """Remove what is left of a stopped attempt, once its end is stored."""
