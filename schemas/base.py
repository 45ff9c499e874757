"""What every model of the contract shares: frozen values, typed numbers, references to bytes."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.unavailable import refuse_unavailable

LABEL = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
"""What becomes part of a folder, a key or a host name: a DNS label of at most 40 characters."""
A_LABEL = "a DNS label of at most 40 characters"

Reference = Annotated[str, Field(max_length=512)]
"""An id or name as its owner gave it; a record's key and headers take no more."""
Sentence = Annotated[str, Field(max_length=8_192)]
"""What a person wrote for others to read."""

JobId = Annotated[str, Field(pattern=LABEL, description=f"id of a job: {A_LABEL}")]
SweepId = Annotated[str, Field(pattern=LABEL, description=f"id of a sweep: {A_LABEL}")]
DatasetId = Annotated[str, Field(pattern=LABEL, description=f"id of a request for a dataset: {A_LABEL}")]
TenantName = Annotated[str, Field(pattern=LABEL, description=f"name of a tenant: {A_LABEL}")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="sha256, lower-case hexadecimal")]
Step = Annotated[int, Field(ge=0, description="optimizer steps completed")]
Attempt = Annotated[int, Field(ge=0, description="the number of the job's attempt")]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Whole number that a column of Postgres takes."""
Bytes = Annotated[int, Field(ge=0, le=2**63 - 1, description="bytes")]
Seconds = Annotated[float, Field(ge=0, description="seconds")]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Usd = Annotated[Decimal, Field(ge=0, description="US dollars")]
SpendingLimit = Annotated[Decimal, Field(ge=Decimal("0.000001"), le=10**12, max_digits=40)]
"""US dollars that may be spent."""


class Value(BaseModel):
    """A frozen part of a message. Unknown fields are ignored, so that readers survive newer writers."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        ser_json_inf_nan="strings",
        use_attribute_docstrings=True,
        # A process needs few of all messages, and starts a third of a second sooner without the others' validators.
        defer_build=True,
    )


def is_none(value: object) -> bool:
    return value is None


class Spec(BaseModel):
    """A frozen request. Unknown fields are errors: a misspelt option must not be ignored.

    A field that comes after a release is None by default and not written while it is (`exclude_if=is_none`), so that
    readers of that release, to which it is unknown, take every request that does not use it.
    """

    # Infinity passes `gt=0`, but is no JSON, so that no store could keep it.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _names_what_is_unavailable(cls, data: Any) -> Any:
        refuse_unavailable(data)
        return data


class Message(Value):
    """A command or a fact. `type` and `version` travel in `ce_type` as `retune.<type>.v<version>`."""

    type: ClassVar[str]
    version: ClassVar[int] = 1
    keyed_by: ClassVar[str]
    """Name of the field that holds the aggregate id, which is the Kafka key."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.type = cls.__name__

    @property
    def key(self) -> str:
        return str(getattr(self, self.keyed_by))


class FileRef(Value):
    """An uploaded file; its bytes are at `blobs/<sha256>`."""

    file_id: Reference
    """Id of the upload, `file-…`."""
    sha256: Sha256
    size_bytes: Bytes
    filename: Annotated[str, Field(max_length=1_024)] = ""
    """Name that the file had where it came from."""


class BundleRef(Value):
    """One checkpoint bundle, named by who wrote it and when; verdicts match by all three."""

    attempt: Annotated[Attempt, Field(lt=2**31)]
    """The attempt that wrote it, which may be older than the one that names it."""
    step: Annotated[Step, Field(lt=2**31)]
    manifest_sha256: Sha256
    job_id: JobId | None = None
    """The job that wrote it, where that is another one than the job that names it, which continues it."""

    @property
    def age(self) -> tuple[bool, int, int]:
        """Greater where the bundle is newer: what another job wrote is older than all of the job's own."""
        return self.job_id is None, self.attempt, self.step

    def seen_from(self, writer: str, reader: str) -> Self:
        """Return how the job `reader` names what the job `writer` names like this."""
        by = self.job_id or writer
        return self.model_copy(update={"job_id": None if by == reader else by})


class BestBundle(Value):
    """The checkpoint with the lowest validation loss of those that a run has measured so far."""

    bundle: BundleRef
    valid_loss: float
    """Loss on the whole validation file."""

    def seen_from(self, writer: str, reader: str) -> Self:
        """Return how the job `reader` names what the job `writer` names like this."""
        return self.model_copy(update={"bundle": self.bundle.seen_from(writer, reader)})


class StartFrom(Value):
    """Weights that an earlier job trained and a new one starts from, at step 0 with a fresh optimizer."""

    name: Reference
    """Name as it was asked for: that of a model version or of a checkpoint."""
    job_id: JobId
    """The job that trained them."""
    bundle: BundleRef
    """The checkpoint that they are of."""
    digest: Sha256 | None = None
    """Digest of the model version, whose files are at `models/<digest>`. None: the weights are read from the
    checkpoint, which is kept for that."""

    @property
    def identity(self) -> str:
        """Identity of the weights, by their content."""
        return self.digest or self.bundle.manifest_sha256


class DatasetRef(Value):
    """A dataset version and its manifest."""

    version: Sha256
    manifest_sha256: Sha256


class TrialOf(Value):
    """Which trial of which sweep a job is."""

    sweep_id: SweepId
    number: Annotated[int, Field(ge=0, lt=2**31)]
    """Place of the trial in the sweep, from 0."""


class FailureClass(StrEnum):
    """Why an attempt or a job failed. A closed set: one table has what follows from each."""

    PREEMPTED = "preempted"  # the node was taken back
    INFRA = "infra"  # node, network, store or hang
    PLATFORM = "platform"  # what all jobs need was away: S3, Kafka
    USER = "user"  # the request cannot work
    NUMERIC = "numeric"  # NaN or infinite loss or gradient
    OOM = "oom"  # the recipe does not fit the device or the host
    CANCELLED = "cancelled"  # a person or a budget ended it
    INTERNAL = "internal"  # our own assertion or an unknown exit
    RESIZED = "resized"  # nothing failed: the job continues on more nodes


FREE_OF_CHARGE = frozenset(
    {FailureClass.PREEMPTED, FailureClass.INFRA, FailureClass.PLATFORM, FailureClass.INTERNAL}
)
"""The tenant does not pay for an attempt that ended so: it is no fault of theirs."""


class DeviceKind(StrEnum):
    """What a training process computes on."""

    CPU = "cpu"
    CUDA = "cuda"


class CapacityType(StrEnum):
    """What a node costs, and whether it may be taken back."""

    SPOT = "spot"  # may be taken back with notice
    ON_DEMAND = "on-demand"


class Delayed(Message):
    """Work for a dataset or a job waits for a dependency that is away, and continues automatically. For people."""

    keyed_by = "subject_id"
    subject_id: str
    """Id of the dataset or the job."""
    tenant: TenantName
    waiting_for: str
    """What is away, for people."""


class CommandRefused(Message):
    """A command was not carried out. On the events topic of the service that refused it.

    The key is the aggregate's id, or the command's id where the aggregate is unknown.
    """

    keyed_by = "subject_id"
    subject_id: str
    """Id of what the command is about."""
    command: str
    """Type of the command, for example `CancelJob`."""
    command_id: str
    """`ce_id` of the command."""
    code: str
    """Stable word for machines, for example `unknown_job` or `too_late`."""
    message: str
    """What, where, found, expected: one sentence for people."""
    param: str | None = None
    """The field at fault, where one is."""
    tenant: str | None = None
    """Whose command it was; None for an operator's."""
