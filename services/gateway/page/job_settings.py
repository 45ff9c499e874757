"""What was asked of a job, in groups, as its tab Settings shows it. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from schemas.alert import AlertRule, AlertsSpec
from schemas.gate import GateSpec
from schemas.specification import Resources
from services.gateway.model import JsonObject, SubmittedSpec
from services.gateway.page import formats
from services.gateway.page.drafts import as_asked


@dataclass(frozen=True)
class Group:
    title: str
    rows: tuple[tuple[str, str], ...]
    """Name of a setting as requests have it, and its value."""


def groups_of(spec: SubmittedSpec, recipe: JsonObject) -> list[Group]:
    """`recipe`: with what the platform chose. Before JobSubmitted is known there is no group but the recipe's."""
    shown = [Group("Recipe", tuple(flat(recipe)))]
    if spec.base_model is None:
        return shown
    resources = as_asked(Resources.model_validate(spec.resources))
    gate = as_asked(GateSpec.model_validate(spec.gate))
    return [
        *shown,
        Group("Where it trains", tuple(flat(resources))),
        Group("Its gate", tuple(flat(gate))),
        Group("Alerts, and what each does", tuple(_alerts(AlertsSpec.model_validate(spec.alerts or {})))),
        Group("Money and afterwards", tuple(_afterwards(spec))),
    ]


def _alerts(spec: AlertsSpec) -> Iterator[tuple[str, str]]:
    for rule in AlertRule:
        yield rule.value, spec.action_of(rule)
    yield "expected_cost", "no plan" if spec.expected_cost is None else formats.money(spec.expected_cost)


def _afterwards(spec: SubmittedSpec) -> Iterator[tuple[str, str]]:
    yield "max_cost", "no limit" if spec.max_cost is None else formats.money(spec.max_cost)
    yield "auto_deploy", formats.setting(spec.auto_deploy)
    yield "allow_ungated", formats.setting(spec.allow_ungated)


def flat(values: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in sorted(values.items()):
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", formats.setting(value)
