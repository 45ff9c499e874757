"""Bodies of requests. Unknown fields are refused by name; everything ours is under `retune`."""

from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from schemas.access import MAX_READABLE
from schemas.alert import AlertRule, AlertsSpec
from schemas.base import LABEL, Share, Spec, SpendingLimit
from schemas.exports import ExportFormat, Quantization
from schemas.gate import GateSpec
from schemas.specification import Auto, Beta, DatasetPolicy, RateMultiplier, Recipe, Resources
from schemas.sweep import SearchSpec

NOT_AVAILABLE = "is not available yet"

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]


def not_yet(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("not_available_yet", "this option is not available yet")


class Hyperparameters(Spec):
    """The same bounds as in Recipe, under OpenAI's names."""

    batch_size: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    learning_rate_multiplier: RateMultiplier | Auto = "auto"
    n_epochs: Annotated[int, Field(ge=1, le=100)] | Auto = "auto"


class DpoHyperparameters(Hyperparameters):
    beta: Beta | Auto = "auto"


class Supervised(Spec):
    hyperparameters: Hyperparameters = Hyperparameters()


class Dpo(Spec):
    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class MethodChoice(Spec):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: Dpo | None = None
    reinforcement: dict[str, JsonValue] | None = None


class SafetyMixChoice(Spec):
    file: str
    """Id of an uploaded file."""
    share: Share = 0.1
    """Rows of the mix per training row, with `cpt` tokens per training token: 0.1 adds one row to every ten. All
    of the mix is used where it is smaller."""


class StageChoice(Spec):
    """What is trained after the stage before, from the weights that it trained."""

    recipe: Recipe = Recipe()
    training_file: str
    validation_file: str | None = None
    policy: DatasetPolicy = DatasetPolicy()
    safety_mix: SafetyMixChoice | None = None


class Extensions(Spec):
    """What OpenAI's API has no word for."""

    recipe: Recipe = Recipe()
    resources: Resources = Resources()
    gate: GateSpec = GateSpec()
    policy: DatasetPolicy = DatasetPolicy()
    holdout_file: str | None = None
    safety_mix: SafetyMixChoice | None = None
    later_stages: Annotated[tuple[StageChoice, ...], Field(max_length=7)] = ()
    """What a job trains after its own files, one stage after the other, before the gate sees the last one."""
    alerts: AlertsSpec | None = None
    auto_deploy: bool = True
    allow_ungated: bool = False
    """Train although the gate has nothing to ask in a check that it requires."""
    max_cost: SpendingLimit | None = None
    """US dollars that the job may cost; before it would cost more it ends, and what it has trained is kept. None: no
    limit."""


class CreateJob(Spec):
    model: str
    training_file: str
    validation_file: str | None = None
    suffix: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: Metadata | None = None
    integrations: list[dict[str, JsonValue]] | None = None
    method: MethodChoice | None = None
    hyperparameters: Hyperparameters | None = None
    retune: Extensions = Extensions()


class CreateSweep(SearchSpec):
    """Several configurations of one job."""

    job: CreateJob
    """The job that each trial is, but for its parameters. Its `auto_deploy` is for the best one."""
    name: Annotated[str, Field(max_length=64)] = ""
    """For people."""


class CreateUpload(Spec):
    """A file that comes in parts."""

    filename: Annotated[str, Field(min_length=1, max_length=1024)]
    purpose: str
    bytes: Annotated[int, Field(ge=1)]
    """Bytes of all parts together."""
    mime_type: Annotated[str, Field(max_length=255)]
    expires_after: Annotated[None, BeforeValidator(not_yet)] = None


class CompleteUpload(Spec):
    part_ids: Annotated[tuple[str, ...], Field(min_length=1, max_length=10_000)]
    """Ids of the parts, in their order in the file."""
    md5: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{32}$")] | None = None
    """md5 of the whole file, in hexadecimal."""


class CreateDataset(Spec):
    """Validate a file without starting a job."""

    model: str
    training_file: str
    validation_file: str | None = None
    retune: Extensions = Extensions()


class Deploy(Spec):
    slot: str | None = None
    """A short alias; None serves the version under its full name."""


class Export(Spec):
    format: ExportFormat = "safetensors"
    """Format of the files: a folder of safetensors, or one GGUF file."""
    quantization: Quantization | None = None
    """Type of the matrices of a GGUF file; f16 without it. Safetensors keep the base model's own."""

    @model_validator(mode="after")
    def _quantizes_gguf_alone(self) -> Self:
        if self.format == "safetensors" and self.quantization is not None:
            raise ValueError(
                f"quantization: found {self.quantization}, expected none: safetensors keep the base model's type"
            )
        return self


class Promote(Spec):
    accept_without_holdout: bool = False
    reason: Annotated[str, Field(max_length=1000)] = ""


class CreateTenant(Spec):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?$")]
    tier: Literal["standard", "premium"] = "standard"


UserName = Annotated[str, Field(pattern=LABEL)]
"""Name of a user, without what the platform puts before it."""


class CreateUser(Spec):
    name: UserName


class CreateSubscriber(Spec):
    name: UserName
    topics: Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=MAX_READABLE)] = ()
    """Lifecycle topics, of all tenants."""
    tenants: Annotated[tuple[UserName, ...], Field(max_length=MAX_READABLE)] = ()
    """Tenants whose own topics of events it reads."""


class MuteRule(Spec):
    rule: AlertRule
    """The rule that nobody shall be notified by."""
    job_id: str | None = None
    """The job whose alerts are muted; null: all of the tenant's."""
    until: AwareDatetime | None = None
    """When it ends: RFC 3339 with an offset, or seconds since 1970; null: it does not end by itself."""
