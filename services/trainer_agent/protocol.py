"""What a runner and its training child say to each other: an order in, reports out, one stop file.

The child runs in a work directory. It reads `order.json`, appends one JSON report per line to
`reports.jsonl`, writes bundles below `bundles/<step>/` and looks for a file `stop` after every micro batch.
"""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, TypeAdapter

from schemas.artifacts import BundleManifest, FileEntry, ReferenceIdentity, ResumeCertificate
from schemas.base import Attempt, BundleRef, Bytes, Count, DeviceKind, FailureClass, Sha256, Step, Value
from schemas.specification import Recipe
from schemas.training import BundleMetrics, Preparation, StepMetrics, StepNumbers

REPORTS = "reports.jsonl"
STOP = "stop"
"""Name of the file that asks the child to stop, with the reason in it. SIGTERM to the child means the same."""
BUNDLES = "bundles"
RENDEZVOUS = "loopback"
"""Name by which torchrun knows the rendezvous of `training/launch.py`."""

EXIT_COMPLETED = 0
EXIT_FAILED = 1
EXIT_STOPPED = 143


class TrainingOrder(Value):
    """All that a training child must know. The runner writes it before it starts the child."""

    job_id: str
    attempt: Attempt
    recipe: Recipe
    """Recipe that is resolved: no `auto` is left."""
    base_dir: Path
    """Directory of the base model's files: configuration, weights, tokenizer."""
    dataset_dir: Path
    """Directory of `manifest.json` (DatasetManifest) and the parts it names."""
    resume_dir: Path | None = None
    """Directory of `manifest.json` (BundleManifest) and its parts; None starts at step 0."""
    start_dir: Path | None = None
    """Directory of the model that step 0 begins with. None: it is the base model, or nothing of the run needs it."""
    started_from: Sha256 | None = None
    """Content digest of what an earlier job trained and step 0 begins with. None: the base model."""
    reference: Path | None = None
    """File of the log-probabilities of the dataset's answers by the model at step 0, as an earlier run computed them;
    None where there are none, or the method needs none."""
    reference_number: Count = 0
    """Number under which the runner stores others, if the child computes them."""
    base_sha: Sha256
    dataset_version: Sha256
    config_hash: Sha256
    nodes: PositiveInt = 1
    devices_per_node: PositiveInt = 1
    device: DeviceKind | None = None
    """Kind of device that each process must have; None takes a GPU where there is one."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Paths of all that the training child reads."""
        paths = (self.base_dir, self.dataset_dir, self.resume_dir, self.start_dir, self.reference)
        return tuple(path for path in paths if path is not None)


class Started(Value):
    """Model and data are loaded; the first step comes next."""

    kind: Literal["started"] = "started"
    num_steps: Count
    start_step: Step
    """Step of the bundle that is resumed from, else 0."""
    world_size: PositiveInt


class PreflightDone(Value):
    kind: Literal["preflight_done"] = "preflight_done"
    preparation: Preparation


class ReferenceComputed(Value):
    """Log-probabilities by the model at step 0 are in a file, on the node of global rank 0 alone."""

    kind: Literal["reference_computed"] = "reference_computed"
    path: Path
    identity: ReferenceIdentity
    size_bytes: Bytes
    sha256: Sha256


class ResumeChecked(Value):
    kind: Literal["resume_checked"] = "resume_checked"
    certificate: ResumeCertificate


class Stepped(StepNumbers):
    """One optimizer step, with numbers over all processes."""

    kind: Literal["stepped"] = "stepped"
    step: Step

    def metrics(self, *, time: datetime) -> StepMetrics:
        """Return the same numbers as messages carry them, of a step that ended at `time`."""
        return StepMetrics(time=time, **self.model_dump(exclude={"kind"}))


class Validated(Value):
    """Loss on the whole validation file after a step that the recipe names."""

    kind: Literal["validated"] = "validated"
    step: Step
    metrics: BundleMetrics
    is_last: bool
    """Whether no step follows."""


class Best(Value):
    """Step with the lowest validation loss so far."""

    step: Step
    valid_loss: float


class Progressed(Value):
    """A long step or validation continues. It comes once a second at most, and shows that the child does not hang."""

    kind: Literal["progressed"] = "progressed"
    done: Count
    """Number of micro batches that the reporting process has done."""
    total: Count


class BundleKind(StrEnum):
    PERIODIC = "periodic"
    EMERGENCY = "emergency"
    FINAL = "final"


class Saved(Value):
    """A bundle's files are complete and hashed on this node."""

    kind: Literal["saved"] = "saved"
    step: Step
    bundle: BundleKind
    directory: Path
    parts: tuple[FileEntry, ...]
    """Files of this node, with paths below `directory`."""
    all_parts: tuple[FileEntry, ...] = ()
    """Files of all nodes; empty but on the node of global rank 0."""
    metrics: BundleMetrics = BundleMetrics()
    best: Best | None = None
    """Best step so far, which may be this one; None where the recipe does not ask for the best one."""
    reused: bool = False
    """Whether nothing was written: the bundle is the one that was resumed from, and its manifest still holds."""


class Outcome(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


class Ended(Value):
    """The last report, at most one for each node. A child that dies without it was killed."""

    kind: Literal["ended"] = "ended"
    outcome: Outcome
    failure_class: FailureClass | None = None
    message: str = ""
    lost_connection: bool = False
    """Whether it failed because it did not hear another process any more, of which it knows nothing else."""
    last_step: Step


Report = Annotated[
    Started
    | PreflightDone
    | ReferenceComputed
    | ResumeChecked
    | Stepped
    | Validated
    | Progressed
    | Saved
    | Ended,
    Field(discriminator="kind"),
]
_REPORT: TypeAdapter[Report] = TypeAdapter(Report)


def parse_reports(data: bytes) -> tuple[tuple[Report, ...], int]:
    """Return the reports of all whole lines, and the bytes they took; a half-written last line is left for later.

    Raises: ValueError (pydantic's) for a whole line that is no report.
    """
    whole = data[: data.rfind(b"\n") + 1]
    return tuple(_REPORT.validate_json(line) for line in whole.splitlines() if line), len(whole)


def counted_after(report: Report, steps_before: int) -> Report:
    """Return the report with the job's steps: a child counts from 0 those of the stage that it trains."""
    match report:
        case Started(num_steps=num_steps, start_step=start_step):
            counted = {"num_steps": num_steps + steps_before, "start_step": start_step + steps_before}
        case Stepped(step=step) | Validated(step=step):
            counted = {"step": step + steps_before}
        case Ended(last_step=last_step):
            counted = {"last_step": last_step + steps_before}
        case ResumeChecked(certificate=certificate):
            later = certificate.model_copy(update={"step": certificate.step + steps_before})
            return report.model_copy(update={"certificate": later})
        case Saved(step=step, best=best):
            later_best = best and best.model_copy(update={"step": best.step + steps_before})
            return report.model_copy(update={"step": step + steps_before, "best": later_best})
        case _:
            return report
    return report.model_copy(update=counted)


def bundle_dir(work_dir: Path, step: int) -> Path:
    return work_dir / BUNDLES / str(step)


def bundle_manifest(order: TrainingOrder, saved: Saved, *, best: BundleRef | None = None) -> BundleManifest:
    """Return the manifest of what `saved` reports on the node of global rank 0. `best`: if that is earlier."""
    return BundleManifest(
        job_id=order.job_id,
        attempt=order.attempt,
        step=saved.step,
        world_size=order.world_size,
        method=order.recipe.method,
        base_sha=order.base_sha,
        dataset_version=order.dataset_version,
        config_hash=order.config_hash,
        parts=saved.all_parts,
        best=best,
    )
