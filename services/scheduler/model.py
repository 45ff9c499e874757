"""A job and its attempts: the states, their transitions, and all that is known about a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.base import BestBundle, BundleRef, CapacityType, DatasetRef, DeviceKind, FailureClass
from schemas.capabilities import BaseCapabilities
from schemas.envelope import Origin
from schemas.fitting import is_open, least
from schemas.job import JobStage, PauseReason, StagePlan, StopReason
from schemas.lifecycle import STATES_AFTER, JobState
from schemas.specification import JobSpec
from shared.transitions import Transitions

TRANSITIONS = Transitions(STATES_AFTER)
ATTEMPT_OPEN = frozenset({JobState.PROVISIONING, JobState.RUNNING, JobState.STOPPING})
RESUME_POINT_RISES = ATTEMPT_OPEN | {JobState.QUEUED, JobState.PAUSED}


REQUEUE_BUDGET: Mapping[FailureClass, int | None] = {
    FailureClass.PREEMPTED: None,
    FailureClass.INFRA: 5,
    FailureClass.PLATFORM: None,
    FailureClass.INTERNAL: 2,
    FailureClass.NUMERIC: 0,
    # With activations computed again, where the recipe left that open.
    FailureClass.OOM: 1,
    FailureClass.USER: 0,
    FailureClass.CANCELLED: 0,
    FailureClass.RESIZED: None,
}
"""How many times a job is requeued automatically after a failure of the class; None: as often as it takes."""
REFILLED_BY_PROGRESS = frozenset({FailureClass.INFRA, FailureClass.PLATFORM})
"""Counted from zero again after an attempt that left a newer verified bundle than it began from."""


class DatasetState(StrEnum):
    ACCEPTED = "accepted"  # ingest is at it
    REFUSED = "refused"  # its SubmitDataset was not carried out
    READY = "ready"
    REJECTED = "rejected"  # its file makes no dataset
    DELETED = "deleted"


SUPERSEDES: Mapping[DatasetState, frozenset[DatasetState | None]] = {
    DatasetState.ACCEPTED: frozenset({None, DatasetState.REFUSED}),
    # A second SubmitDataset of the same id may be refused; the first one continues.
    DatasetState.REFUSED: frozenset({None}),
    DatasetState.READY: frozenset({None, DatasetState.REFUSED, DatasetState.ACCEPTED}),
    DatasetState.REJECTED: frozenset({None, DatasetState.REFUSED, DatasetState.ACCEPTED}),
    # Has the version's key, so it may overtake the news of the dataset.
    DatasetState.DELETED: frozenset({None, *DatasetState} - {DatasetState.DELETED}),
}
"""What may be said of a dataset after what; None: nothing was said before."""


@dataclass(frozen=True)
class Base:
    """What a base model's name points to."""

    sha: str
    capabilities: BaseCapabilities | None = None
    """What the base model can do; None where nobody has said."""


@dataclass(frozen=True)
class Dataset:
    """What ingest has said about one SubmitDataset."""

    dataset_id: str
    tenant: str
    state: DatasetState
    message: str = ""
    code: str = ""
    ref: DatasetRef | None = None
    base_sha: str = ""
    template_sha256: str = ""
    counts: DatasetCounts | None = None
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    suites: Mapping[str, str] = field(default_factory=dict)
    files: DatasetFiles | None = None
    """Files of the dataset; None where ingest did not say, which was so before it had to."""


@dataclass(frozen=True)
class Plan:
    """The job as it will run, once its dataset is known."""

    spec: JobSpec
    """Resolved: no `auto` is left."""
    dataset: DatasetRef
    config_hash: str
    num_steps: int
    template_sha256: str
    benchmarks: Mapping[str, str]
    suites: Mapping[str, str]
    kept_leaks: Mapping[str, int] = field(default_factory=dict)
    recipe_reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each number is what it is that the recipe left open, by its field."""

    @property
    def of_stage(self) -> StagePlan:
        """What messages name of it, where it is one of several."""
        return StagePlan(
            recipe=self.spec.recipe,
            dataset=self.dataset,
            config_hash=self.config_hash,
            num_steps=self.num_steps,
            recipe_reasons=dict(self.recipe_reasons),
        )

    @property
    def with_least_memory(self) -> Self:
        """The plan with what the recipe leaves to the device at its least. Its identity stays: equal sums of
        gradients.
        """
        recipe = least(self.spec.recipe, num_devices=self.spec.resources.num_devices)
        return replace(self, spec=self.spec.model_copy(update={"recipe": recipe}))


@dataclass(frozen=True)
class Placement:
    pool: str
    capacity_type: CapacityType
    nodes: int
    devices_per_node: int
    device: DeviceKind | None = None
    machines: tuple[int, ...] = ()
    """Machines that its nodes are on."""
    taken_per_node: int = 1
    """Devices that are held on each: all of the machine where there are several nodes."""


@dataclass(frozen=True)
class Unprovisioned:
    """ProvisioningFailed: nothing of the attempt is left at the engine."""

    code: str
    message: str


@dataclass(frozen=True)
class Failure:
    """NodeLost or TrainingFailed."""

    failure_class: FailureClass
    message: str
    deadline: datetime
    """When its nodes are taken back, where it ends the attempt."""


@dataclass(frozen=True)
class Preemption:
    """The notice with the earliest deadline."""

    deadline: datetime
    message: str


@dataclass(frozen=True)
class TrainingResult:
    """TrainingStopped or TrainingCompleted: the attempt's last fact."""

    completed: bool
    last_step: int
    bundle: BundleRef | None


@dataclass(frozen=True)
class Facts:
    """What others have said about one attempt, whether it mattered at the time or not."""

    started: bool = False
    waits_at_backend: bool = False
    """NodesQueued, and no NodesProvisioned after it: it has no deadline yet."""
    unprovisioned: Unprovisioned | None = None
    failure: Failure | None = None
    preemption: Preemption | None = None
    ending: TrainingResult | None = None
    released_at: datetime | None = None
    named: frozenset[BundleRef] = frozenset()
    """Bundles that were announced, each of which gets a verdict."""


@dataclass(frozen=True)
class Stop:
    """Why an attempt is being stopped, and by when its nodes are taken back."""

    reason: StopReason
    since: datetime
    deadline: datetime
    message: str
    failure_class: FailureClass | None = None
    """Class of the failure, with reason `failure`."""
    pause_reason: PauseReason | None = None
    """Reason of the pause, with reason `pause`."""
    by_alert: bool = False
    """Whether an alert ends the job, with reason `cancel`."""
    is_pruned: bool = False
    """Whether its sweep ends the job, with reason `cancel`."""

    @property
    def cancel_reason(self) -> Literal["user", "alert", "prune"]:
        if self.is_pruned:
            return "prune"
        return "alert" if self.by_alert else "user"


@dataclass(frozen=True)
class Attempt:
    """One try of a job. Its number fences all who work for an earlier one."""

    number: int
    placement: Placement
    resume: BundleRef | None
    scheduled_at: datetime
    start_deadline: datetime
    ends_by: datetime | None = None
    """When it has given its nodes back at the latest; None: its job states no longest run time."""
    facts: Facts = Facts()
    stop: Stop | None = None


@dataclass(frozen=True)
class ModelVersion:
    model_id: str
    full_name: str
    digest: str


@dataclass(frozen=True)
class Rejection:
    """Why the model stays in `dev`."""

    message: str
    without_model: bool = False
    """The artifact could not be copied or verified: there is no model version at all."""
    stale_base: bool = False
    """The base model's name points to other files; taken back if the old ones are registered again."""


@dataclass(frozen=True)
class Approval:
    """DeploymentApproved on behalf of this job."""

    slot: str
    generation: int


@dataclass(frozen=True)
class Deployment:
    """What serving has said last about a slot: its greatest generation that was answered."""

    slot: str
    tenant: str
    generation: int
    is_ready: bool
    message: str = ""


@dataclass(frozen=True)
class Evaluation:
    """What was said about the trained model by the gate, the registry and serving."""

    model: ModelVersion | None = None
    passed: bool = False
    promoted: bool = False
    denial: Rejection | None = None
    approval: Approval | None = None
    deployment: Deployment | None = None
    gated_at: datetime | None = None
    """When both the pass and the promotion were known."""


@dataclass(frozen=True)
class StageToTrain:
    index: int
    """Place among all stages, from 0."""
    spec: JobSpec
    dataset: Dataset | None
    """The stage's dataset; None: ingest has not decided yet."""

    def param(self, name: str) -> str:
        """Return the parameter's name as the specification has it."""
        return f"later_stages[{self.index - 1}].{name}" if self.index else name


@dataclass(frozen=True)
class Job:
    """The aggregate. `revision` guards its row; it is the store's alone."""

    id: str
    tenant: str
    state: JobState
    spec: JobSpec
    dataset_id: str
    submitted_at: datetime
    retry_of: str | None = None
    later_dataset_ids: tuple[str, ...] = ()
    """Datasets of the stages after the first."""
    dataset: Dataset | None = None
    """Dataset of the first stage; None: ingest has not decided yet."""
    later_datasets: tuple[Dataset | None, ...] = ()
    stage: JobStage | None = None
    """Present stage; None where the job has no stages."""
    stage_plans: tuple[Plan, ...] = ()
    """Plans of all stages, as they were when all datasets were ready; none where it has no stages."""
    plan: Plan | None = None
    """Plan of the present stage, or of the whole job where it has no stages."""
    run: Attempt | None = None
    """The present attempt, or the last one."""
    verified: frozenset[BundleRef] = frozenset()
    corrupt: frozenset[BundleRef] = frozenset()
    best: BestBundle | None = None
    """Best bundle of the run that led to the newest verified bundle; None where the recipe does not ask for it."""
    queued_at: datetime | None = None
    """Since when it waits, over requeues: age is counted from here."""
    not_before: datetime | None = None
    no_capacity_at: Mapping[str, datetime] = field(default_factory=dict)
    """Pool -> when its engine had no capacity for this job, whatever the ledger said."""
    requeues: Mapping[FailureClass, int] = field(default_factory=dict)
    """How often the job was requeued automatically, by class; the budgets are compared with it."""
    preempted_at: tuple[datetime, ...] = ()
    evaluation: Evaluation = Evaluation()
    origin: Origin | None = None
    """Of its submission; what becomes of it while something else is handled belongs to it. None in rows of an older
    release."""
    revision: int = 0

    def to(self, state: JobState, **changes: Any) -> Self:
        """The only transition method."""
        TRANSITIONS.require(self.state, state, what=f"job {self.id}")
        return replace(self, state=state, **changes)

    @property
    def attempt(self) -> int:
        return self.run.number if self.run else 0

    @property
    def present(self) -> Attempt:
        assert self.run is not None, f"job {self.id} is {self.state} without an attempt"
        return self.run

    @property
    def facts(self) -> Facts:
        return self.present.facts

    @property
    def resume(self) -> BundleRef | None:
        """The newest verified bundle of the stage: of its own, or of the job that it continues."""
        return max(self.verified, key=lambda bundle: bundle.age, default=None)

    @property
    def grace_seconds(self) -> float:
        return self.spec.resources.grace_seconds

    @property
    def stages_to_train(self) -> "tuple[StageToTrain, ...]":
        """The present one and those after it; before there is a plan all, for the plan is made of all."""
        datasets = (self.dataset, *(self.later_datasets or (None,) * len(self.later_dataset_ids)))
        stages = tuple(map(StageToTrain, range(len(datasets)), self.spec.by_stage, datasets))
        return stages[self.stage.number - 1 :] if self.stage and self.plan else stages

    @property
    def num_steps(self) -> int:
        """Number of steps of all stages."""
        assert self.plan is not None, f"job {self.id} has no plan yet"
        return sum(plan.num_steps for plan in self.stage_plans or (self.plan,))

    @property
    def config_hash(self) -> str | None:
        """Hash of the whole job: that of its last stage, which covers the others."""
        last = self.stage_plans[-1] if self.stage_plans else self.plan
        return last.config_hash if last else None

    @property
    def waits_for_release(self) -> bool:
        """Whether it is queued for its next stage while the attempt before has not given its nodes back."""
        is_between = self.stage is not None and self.attempt < self.stage.first_attempt
        return is_between and self.run is not None and self.facts.released_at is None

    def is_of_stage_before(self, bundle: BundleRef) -> bool:
        return self.stage is not None and bundle.job_id is None and bundle.attempt < self.stage.first_attempt

    def may_requeue(self, failure_class: FailureClass) -> bool:
        if failure_class is FailureClass.OOM and not self._may_need_less:
            return False
        budget = REQUEUE_BUDGET[failure_class]
        return budget is None or self.requeued(failure_class) < budget

    def requeued(self, failure_class: FailureClass) -> int:
        """How often for this class; since the job got on last, where that refills its budget."""
        is_refilled = failure_class in REFILLED_BY_PROGRESS and self._has_progressed
        return 0 if is_refilled else self.requeues.get(failure_class, 0)

    @property
    def _has_progressed(self) -> bool:
        return self.run is not None and self.resume is not None and self.resume != self.run.resume

    @property
    def _may_need_less(self) -> bool:
        """Whether the recipe leaves something to the device that needs less memory than it might have chosen."""
        spec = self.plan.spec if self.plan else None
        return spec is not None and is_open(spec.recipe, num_devices=spec.resources.num_devices)

    def is_judged(self, bundle: BundleRef) -> bool:
        return bundle in self.verified or bundle in self.corrupt

    def without_superseded_bundles(self) -> Self:
        """Forget what was named and judged and is older than the resume point: nothing can depend on it.

        The last bundle of an attempt is its newest, so it is still known when the attempt's end names it.
        """
        newest = self.resume
        if self.run is None or newest is None:
            return self
        superseded = {each for each in self.facts.named if self.is_judged(each) and each.age < newest.age}
        kept = replace(self, verified=self.verified - superseded, corrupt=self.corrupt - superseded)
        return kept.with_run(facts=replace(self.facts, named=self.facts.named - superseded))

    def with_run(self, **changes: Any) -> Self:
        return replace(self, run=replace(self.present, **changes))
