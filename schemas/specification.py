"""What a person may ask for: datasets, recipes, resources, gates, jobs. Checked alike at every door."""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.alert import AlertsSpec
from schemas.base import (
    CapacityType,
    DeviceKind,
    FileRef,
    Reference,
    Sentence,
    Sha256,
    Share,
    Spec,
    SpendingLimit,
    StartFrom,
    TrialOf,
    is_none,
)
from schemas.gate import GateSpec

Auto = Literal["auto"]


def _with_flag_for_auto(data: Any, name: str, *, otherwise: object, left_out: object) -> Any:
    """Make `auto` a flag beside the field, which in messages has the type that it had before there was `auto`."""
    flag = f"{name}_auto"
    if not isinstance(data, dict) or flag in data:
        return data
    value = data.get(name, left_out)
    return data | {name: otherwise if value == "auto" else value, flag: value == "auto"}


RateMultiplier = Annotated[float, Field(ge=0.001, le=1_000.0)]
"""Factor of a recipe's learning rate."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
ModulePattern = Annotated[str, Field(min_length=1, max_length=512)]
"""The end of a module's name, or a pattern of it."""

Weights = Literal["adapter", "full"]
"""Which weights are trained: those of a low-rank adapter beside the base model's, or all of the model's."""


class Method(StrEnum):
    """What is learned from what, and with which weights."""

    LORA = "lora"  # answers; a low-rank adapter on all linear layers
    SFT = "sft"  # answers; all weights
    QLORA = "qlora"  # answers; an adapter as lora's, trained beside a base of 4 bits
    DPO = "dpo"  # which of two answers is preferred; an adapter or all weights
    CPT = "cpt"  # continued pre-training: every token of plain texts; all weights or an adapter


class DatasetFormat(StrEnum):
    CHAT = "chat"  # {"messages": [...]}
    PROMPT_COMPLETION = "prompt_completion"  # {"prompt", "completion"}
    PREFERENCE = "preference"  # {"prompt", "chosen", "rejected"} or OpenAI's preference shape
    TEXT = "text"  # {"text"}


def format_of_row(row: dict[str, object]) -> DatasetFormat | None:
    """Return the format of a row by its keys alone; None where it looks like none of the formats."""
    keys = row.keys()
    if "messages" in keys:
        return DatasetFormat.CHAT
    if {"chosen", "rejected"} <= keys or {"preferred_output", "non_preferred_output"} <= keys:
        return DatasetFormat.PREFERENCE
    if {"prompt", "completion"} <= keys:
        return DatasetFormat.PROMPT_COMPLETION
    return DatasetFormat.TEXT if "text" in keys else None


FORMATS_OF_METHOD = {
    Method.LORA: frozenset({DatasetFormat.CHAT, DatasetFormat.PROMPT_COMPLETION}),
    Method.SFT: frozenset({DatasetFormat.CHAT, DatasetFormat.PROMPT_COMPLETION}),
    Method.QLORA: frozenset({DatasetFormat.CHAT, DatasetFormat.PROMPT_COMPLETION}),
    Method.DPO: frozenset({DatasetFormat.PREFERENCE}),
    Method.CPT: frozenset({DatasetFormat.TEXT}),
}


WEIGHTS_OF_METHOD: Mapping[Method, tuple[Weights, ...]] = {
    Method.LORA: ("adapter",),
    Method.SFT: ("full",),
    Method.QLORA: ("adapter",),
    Method.DPO: ("adapter", "full"),
    Method.CPT: ("full", "adapter"),
}
"""What `recipe.weights` may be; the first is meant by `auto`."""


def trains_either(method: Method) -> bool:
    """Return whether the method trains an adapter or all weights, as the recipe chooses."""
    return len(WEIGHTS_OF_METHOD[method]) > 1


class SafetyMix(Spec):
    """Rows added to the training rows and recorded in the version. With cpt they are general texts, so that the model
    keeps what it knows; else they are such as preserve alignment, with dpo as pairs of answers."""

    file: FileRef
    share: Share = 0.1
    """Rows of the mix per training row, with cpt tokens per training token; all of the mix is used where it is
    smaller."""


class DatasetPolicy(Spec):
    """What is checked of a dataset's rows, and what becomes of those that do not pass."""

    format: DatasetFormat | Auto = "auto"
    """`auto` takes the format of the first row; every other row must have the same."""
    bad_rows: Literal["reject_file", "drop"] = "drop"
    """What a row that breaks a rule means: the whole file, or that row. Either way it is reported."""
    max_bad_ratio: Share = 0.1
    """Largest share of bad rows with `drop`; above it the file is rejected."""
    truncation: bool = False
    """Whether a row of more tokens than the window is cut at the end. Otherwise it is a bad row; but a text
    continues in further windows. Both answers of a preference row, each behind its prompt, are one row."""
    exact_duplicates: Literal["drop", "keep"] = "drop"
    """What becomes of rows equal to an earlier one."""
    near_duplicates: Literal["drop", "keep"] = "drop"
    """What becomes of rows nearly equal to an earlier one."""
    near_duplicate_similarity: Annotated[float, Field(ge=0.5, le=1.0)] = 0.9
    """Jaccard similarity of the prompts' character 5-grams, boilerplate left out, from which on two rows of equal
    answers and equal system turns are near duplicates."""
    contamination: Literal["drop", "reject_file", "keep"] = "drop"
    """`keep` is for operators: rows that are kept make the check of their source inconclusive."""
    contamination_ratio: Share = 0.5
    """Share of the 13-grams of a benchmark, suite or holdout item from which on a row that holds them is
    contaminated; above the default for operators only."""
    max_dropped_ratio: Share = 0.2
    """A filter (exact duplicates, near duplicates, contamination) that would drop more of a file rejects it."""
    max_seq_length: Annotated[int, Field(ge=16, le=1_048_576)] | Auto = "auto"
    """Tokens of one packed window. `auto`: 4,096, or the base model's context if that is smaller."""
    max_row_bytes: Annotated[int, Field(ge=1, le=1024**3)] = 4 * 1024 * 1024
    """Largest row; larger ones are bad."""
    max_rows: Annotated[int, Field(ge=1, le=50_000_000)] = 5_000_000
    """Most rows of a file; a longer file is refused."""


RSLORA_ALPHA = 16.0
"""Alpha of rsLoRA, the same for every rank, which is what it is for (Kalajdzievski, 2023, takes 16 too)."""


class LoraSpec(Spec):
    """The adapter that is trained."""

    rank: Annotated[int, Field(ge=1, le=512)] = 32
    """Rank of the adapter matrices; memory grows linearly with it."""
    alpha: Annotated[float, Field(ge=0.01, le=65_536.0)] | None = None
    """Scale numerator: the product is multiplied by alpha / rank. None means 2 * rank, and 16 with `use_rslora`."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the adapter's inputs that is dropped in training."""
    target_modules: Literal["all-linear"] | Annotated[tuple[ModulePattern, ...], Field(max_length=256)] = (
        "all-linear"
    )
    """Linear layers that get an adapter, by the end of their names: `q_proj`, `layers.3.mlp.up_proj`, or a pattern
    (`layers.[0-9].*.q_proj`), in which `*` matches any characters, `?` one, `[…]` one of these."""
    use_rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead, so that the size of the update does not fall with the rank."""
    use_dora: bool = False
    """Train the length of each weight's columns apart (DoRA). Refused: vLLM serves no such adapter."""
    modules_to_save: Annotated[tuple[ModulePattern, ...], Field(max_length=16)] = ()
    """Modules trained whole beside the adapter, as embeddings or head. Refused: vLLM serves no such adapter."""

    @property
    def lora_alpha(self) -> float:
        if self.alpha is not None:
            return self.alpha
        return RSLORA_ALPHA if self.use_rslora else 2.0 * self.rank


OptimizerName = Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "muon"]
Schedule = Literal["cosine", "linear", "constant", "wsd"]
DEFAULT_DECAY_RATIO = 0.1


PreferenceLoss = Literal["dpo", "length_normalised", "simpo"]
Beta = Annotated[float, Field(ge=1e-4, le=1_000.0)]
DEFAULT_BETAS: Mapping[PreferenceLoss, float] = {"dpo": 0.1, "length_normalised": 5.0, "simpo": 2.0}
"""Values as published: DPO (arXiv:2305.18290), Tulu 3 (arXiv:2411.15124), SimPO (arXiv:2405.14734)."""
DEFAULT_TARGET_MARGIN = 1.0
"""Target margin of SimPO: half of its beta, from where its authors begin a search."""


class DpoSpec(Spec):
    """What preference optimisation asks of a pair of answers."""

    loss: PreferenceLoss = "dpo"
    """`dpo` compares how much likelier each answer has become than it is by the model that training starts from;
    `length_normalised` the same per token, so that a long answer counts no more than a short one; `simpo` how likely
    each is now, per token, and asks for a margin: it compares with no other model."""
    beta: Beta | Auto = "auto"
    """Factor of what is compared. Larger: the model may leave the one that it starts from less. `auto`: 0.1 with
    `dpo`, 5 with `length_normalised`, 2 with `simpo`."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """Share of the pairs whose answers are assumed to be the wrong way round."""
    gamma: Annotated[float, Field(ge=0.0, le=1_000.0)] | None = None
    """Margin of `simpo` alone, by which the reward of the chosen answer must be larger. None means 1."""

    @property
    def beta_value(self) -> float:
        return DEFAULT_BETAS[self.loss] if self.beta == "auto" else self.beta

    @property
    def target_margin(self) -> float:
        if self.loss != "simpo":
            return 0.0
        return DEFAULT_TARGET_MARGIN if self.gamma is None else self.gamma

    @property
    def has_reference(self) -> bool:
        """Whether the model is compared with the one that training starts from."""
        return self.loss != "simpo"


class CheckpointSpec(Spec):
    """How often a bundle is written."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    """Steps from one periodic bundle to the next."""
    every_seconds: Annotated[float, Field(ge=0.001, le=7 * 24 * 3600)] = 60.0
    """Seconds from one periodic bundle to the next; one is due at the earlier of both."""


class EarlyStoppingSpec(Spec):
    """When training ends before its last step, because the validation loss no longer falls."""

    patience: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Validations in a row without an improvement after which training ends."""
    min_delta: Annotated[float, Field(ge=0.0, le=1_000.0)] = 0.0
    """A validation loss is an improvement where it is lower than at the last improvement by more than this."""


ShardingLibrary = Literal["fsdp2", "deepspeed"]
DEFAULT_ZERO_STAGE = 2


class ShardingSpec(Spec):
    """How weights, gradients and moments are spread over the devices of a job."""

    library: ShardingLibrary = "fsdp2"
    """`fsdp2` is torch's own: all three are spread, and one device takes all whole. `deepspeed` is ZeRO."""
    stage: Annotated[int, Field(ge=1, le=3)] | None = None
    """Stage of `deepspeed` alone: 1 spreads moments, 2 gradients too, 3 also weights. None means 2."""
    offload_optimizer: bool = False
    """Moments and the update of the weights are in the host's memory; with `fsdp2`, on several devices alone, the
    weights too, of which a device gets those that compute. `auto`: where the device would not hold them, even with
    activations computed again; never on a CPU."""
    offload_optimizer_auto: bool = False
    """Whether the device decides. Set where `offload_optimizer` is `auto`."""

    @model_validator(mode="before")
    @classmethod
    def _takes_auto(cls, data: Any) -> Any:
        return _with_flag_for_auto(data, "offload_optimizer", otherwise=False, left_out=False)

    @property
    def zero_stage(self) -> int | None:
        """Stage of ZeRO; None where the library is not `deepspeed`."""
        if self.library == "fsdp2":
            return None
        return DEFAULT_ZERO_STAGE if self.stage is None else self.stage


class Recipe(Spec):
    """How to train. Data alone: hashed into the job's identity."""

    method: Method = Method.LORA
    """`lora` and `sft` learn the answers of rows, by an adapter and by all weights, `qlora` by an adapter beside a
    base of 4 bits; `dpo` learns which of two answers is preferred; `cpt` learns texts."""
    weights: Literal["auto", "adapter", "full"] = "auto"
    """Which weights are trained. `auto`: an adapter's with lora, qlora, dpo and `quantization`, all with sft and cpt;
    dpo and cpt take either."""
    quantization: Literal["nf4"] | None = None
    """`nf4`, with dpo and cpt: train an adapter beside a base whose linear layers have 4 bits, as qlora does. None:
    the base is as it was registered. With other methods it is refused."""
    lora: LoraSpec = LoraSpec()
    dpo: DpoSpec | None = None
    """What method `dpo` is asked for; None means the defaults. With other methods it is refused."""
    learning_rate: Annotated[float, Field(ge=1e-9, le=10.0)] | Auto = "auto"
    """Peak rate. `auto`: 2e-4 for an adapter, 2e-5 for all weights; with dpo a fortieth of these."""
    learning_rate_multiplier: RateMultiplier = 1.0
    """Multiplies the peak rate (OpenAI's name for the dial)."""
    num_epochs: Annotated[int, Field(ge=1, le=100)] | Auto = "auto"
    """Passes over the data. `auto`: 1 with cpt, with dpo and from 10,000 rows on, else 3."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Windows per optimizer step over all devices. `auto`: 1 per 200 windows, within 1 and 32; on several devices
    so many more that all of them have whole micro batches to do."""
    micro_batch_size: Annotated[int, Field(ge=1, le=4096)] = 1
    """Windows per forward pass of one device. `auto`, which is what it is when left out: the largest power of two
    that divides a device's windows of a step and fits its memory; 1 on a CPU."""
    micro_batch_size_auto: bool = False
    """Whether the device decides. Set where `micro_batch_size` is left out or `auto`: in messages it is a number,
    which older recipes always have."""
    warmup_ratio: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.03
    """Share of all steps over which the rate rises linearly to its peak."""
    schedule: Schedule = "cosine"
    """What the rate does after that: it falls to zero along half a cosine or a line, or stays, or (`wsd`) stays and
    falls to zero along a line at the end."""
    decay_ratio: Annotated[float, Field(ge=0.001, le=1.0)] | None = None
    """Share of all steps over which the rate falls at the end, with `wsd` alone. None means 0.1."""
    optimizer: OptimizerName = "adamw"
    """`adamw_8bit` keeps both moments in a byte each, `paged_…` where a GPU may put them out to the host's memory;
    `muon` orthogonalises the updates of matrices and takes AdamW for all else. All but `adamw`: on one device."""
    sharding: ShardingSpec | None = None
    """How weights, gradients and moments are spread over several devices. None means FSDP2."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Share of a matrix that each update takes away, times the rate."""
    max_grad_norm: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Gradients are scaled down to this norm."""
    packing: bool = True
    """Whether several examples share a window, where that is proved not to leak."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type that products are computed in. `auto`: bfloat16 on a GPU that has it, float32 on a CPU."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, for less memory and about a third more time. `auto`, which is
    what it is when left out: where the device would not hold them, or did not; never on a CPU."""
    gradient_checkpointing_auto: bool = False
    """Whether the device decides. Set where `gradient_checkpointing` is left out or `auto`: in messages it is a
    boolean, which older recipes always have."""
    compile: Annotated[bool | None, Field(exclude_if=is_none)] = None
    """Compile the repeated layers before each attempt's first step, for faster steps, on GPUs alone. None: no."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything random."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    eval_every_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps from one measurement of the loss on the whole validation file to the next; also after the last step.
    None: once an epoch with `early_stopping` or `load_best_model_at_end`, else on some windows at each checkpoint."""
    early_stopping: EarlyStoppingSpec | None = None
    """End training when the validation loss no longer falls. None: train to the last step."""
    load_best_model_at_end: bool = False
    """What becomes the model version: the checkpoint with the lowest validation loss, or else the last one."""

    @model_validator(mode="before")
    @classmethod
    def _takes_auto(cls, data: Any) -> Any:
        data = _with_flag_for_auto(data, "gradient_checkpointing", otherwise=False, left_out="auto")
        return _with_flag_for_auto(data, "micro_batch_size", otherwise=1, left_out="auto")

    @property
    def kind(self) -> Weights:
        """What comes of it: an adapter, or a full model."""
        if self.weights != "auto":
            return self.weights
        possible = WEIGHTS_OF_METHOD[self.method]
        return "adapter" if self.quantization and "adapter" in possible else possible[0]

    @property
    def is_quantized(self) -> bool:
        """Whether the base's linear layers have 4 bits while the adapter is trained."""
        return self.method is Method.QLORA or self.quantization is not None

    @property
    def sharded(self) -> ShardingSpec:
        """The sharding, by default where the recipe names none."""
        asked = self.sharding or ShardingSpec()
        return asked.model_copy(update={"stage": asked.zero_stage}) if asked.library == "deepspeed" else asked

    @property
    def preferences(self) -> DpoSpec:
        """What is asked of pairs of answers, by default where the recipe names nothing."""
        return self.dpo or DpoSpec()

    @property
    def has_validations(self) -> bool:
        """Whether the loss on the whole validation file is measured at given steps."""
        return bool(self.eval_every_steps or self.early_stopping or self.load_best_model_at_end)

    @property
    def is_resolved(self) -> bool:
        return "auto" not in (self.learning_rate, self.num_epochs, self.batch_size)


MIN_DEVICE_GIB, MAX_DEVICE_GIB = 0.5, 4096.0


class Resources(Spec):
    """Where a job trains."""

    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of nodes; with `min_nodes` the most of them."""
    min_nodes: Annotated[int | None, Field(ge=1, le=64, exclude_if=is_none)] = None
    """Least number of nodes, for an elastic job: each attempt takes as many as are free, from so many to `nodes`, and
    one that could have had more for a while stops at a checkpoint and continues on them. None: always `nodes`."""
    devices_per_node: Annotated[int, Field(ge=1, le=16)] = 1
    """Training processes on each node, each with a device of its own. One node shares its machine with other jobs;
    several take their machines whole."""
    device: DeviceKind | None = None
    """Kind of device to train on. None: where no accelerators and no pool are named, GPUs if a pool has any, else
    CPUs."""
    accelerators: Annotated[tuple[Name, ...], Field(max_length=8)] = ()
    """Kinds of accelerator that will do, by the words of the pools, such as H100; none: any."""
    device_memory_gib: Annotated[float, Field(ge=MIN_DEVICE_GIB, le=MAX_DEVICE_GIB)] | None = None
    """Least memory of each device; pools with less are left out. None: what the job needs of a GPU by estimate, where
    the gateway knows the base model's size and the window; else any."""
    capacity_type: CapacityType | Literal["spot-first"] = "spot-first"
    pool: Name | None = None
    """A pool by name; None lets the scheduler choose among the pools of the capacity type."""
    grace_seconds: Annotated[float, Field(ge=1, le=600)] = 30.0
    """Time between a notice and the end of a node in which a bundle is written."""
    max_run_seconds: Annotated[float, Field(ge=1, le=30 * 24 * 3600)] | None = None
    """Longest time that an attempt may take from the moment it has its nodes; then it is stopped and the job fails.
    A job that states it may start before larger ones that wait for nodes, where it ends in time. None: no limit."""

    @property
    def num_devices(self) -> int:
        """Training processes of an attempt, each with a device of its own; of an elastic job the most."""
        return self.nodes * self.devices_per_node


class Tier(StrEnum):
    """A tenant's priority class; the gateway stamps it."""

    STANDARD = "standard"
    PREMIUM = "premium"


class StageSpec(Spec):
    """A stage of a job's training after the first: it starts from what the stage before has trained."""

    recipe: Recipe = Recipe()
    training_file: FileRef
    validation_file: FileRef | None = None


class JobSpec(Spec):
    """A job as accepted: base model pinned by sha, files by digest."""

    base_model: Name
    """Name of the base model."""
    base_sha: Sha256
    start_from: StartFrom | None = None
    """What an earlier job trained on the same base model; None starts from the base model."""
    recipe: Recipe = Recipe()
    resources: Resources = Resources()
    gate: GateSpec = GateSpec()
    training_file: FileRef
    validation_file: FileRef | None = None
    later_stages: Annotated[tuple[StageSpec, ...], Field(max_length=7)] = ()
    """What is trained after that, one after the other; recipe and files above are the first stage's. With them one
    job is trained, judged and registered, and its model is the last stage's."""
    holdout: FileRef | None = None
    suffix: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] = ""
    """Part of the version's full name."""
    auto_deploy: bool = True
    """Serve the version once it has passed."""
    tier: Tier = Tier.STANDARD
    metadata: dict[Reference, Sentence] = Field(default={}, max_length=16)
    """Words of the submitter's own; nothing follows from them."""
    allow_ungated: bool = False
    """Train although a required check of the gate has nothing to ask, so that the model cannot pass yet."""
    alerts: AlertsSpec | None = None
    """What each alert does. None: it notifies."""
    max_cost: SpendingLimit | None = None
    """US dollars that the tenant may be charged for the job: before it would be more, the attempt saves a checkpoint
    and the job ends. What it has trained is kept. None: no limit."""
    trial: Annotated[TrialOf | None, Field(exclude_if=is_none)] = None
    """Its place in a sweep, which the tracker names; such a job ends without the gate. None: it is in none."""

    @property
    def alert_actions(self) -> AlertsSpec:
        """What each alert does, by default where the job does not say it."""
        return self.alerts or AlertsSpec()

    @property
    def by_stage(self) -> "tuple[JobSpec, ...]":
        """Specification of each stage, as if it were a job; of this job alone where it has no more stages."""
        later = (stage.model_dump(include={*StageSpec.model_fields}) for stage in self.later_stages)
        first = self.model_copy(update={"later_stages": ()})
        return (first, *(JobSpec.model_validate(first.model_dump() | stage) for stage in later))


class DatasetSpec(Spec):
    """A dataset as requested. Its version id covers this, the base model and the registered suites."""

    base_model: Name
    """Name of the base model."""
    base_sha: Sha256
    training_file: FileRef
    validation_file: FileRef | None = None
    holdout: FileRef | None = None
    safety_mix: SafetyMix | None = None
    policy: DatasetPolicy = DatasetPolicy()
    method: Method = Method.LORA


def canonical_sha256(value: object) -> str:
    """Return sha256 of the value's JSON with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
