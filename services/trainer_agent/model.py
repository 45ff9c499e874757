"""An attempt as the control side of training sees it: its order, its runners, its stop, its end."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from schemas.base import BundleRef, FailureClass
from schemas.envelope import Origin
from schemas.job import JobScheduled, StopReason
from schemas.training import Member, RunnerReport
from shared.signatures import Signed
from shared.transitions import Transitions


class AttemptState(StrEnum):
    GATHERING = "gathering"  # not all runners have reported
    TRAINING = "training"  # the barrier is passed, StartTraining was sent
    CLOSED = "closed"  # its last fact was sent


TRANSITIONS = Transitions[AttemptState](
    {
        AttemptState.GATHERING: frozenset({AttemptState.TRAINING, AttemptState.CLOSED}),
        AttemptState.TRAINING: frozenset({AttemptState.CLOSED}),
        AttemptState.CLOSED: frozenset(),
    }
)


@dataclass(frozen=True)
class Runner:
    """What is known of one runner of the gang."""

    node_index: int
    node_id: str
    host: str
    port: int
    report_id: str
    """Event id of the RunnerStarted: the same when it is resent, another one when the runner starts again."""
    seen_at: datetime
    step: int = 0
    """Greatest step that the runner has reported."""
    has_stopped: bool = False
    certificate: str | None = None
    """With which it meets the others; None of a runner of an older release."""

    @property
    def member(self) -> Member:
        return Member(
            node_index=self.node_index, host=self.host, port=self.port, certificate=self.certificate
        )


@dataclass(frozen=True)
class Stop:
    reason: StopReason
    deadline: datetime


@dataclass(frozen=True)
class Claim:
    """A runner's report with the id of its event."""

    event_id: str
    report: RunnerReport
    signed: Signed | None
    """What proves whose it is. None of one that an older release has kept."""


@dataclass(frozen=True)
class Attempt:
    job_id: str
    number: int
    tenant: str
    order: JobScheduled | None = None
    """Order of the attempt; None while only the provisioner's facts are known, which travel on another topic."""
    nodes: tuple[str, ...] | None = None
    """Ids of the attempt's nodes, by index; None while the provisioner has not said which they are."""
    public_keys: tuple[str, ...] | None = None
    """Of its nodes, by index. None where they have none: their provisioner was of an older release."""
    addresses: tuple[str, ...] | None = None
    """Of its nodes, by index, as their cluster backend has them. None where it has not said: claims say it then."""
    state: AttemptState = AttemptState.GATHERING
    runners: tuple[Runner, ...] = ()
    stop: Stop | None = None
    failure: FailureClass | None = None
    """Class of the TrainingFailed that was sent; an attempt has at most one."""
    nodes_released: bool = False
    last_step: int = 0
    last_bundle: BundleRef | None = None
    origin: Origin | None = None
    """Of its order; what its runners report belongs to it. None in rows of an older release."""
    revision: int = 0

    def to(self, state: AttemptState, **changes: Any) -> "Attempt":
        TRANSITIONS.require(self.state, state, what=f"attempt {self.number} of {self.job_id}")
        return replace(self, state=state, **changes)

    @property
    def is_open(self) -> bool:
        return self.state is not AttemptState.CLOSED

    @property
    def takes_claims(self) -> bool:
        """Return whether claims can be judged: the attempt was scheduled, its nodes are known or no longer matter."""
        is_over = self.stop is not None or not self.is_open
        return self.order is not None and (self.nodes is not None or is_over)

    def has_node(self, index: int, node_id: str | None = None) -> bool:
        """Return whether the provisioner gave the attempt this node."""
        if self.nodes is None or index >= len(self.nodes):
            return False
        return node_id is None or self.nodes[index] == node_id

    @property
    def is_complete(self) -> bool:
        """Return whether every node of the gang has a runner that reported and has not stopped."""
        if self.order is None:
            return False
        waiting = {runner.node_index for runner in self.runners if not runner.has_stopped}
        return waiting == set(range(self.order.nodes))

    @property
    def furthest_step(self) -> int:
        return max([self.last_step, *(runner.step for runner in self.runners)])

    @property
    def members(self) -> tuple[Member, ...]:
        """Members of the gang in rank order."""
        return tuple(runner.member for runner in sorted(self.runners, key=lambda one: one.node_index))

    def runner(self, node_index: int) -> Runner | None:
        return next((runner for runner in self.runners if runner.node_index == node_index), None)

    def with_runner(self, changed: Runner) -> "Attempt":
        others = tuple(runner for runner in self.runners if runner.node_index != changed.node_index)
        return replace(self, runners=(*others, changed))
