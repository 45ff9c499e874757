"""Which recipes run on which devices, as data.

Each row is trained by tests/training/test_compatibility.py in each of its precisions, at the size that it names and
with CPU processes in the place of devices: other sizes of the row and GPUs were not tried. What no row covers is
refused, with the rule and the nearest configuration that works.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
        wanted, precision = spec.resources, spec.recipe.precision
        return (
            spec.recipe.method is self.method
            and wanted.nodes in self.nodes
            and wanted.devices_per_node in self.devices_per_node
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
    """What was found, what is expected, and the nearest configuration that works."""
    param: str


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
    if any(row.covers(spec) for row in rows):
        return None
    return _not_covered(spec, [row for row in rows if row.method is recipe.method])


def _not_covered(spec: JobSpec, rows: Sequence[Row]) -> Refusal:
    wanted = spec.resources
    found = (
        f"{spec.recipe.method} on {wanted.nodes} node(s) with {wanted.devices_per_node} device(s) each "
        f"in {spec.recipe.precision}"
    )
    nearest = min(rows, key=lambda row: _distance(row, spec))
    message = f"{found} is in no row of compatibility table {VERSION}. Nearest that works: {nearest}"
    return Refusal("not_compatible", message, "resources")


def _distance(row: Row, spec: JobSpec) -> int:
    wanted = spec.resources
    return _gap(row.nodes, wanted.nodes) + _gap(row.devices_per_node, wanted.devices_per_node)


def _gap(allowed: range, found: int) -> int:
    return max(allowed.start - found, found - (allowed.stop - 1), 0)


def _span(allowed: range) -> str:
    return str(allowed.start) if len(allowed) == 1 else f"{allowed.start} to {allowed.stop - 1}"


def _words(methods: frozenset[Method]) -> str:
    return ", ".join(sorted(methods))
