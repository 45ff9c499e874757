"""Which recipes run on which devices, as data.

Each row is trained by tests/training/test_compatibility.py in each of its precisions, at the size that it names and
with CPU processes in the place of devices: other sizes of the row and GPUs were not tried. What no row covers is
refused, with the rule and the nearest configuration that works.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from schemas.capabilities import BaseCapabilities
from schemas.specification import AVAILABLE_METHODS, JobSpec, LoraSpec, Method

VERSION = 1
"""Rises with every change of a row."""


@dataclass(frozen=True)
class Row:
    method: Method
    nodes: range
    devices_per_node: range
    sharding: Literal["none", "fsdp2"]
    """What the trainer uses for such a gang."""
    precisions: frozenset[str]
    tested_at: tuple[int, int]
    """Nodes and devices per node at which the row is trained by its test."""

    def covers(self, spec: JobSpec) -> bool:
        request, precision = spec.resources, spec.recipe.precision
        return (
            spec.recipe.method is self.method
            and request.nodes in self.nodes
            and request.devices_per_node in self.devices_per_node
            and (precision == "auto" or precision in self.precisions)
        )

    def __str__(self) -> str:
        nodes, devices = _span(self.nodes), _span(self.devices_per_node)
        precisions = " or ".join(sorted(self.precisions))
        return f"{self.method} on {nodes} node(s) with {devices} device(s) each in {precisions}"


@dataclass(frozen=True)
class Refusal:
    code: str
    """The rule, as a stable word for machines."""
    message: str
    """The configuration, what is expected, and the nearest configuration that works."""
    param: str


MIN_STEPS_OF_INTERVAL = 10
MIN_SECONDS_OF_INTERVAL = 5
"""From one periodic bundle to the next."""

_ONE, _SEVERAL_DEVICES, _SEVERAL_NODES = range(1, 2), range(2, 17), range(2, 65)
_PRECISIONS = frozenset({"float32", "bfloat16"})

ROWS: tuple[Row, ...] = tuple(
    row
    for method in (Method.LORA, Method.SFT)
    for row in (
        Row(method, _ONE, _ONE, "none", _PRECISIONS, tested_at=(1, 1)),
        Row(method, _ONE, _SEVERAL_DEVICES, "fsdp2", _PRECISIONS, tested_at=(1, 2)),
        Row(method, _SEVERAL_NODES, range(1, 17), "fsdp2", _PRECISIONS, tested_at=(2, 1)),
    )
)

NEAREST_METHOD: Mapping[Method, Method] = {
    Method.QLORA: Method.LORA,
    Method.DPO: Method.LORA,
    Method.CPT: Method.SFT,
}


def check(spec: JobSpec, rows: Sequence[Row] = ROWS) -> Refusal | None:
    """Why the job could not run whatever its files, or None."""
    recipe = spec.recipe
    if recipe.method not in AVAILABLE_METHODS:
        message = (
            f"method {recipe.method} is not available yet; available: {_words(AVAILABLE_METHODS)}. "
            f"Nearest that works: method {NEAREST_METHOD[recipe.method]} with the same resources"
        )
        return Refusal("method_not_available", message, "recipe.method")
    if recipe.method is Method.SFT and recipe.lora != LoraSpec():
        message = (
            "method sft trains all weights and would ignore recipe.lora; leave it out. "
            "Nearest that works: method lora with the same recipe.lora"
        )
        return Refusal("lora_ignored", message, "recipe.lora")
    if not any(row.covers(spec) for row in rows):
        return _not_covered(spec, [row for row in rows if row.method is recipe.method])
    return _of_batch(spec) or _of_checkpoints(spec)


def _of_batch(spec: JobSpec) -> Refusal | None:
    """Fewer windows in a step than devices leave some without work at every step."""
    batch, request = spec.recipe.batch_size, spec.resources
    if batch == "auto" or batch >= request.num_devices:
        return None
    nodes = min(request.nodes, batch)
    message = (
        f"batch_size {batch} leaves {request.num_devices - batch} of {request.num_devices} devices without work at "
        f"every step. Nearest that works: batch_size {request.num_devices} (or auto) with the same resources, or "
        f"batch_size {batch} on {nodes} node(s) with {batch // nodes} device(s) each"
    )
    return Refusal("batch_too_small", message, "recipe.batch_size")


def _of_checkpoints(spec: JobSpec) -> Refusal | None:
    """Each bundle is an upload, a verification and messages: they may not be written without a pause."""
    interval = spec.recipe.checkpoint
    for name, least in (("every_steps", MIN_STEPS_OF_INTERVAL), ("every_seconds", MIN_SECONDS_OF_INTERVAL)):
        if (value := getattr(interval, name)) < least:
            message = f"{name} is {value:g}, expected {least} at least. Nearest that works: {name} {least}"
            return Refusal("bundles_too_often", message, f"recipe.checkpoint.{name}")
    return None


def check_base(spec: JobSpec, capabilities: BaseCapabilities | None) -> Refusal | None:
    """Why the base model cannot be trained as the job asks, or None; also where its capabilities are not known."""
    if capabilities is None:
        return None
    recipe, refused = spec.recipe, capabilities.refused_methods
    family = f"base model {spec.base_model} ({capabilities.family})"
    if reason := refused.get(recipe.method):
        others = sorted(AVAILABLE_METHODS - refused.keys())
        nearest = (
            f"Nearest that works: method {others[0]} on the same base model"
            if others
            else "No method trains it: choose another base model"
        )
        message = f"{family} cannot be trained with method {recipe.method}: {reason}. {nearest}"
        return Refusal("method_not_for_base", message, "recipe.method")
    return _unknown_targets(recipe.lora, family, capabilities) if recipe.method is Method.LORA else None


def _unknown_targets(lora: LoraSpec, family: str, capabilities: BaseCapabilities) -> Refusal | None:
    asked = () if lora.target_modules == "all-linear" else lora.target_modules
    unknown = [name for name in asked if name.rpartition(".")[2] not in capabilities.lora_targets]
    if not unknown:
        return None
    message = (
        f"{family} has no plain linear layers named {', '.join(unknown)}. "
        f"Nearest that works: all-linear, or some of {', '.join(capabilities.lora_targets)}"
    )
    return Refusal("unknown_lora_targets", message, "recipe.lora.target_modules")


def _not_covered(spec: JobSpec, rows: Sequence[Row]) -> Refusal:
    request = spec.resources
    combination = (
        f"{spec.recipe.method} on {request.nodes} node(s) with {request.devices_per_node} device(s) each "
        f"in {spec.recipe.precision}"
    )
    nearest = min(rows, key=lambda row: _distance(row, spec))
    message = f"{combination} is in no row of compatibility table {VERSION}. Nearest that works: {nearest}"
    return Refusal("not_compatible", message, "resources")


def _distance(row: Row, spec: JobSpec) -> int:
    request = spec.resources
    return _gap(row.nodes, request.nodes) + _gap(row.devices_per_node, request.devices_per_node)


def _gap(allowed: range, number: int) -> int:
    return max(allowed.start - number, number - (allowed.stop - 1), 0)


def _span(allowed: range) -> str:
    return str(allowed.start) if len(allowed) == 1 else f"{allowed.start} to {allowed.stop - 1}"


def _words(methods: frozenset[Method]) -> str:
    return ", ".join(sorted(methods))
