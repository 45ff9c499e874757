"""Which recipes run on which devices, as data.

Each row is trained by tests/training/test_compatibility.py in each of its precisions, at the size that it names and
with CPU processes in the place of devices: other sizes of the row and GPUs were not tried. A row's methods train the
same weights by the same loop; the first is trained at every row's size (in float32 at each change), the others at
that of one row for each kind of weights. What no row covers is refused, with the rule and the nearest configuration
that works.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, get_args

from schemas.capabilities import BaseCapabilities
from schemas.elastic import sizes_of
from schemas.gate import GateSpec
from schemas.numbers import plural
from schemas.recipe_rules import SHARDED, SUPERVISED, WORDS, Refusal, check_choices, check_numbers
from schemas.specification import (
    WEIGHTS_OF_METHOD,
    DatasetFormat,
    JobSpec,
    LoraSpec,
    Method,
    OptimizerName,
    Recipe,
    Weights,
    trains_either,
)

VERSION = 7
"""Rises with every change of a row."""


@dataclass(frozen=True)
class Row:
    weights: Weights
    methods: tuple[Method, ...]
    nodes: range
    devices_per_node: range
    quantization: Literal["none", "nf4"]
    """Quantization of the base while it is trained."""
    sharding: Literal["none", "fsdp2", "deepspeed"]
    """The trainer's sharding for such a gang: with and without offload, and `deepspeed` in all its stages."""
    precisions: frozenset[str]
    optimizers: frozenset[OptimizerName]
    tested_at: tuple[int, int]
    """Nodes and devices per node at which the row is trained by its test."""

    def covers(self, spec: JobSpec) -> bool:
        request, precision = spec.resources, spec.recipe.precision
        return (
            spec.recipe.method in self.methods
            and spec.recipe.kind == self.weights
            and spec.recipe.is_quantized == (self.quantization == "nf4")
            and request.nodes in self.nodes
            and request.devices_per_node in self.devices_per_node
            and (precision == "auto" or precision in self.precisions)
            and spec.recipe.optimizer in self.optimizers
            and (self.sharding == "deepspeed") == (spec.recipe.sharded.library == "deepspeed")
        )

    def __str__(self) -> str:
        nodes, devices = _span(self.nodes, "node"), _span(self.devices_per_node, "device")
        precisions = " or ".join(sorted(self.precisions))
        methods = " or ".join(self.methods)
        gang = f"{nodes} with {devices} each in {precisions}{_by(self.sharding)}"
        return f"{methods} of {WORDS[self.weights]}{_beside(self.quantization == 'nf4')} on {gang}"


_ONE, _SEVERAL_DEVICES, _SEVERAL_NODES = range(1, 2), range(2, 17), range(2, 65)
_PRECISIONS = frozenset({"float32", "bfloat16"})
_WHOLE: frozenset[OptimizerName] = frozenset(get_args(OptimizerName))
_KINDS: tuple[tuple[Weights, Literal["none", "nf4"], tuple[Method, ...]], ...] = (
    ("adapter", "none", (Method.LORA, Method.CPT, Method.DPO)),
    ("adapter", "nf4", (Method.QLORA, Method.CPT, Method.DPO)),
    ("full", "none", (Method.SFT, Method.CPT, Method.DPO)),
)

ROWS: tuple[Row, ...] = tuple(
    row
    for weights, bits, methods in _KINDS
    for row in (
        Row(weights, methods, _ONE, _ONE, bits, "none", _PRECISIONS, _WHOLE, (1, 1)),
        Row(weights, methods, _ONE, _SEVERAL_DEVICES, bits, "fsdp2", _PRECISIONS, SHARDED, (1, 2)),
        Row(weights, methods, _SEVERAL_NODES, range(1, 17), bits, "fsdp2", _PRECISIONS, SHARDED, (2, 1)),
        Row(weights, methods, _ONE, range(1, 17), bits, "deepspeed", _PRECISIONS, SHARDED, (1, 2)),
        Row(weights, methods, _SEVERAL_NODES, range(1, 17), bits, "deepspeed", _PRECISIONS, SHARDED, (2, 1)),
    )
)

NOUNS: Mapping[Weights, str] = {"adapter": "an adapter", "full": "a full model"}


def check(spec: JobSpec, rows: Sequence[Row] = ROWS) -> Refusal | None:
    """Return why the job could not run whatever its files, or None."""
    stages = spec.by_stage
    for number, stage in enumerate(stages):
        refusal = _check_stage(stage, rows) or _check_sizes(stage, rows) or _check_order(stages, number)
        if refusal:
            return refusal.of_stage(number)
    return None


def _check_stage(spec: JobSpec, rows: Sequence[Row]) -> Refusal | None:
    recipe = spec.recipe
    if refusal := check_choices(spec):
        return refusal
    if not any(row.covers(spec) for row in rows):
        return _not_covered(spec, [row for row in rows if recipe.method in row.methods])
    return check_numbers(spec)


def _check_sizes(spec: JobSpec, rows: Sequence[Row]) -> Refusal | None:
    """Return why an elastic job could not run on one of the smaller numbers of nodes that it allows, or None."""
    for resources in sizes_of(spec.resources)[:-1]:
        smaller = spec.model_copy(update={"resources": resources})
        if refusal := _check_stage(smaller, rows):
            least = spec.resources.min_nodes
            message = (
                f"resources.min_nodes is {least}, so an attempt may have {plural(resources.nodes, 'node')}: "
            )
            return replace(refusal, message=message + refusal.message)
    return None


def _check_order(stages: Sequence[JobSpec], index: int) -> Refusal | None:
    """Return why a stage cannot start from what the one before it trains, or None."""
    if index == 0:
        return None
    before = stages[index - 1].recipe
    return check_start(stages[index].recipe, before, f"what stage {index} trains")


def check_base(spec: JobSpec, capabilities: BaseCapabilities | None) -> Refusal | None:
    """Return why the base model cannot be trained as asked; None where it can, or where that is not known."""
    if capabilities is None:
        return None
    refusals = (_check_stage_on_base(stage, capabilities) for stage in spec.by_stage)
    return next((each.of_stage(index) for index, each in enumerate(refusals) if each), None)


def _check_stage_on_base(spec: JobSpec, capabilities: BaseCapabilities) -> Refusal | None:
    recipe, refused = spec.recipe, capabilities.refused_methods
    family = f"base model {spec.base_model} ({capabilities.family})"
    if reason := refused.get(SUPERVISED[recipe.kind]):
        method = (
            f"{recipe.method} and weights {recipe.kind}" if trains_either(recipe.method) else recipe.method
        )
        message = (
            f"{family} cannot be trained with method {method}: {reason}. {_nearest_of_base(recipe, refused)}"
        )
        return Refusal("method_not_for_base", message, "recipe.method")
    if recipe.is_quantized and capabilities.converts_names:
        what, nearest = ("method", "method lora")
        if recipe.quantization:
            what, nearest = (
                "quantization",
                f"method {recipe.method} and weights adapter without quantization",
            )
        message = (
            f"{family} cannot be trained with {what} {getattr(recipe, what)}: its weights have other names in memory "
            "than in its files, from which they are read again to compare. Nearest that works: "
            f"{nearest} on the same base model"
        )
        return Refusal("method_not_for_base", message, f"recipe.{what}")
    return _unknown_targets(recipe.lora, family, capabilities) if recipe.kind == "adapter" else None


def check_start(recipe: Recipe, trained: Recipe, name: str) -> Refusal | None:
    """Return why a job cannot start from `name`, which another one made by the recipe `trained`, or None."""
    if recipe.kind != trained.kind:
        return _other_weights(recipe, trained, name)
    if recipe.kind == "full":
        return None
    asked, own = _shape_of(recipe.lora), _shape_of(trained.lora)
    different = next((field for field in own if asked[field] != own[field]), None)
    if different is None:
        return None
    message = (
        f"recipe.lora.{different} is {asked[different]}, and {name} is an adapter with {own[different]}, which "
        f"cannot change. Nearest that works: leave it out, which takes the adapter's, or {different} {own[different]}"
    )
    return Refusal("other_adapter", message, f"recipe.lora.{different}")


def _other_weights(recipe: Recipe, trained: Recipe, name: str) -> Refusal:
    what, param = (
        ("weights", "recipe.weights") if trains_either(recipe.method) else ("method", "recipe.method")
    )
    value = recipe.kind if what == "weights" else recipe.method
    nearest = trained.kind if what == "weights" else SUPERVISED[trained.kind]
    reason = (
        "an adapter is served on a registered base model only, and this would be one on a full model"
        if trained.kind == "full"
        else "an adapter has not the weights of a full model"
    )
    message = (
        f"{what} {value} trains {WORDS[recipe.kind]}, and {name} is {NOUNS[trained.kind]}: {reason}. "
        f"Nearest that works: {what} {nearest}"
    )
    return Refusal("other_weights", message, param)


def _shape_of(lora: LoraSpec) -> dict[str, object]:
    """Return what makes an adapter what it is; its dropout is of the training alone."""
    targets = lora.target_modules if isinstance(lora.target_modules, str) else sorted(lora.target_modules)
    return lora.model_dump(exclude={"dropout"}) | {"alpha": lora.lora_alpha, "target_modules": targets}


def holdout_formats(method: Method) -> frozenset[DatasetFormat]:
    """Return what the gate can ask of a model: questions with an answer, and texts where it was trained on texts."""
    answered = frozenset({DatasetFormat.CHAT, DatasetFormat.PROMPT_COMPLETION})
    return answered | {DatasetFormat.TEXT} if method is Method.CPT else answered


def check_holdout_of_texts(gate: GateSpec) -> Refusal | None:
    """Return why the gate cannot ask a holdout of texts, or None: texts have no answer that could be compared."""
    nearest = "Nearest that works: gate.holdout.metric perplexity without a judge"
    if gate.holdout.metric != "perplexity":
        metric = f"gate.holdout.metric is {gate.holdout.metric}"
        message = f"{metric}, and the holdout has texts, which have no answer. {nearest}"
        return Refusal("holdout_without_answers", message, "gate.holdout.metric")
    if gate.judge is not None:
        message = f"gate.judge compares answers, and the holdout has texts, which have none. {nearest}"
        return Refusal("holdout_without_answers", message, "gate.judge")
    return None


def methods_for(capabilities: BaseCapabilities) -> list[Method]:
    """Return the available methods that train the base model in one way or another."""
    weights = [
        weights for weights, method in SUPERVISED.items() if method not in capabilities.refused_methods
    ]
    methods = (m for m in Method if any(each in WEIGHTS_OF_METHOD[m] for each in weights))
    return sorted(m for m in methods if m is not Method.QLORA or not capabilities.converts_names)


def _nearest_of_base(recipe: Recipe, refused: Mapping[Method, str]) -> str:
    others: list[Weights] = [weights for weights, method in SUPERVISED.items() if method not in refused]
    if not others:
        return "No method trains it: choose another base model"
    method = f"weights {others[0]}" if trains_either(recipe.method) else f"method {SUPERVISED[others[0]]}"
    return f"Nearest that works: {method} on the same base model"


def _unknown_targets(lora: LoraSpec, family: str, capabilities: BaseCapabilities) -> Refusal | None:
    asked = () if lora.target_modules == "all-linear" else lora.target_modules
    nearest = f"Nearest that works: all-linear, or some of {', '.join(capabilities.lora_targets)}"
    unknown = [name for name in asked if not _names_some(name, capabilities.lora_targets)]
    if unknown:
        message = f"{family} has no plain linear layers named {', '.join(unknown)}. {nearest}"
        return Refusal("unknown_lora_targets", message, "recipe.lora.target_modules")
    beyond = [name for name in asked if _layer_of(name) >= capabilities.num_layers > 0]
    if beyond:
        message = (
            f"{family} has layers 0 to {capabilities.num_layers - 1}, and recipe.lora.target_modules names "
            f"{', '.join(beyond)}. {nearest}"
        )
        return Refusal("unknown_lora_targets", message, "recipe.lora.target_modules")
    return None


def _names_some(pattern: str, targets: Sequence[str]) -> bool:
    last = pattern.rpartition(".")[2]
    return any(fnmatchcase(target, last) for target in targets)


def _layer_of(pattern: str) -> int:
    """Return the layer that the pattern names; -1 where it names none by its number."""
    return max((int(part) for part in pattern.split(".") if part.isdecimal()), default=-1)


def _not_covered(spec: JobSpec, rows: Sequence[Row]) -> Refusal:
    request = spec.resources
    combination = (
        f"{spec.recipe.method} of {WORDS[spec.recipe.kind]}{_beside(spec.recipe.is_quantized)} on "
        f"{plural(request.nodes, 'node')} with {plural(request.devices_per_node, 'device')} each in "
        f"{spec.recipe.precision}{_by(spec.recipe.sharded.library)}"
    )
    nearest = min(rows, key=lambda row: _distance(row, spec))
    message = f"{combination} is in no row of compatibility table {VERSION}. Nearest that works: {nearest}"
    return Refusal("not_compatible", message, "resources")


def _beside(is_quantized: bool) -> str:
    return " beside a base of 4 bits" if is_quantized else ""


def _by(library: str) -> str:
    return " with library deepspeed" if library == "deepspeed" else ""


def _distance(row: Row, spec: JobSpec) -> int:
    request = spec.resources
    other_base = spec.recipe.is_quantized != (row.quantization == "nf4")
    return _gap(row.nodes, request.nodes) + _gap(row.devices_per_node, request.devices_per_node) + other_base


def _gap(allowed: range, number: int) -> int:
    return max(allowed.start - number, number - (allowed.stop - 1), 0)


def _span(allowed: range, noun: str) -> str:
    return (
        plural(allowed.start, noun) if len(allowed) == 1 else f"{allowed.start} to {allowed.stop - 1} {noun}s"
    )
