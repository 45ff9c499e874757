"""agent.directives, agent.reports, training.events and run.metrics: what happens on the nodes."""

from datetime import datetime
from enum import StrEnum
from math import isfinite
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat

from schemas.artifacts import ResumeCertificate
from schemas.base import (
    Attempt,
    BestBundle,
    BundleRef,
    Bytes,
    Count,
    DatasetRef,
    DeviceKind,
    FailureClass,
    JobId,
    Message,
    Seconds,
    Sha256,
    StartFrom,
    Step,
    TenantName,
    Value,
)
from schemas.job import StopReason
from schemas.numbers import plural
from schemas.specification import Recipe


class BundleKind(StrEnum):
    """Why a bundle was written."""

    PERIODIC = "periodic"
    EMERGENCY = "emergency"  # written because of a stop
    FINAL = "final"


class BundleMetrics(Value):
    """What was measured of a bundle's weights. Messages carry it as a map of the numbers that there are."""

    train_loss: float | None = None
    """Mean over the loss tokens, with dpo over the pairs, of the step that made these weights, before its update."""
    valid_loss: float | None = None
    """Loss over some windows of the validation file, evenly spread."""
    served_valid_loss: float | None = None
    """Loss over the same windows with the adapter on the base as it is served, whose weights are not quantised; of
    the last bundle of a job that trains beside a base in 4 bits, on which its other losses are."""
    full_valid_loss: float | None = None
    """Loss over all windows of the validation file; of the last bundle, and where the recipe asks for it."""
    perplexity: float | None = None
    """Of validation tokens: e to the power of `full_valid_loss`, or of `valid_loss` where there is none; with all
    methods but dpo, whose loss is of pairs."""
    start_perplexity: float | None = None
    """Perplexity of the validation file before the first step; of method cpt alone, beside `full_valid_loss`."""
    reward_margin: float | None = None
    """Mean by which the chosen answer has the greater reward, over the pairs that the validation loss is over; of
    method dpo alone, as is the next."""
    reward_accuracy: float | None = None
    """Share of the pairs whose chosen answer has the greater reward."""

    @property
    def by_name(self) -> dict[str, float]:
        """The finite numbers alone, by name: JSON has no word for the others."""
        return {name: value for name, value in self if value is not None and isfinite(value)}


class PackingVerdict(StrEnum):
    """Whether several examples share a window."""

    PROVED = "proved"  # packed loss = loss of each example alone, on this model and device
    REFUSED = "refused"  # they differ, or cannot be distinguished from a leak: training continues unpacked
    OFF = "off"  # the recipe asks for none, or no window holds two examples


class PackingDistances(Value):
    """Distances, in nats per target token, between losses of an example alone and the same losses elsewhere.

    Each is the mean over an example's tokens; None is not a finite number.
    """

    packed: NonNegativeFloat | None
    """Distance at the example's place in its window; the largest of the examples tried."""
    noise: NonNegativeFloat | None
    """Distance at the front of the window, where no other example can be seen: rounding alone; the largest."""
    leak: NonNegativeFloat | None
    """Distance at the example's place, with the borders between examples taken away; the mean."""


class Preparation(Value):
    """Properties of the training processes, measured before their first step."""

    device: str
    """Product of the first process's device, or `cpu`."""
    world_size: Count
    """Training processes, each with a device of its own."""
    precision: Literal["float32", "bfloat16"]
    """Type that products are computed in."""
    num_parameters: Count
    """Parameters of the model."""
    num_trainable: Count
    """Parameters that are trained."""
    batch_size: Count
    """Windows per optimizer step over all devices."""
    micro_batch_size: Count
    """Windows per device and forward pass."""
    attention: str | None = None
    """Kind of attention by transformers' name; `varlen` computes packed examples apart from each other. None in
    messages older than the field."""
    gradient_checkpointing: bool
    """Whether activations are computed again instead of kept."""
    compile: bool = False
    """Whether the repeated layers are compiled."""
    offload_optimizer: bool = False
    """Whether moments and the update of the weights are in the host's memory."""
    packing: PackingVerdict
    distances: PackingDistances | None = None
    """Distances that the verdict on packing goes by; None where nothing was measured."""
    memory_bytes: Bytes
    """Peak of the first process so far: device memory on a GPU, resident memory on a CPU."""
    estimated_memory_bytes: Bytes | None = None
    """Memory that a device needs at the peak of a step, by estimate. None in messages older than the field."""
    device_memory_bytes: Bytes | None = None
    """Memory that the device has; None on a CPU."""
    summed_bytes_per_second: float | None = None
    """Bytes per second of a tensor that all processes sum, before the first step. None of one process and in messages
    older than the field."""

    @property
    def summary(self) -> str:
        """One sentence for people."""
        recomputing = ", activations recomputed" if self.gradient_checkpointing else ""
        compiling = ", layers compiled" if self.compile else ""
        offload = ", moments in the host's memory" if self.offload_optimizer else ""
        attention = f", attention {self.attention}" if self.attention else ""
        speed = self.summed_bytes_per_second
        summing = f", {speed / 1e9:.3g} GB/s summed by all" if speed else ""
        return (
            f"{self.world_size} x {self.device} in {self.precision}{attention}{summing}, "
            f"packing {self.packing}{self._measured}; "
            f"{self.num_trainable:,} of {self.num_parameters:,} parameters are trained, "
            f"{plural(self.batch_size, 'window')} per step by {self.micro_batch_size} per device"
            f"{recomputing}{compiling}{offload}; {self._memory}"
        )

    @property
    def _memory(self) -> str:
        whole = f" of {_gib(self.device_memory_bytes)}" if self.device_memory_bytes else ""
        peak = (
            f", {_gib(self.estimated_memory_bytes)} estimated for a step"
            if self.estimated_memory_bytes
            else ""
        )
        return f"{_gib(self.memory_bytes)}{whole} in use{peak}"

    @property
    def _measured(self) -> str:
        if self.distances is None:
            return ""
        measured = {
            "packed": self.distances.packed,
            "rounding": self.distances.noise,
            "a leak": self.distances.leak,
        }
        words = (f"{name} {_nats(distance)}" for name, distance in measured.items())
        return f" ({', '.join(words)} nats per token)"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _nats(distance: float | None) -> str:
    return "not a number" if distance is None else f"{distance:.2g}"


Certificate = Annotated[str, Field(max_length=2000, pattern=r"^[A-Za-z0-9+/]+=*$")]
"""X.509 certificate that its holder has signed itself, DER in base64."""


class Member(Value):
    """One runner of the gang."""

    node_index: Count
    """Place of the node in the attempt, from 0."""
    host: str
    """Name or address of the node."""
    port: int
    """Free port on the host; that of node 0 is the rendezvous."""
    certificate: Certificate | None = None
    """With which its runner meets the others. None of one of an older release, and in TrainingStarted."""


class AttemptMessage(Message):
    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt


class StartTraining(AttemptMessage):
    """Directive: every runner of the gang is here; start the child."""

    recipe: Recipe
    base_sha: Sha256
    dataset: DatasetRef
    config_hash: Sha256
    resume: BundleRef | None
    nodes: Count
    """Number of nodes."""
    devices_per_node: Count
    """Training processes on each node, each with a device of its own."""
    members: tuple[Member, ...]
    """Runners of the gang in rank order; the first one's address is the rendezvous."""
    grace_seconds: Seconds
    device: DeviceKind | None = None
    """Kind of device that each process must have; None takes a GPU where there is one."""
    start_from: StartFrom | None = None
    """Weights of an earlier job or stage that the first step begins with; of no effect where a bundle is resumed
    from."""
    steps_before: Step = 0
    """Steps of the stages before this one: reports and bundles are counted from there."""


class StopTraining(AttemptMessage):
    """Directive: save at the next step boundary, upload, report and exit before the deadline."""

    reason: StopReason
    deadline: datetime
    """Deadline by which the runner must have reported and ended."""


class RunnerReport(AttemptMessage):
    """A claim by one runner. Facts are made of claims after the check of the attempt's number."""

    node_index: Count
    """Place of the node in the attempt, from 0."""


class RunnerStarted(RunnerReport):
    """The runner is there and can be reached."""

    host: str
    """Name or address of the node."""
    port: int
    """Free port on the host."""
    node_id: str
    """Id of the node."""
    certificate: Certificate | None = None
    """With which it meets the runners of other nodes. None of a runner of an older release."""


class RunnerHeartbeat(RunnerReport):
    """The runner lives."""

    step: Step
    state: Literal["waiting", "fetching", "training", "stopping"]
    """What the runner does."""


class StepReached(RunnerReport):
    """The child has done the first step of this attempt, or continued after a resume."""

    step: Step
    num_steps: Count
    """Optimizer steps of the job up to the end of this attempt's stage, which is the job's where it has no more."""
    certificate: ResumeCertificate | None = None
    packing: Literal["proved", "refused", "off"] = "off"
    """Verdict on packing examples into shared windows."""


class RunnerPrepared(RunnerReport):
    """The child is ready for its first step. Reported by node 0."""

    preparation: Preparation


class BundleUploaded(RunnerReport):
    """A checkpoint's manifest is in the object store."""

    bundle: BundleRef
    kind: BundleKind
    metrics: dict[str, float]
    """What was measured of its weights, by name."""
    best: BestBundle | None = None
    """The best bundle so far, which this one may be; None where the recipe does not ask for it."""


class RunnerStopped(RunnerReport):
    """The last report of a runner."""

    outcome: Literal["completed", "stopped", "failed"]
    """How the training process ended."""
    failure_class: FailureClass | None = None
    message: str = ""
    """Why, for people."""
    lost_connection: bool = False
    """Whether it failed because it did not hear another node any more, of which it knows nothing else."""
    last_step: Step
    bundle: BundleRef | None = None
    exit_code: int | None = None
    """Exit code of the training process; None where it had none."""


REPORTS: dict[str, type[RunnerReport]] = {kind.type: kind for kind in RunnerReport.__subclasses__()}


class TrainingStarted(AttemptMessage):
    """The gang is complete; sent at the barrier."""

    members: tuple[Member, ...]


class TrainingPrepared(AttemptMessage):
    """Model and data are loaded, packing is judged; the first step comes next."""

    preparation: Preparation


class TrainingResumed(AttemptMessage):
    """The first step after a resume was compared with what the interrupted run expected."""

    certificate: ResumeCertificate


class CheckpointWritten(AttemptMessage):
    """The bundle's manifest is in S3; nobody has verified it yet."""

    bundle: BundleRef
    kind: BundleKind
    metrics: dict[str, float]
    """What was measured of its weights, by name."""
    best: BestBundle | None = None
    """The best bundle so far, which this one may be; None where the recipe does not ask for it."""


class TrainingStopped(AttemptMessage):
    """The attempt's last fact, when it did not complete."""

    reason: str
    """The reason of the stop: a StopReason, or `unasked`, or `failure`."""
    last_step: Step
    bundle: BundleRef | None


class TrainingCompleted(AttemptMessage):
    """The attempt's last fact, when every step was done, or the recipe asked for no more."""

    bundle: BundleRef
    last_step: Step
    message: str = ""
    """Why it ended before the last step of the recipe, for people; empty where it did not."""


class TrainingFailed(AttemptMessage):
    """The attempt's last fact, when it failed."""

    failure_class: FailureClass
    message: str
    """What happened, for people."""
    last_step: Step = 0
    node_id: str | None = None
    """Id of the node where it failed; None where no single node is known."""


class TimedStep(Value):
    """When an optimizer step ended."""

    step: Step
    time: datetime
    """End of the step."""


class StepNumbers(Value):
    """What is measured at one optimizer step. A number that is added here is in reports, messages and tables."""

    loss: float
    """Mean over the loss tokens of the step, with dpo over its pairs."""
    learning_rate: float
    """Learning rate of this step."""
    grad_norm: float
    """Norm of the gradient before it was scaled down."""
    num_tokens: Count
    """Tokens of the step over all devices."""
    tokens_per_second: float
    """Tokens per second over all devices."""
    memory_bytes: Count
    """Peak memory of the first process so far."""
    epoch: float
    """Passes over the data, with fractions."""
    mfu: float | None = None
    """Model FLOPs utilisation, 0..1; None on a CPU."""
    device_utilization: float | None = None
    """Share of the time in which the first process's device computed, 0..1: on a GPU by the driver's newest sample,
    on a CPU the processor time of its threads since the step before. None where the driver does not report it."""
    chosen_reward: float | None = None
    """Mean reward of the step's chosen answers, with dpo, as are the next three: beta times what an answer's
    log-probability has gained on the base model's; per token with `length_normalised`, with `simpo` beta times the
    log-probability per token."""
    rejected_reward: float | None = None
    """Mean reward of the rejected answers."""
    reward_margin: float | None = None
    """Mean difference of the two."""
    reward_accuracy: float | None = None
    """Share of the pairs whose chosen answer has the greater reward."""
    router_loss: float | None = None
    """Load-balancing loss of a model with experts whose routers are trained: the number of experts for each token
    where all are used alike, more otherwise. It is minimised too, times the configuration's `router_aux_loss_coef`,
    and is no part of `loss`."""

    @property
    def by_name(self) -> dict[str, float]:
        """The numbers that there are, by name."""
        return {
            name: value for name in StepNumbers.model_fields if (value := getattr(self, name)) is not None
        }


class StepMetrics(StepNumbers, TimedStep):
    """Numbers of one optimizer step."""


USE = ("mfu", "device_utilization")
"""How well devices are used, where that is known."""
REWARDS = ("chosen_reward", "rejected_reward", "reward_margin", "reward_accuracy")
"""Numbers of a step that only a method with pairs of answers has."""
ROUTING = ("router_loss",)
"""Numbers of a step that only a model with experts has."""


class StepValidated(Value):
    """Numbers on the whole validation file after a step that the recipe names."""

    step: Step
    metrics: dict[str, float]
    """Numbers of BundleMetrics that there are, by name."""


class StepsRecorded(AttemptMessage):
    """A batch of step metrics. May be lost; gates nothing."""

    steps: tuple[StepMetrics, ...]
    validations: tuple[StepValidated, ...] = ()
    """Numbers on the validation file, each after its step, which this batch or an earlier one has."""
