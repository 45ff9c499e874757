"""Several jobs beside one of them: what they came to, and the settings that differ. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from schemas.specification import Recipe, Resources
from services.gateway import model
from services.gateway.page import formats
from services.gateway.page.drafts import as_asked
from services.gateway.page.views import JobView

MAX_RUNS = 8
Order = Literal["chosen", "loss", "cost"]
ORDERS: Mapping[Order, str] = {
    "chosen": "in the order of choice",
    "loss": "lowest validation loss first",
    "cost": "cheapest first",
}


@dataclass(frozen=True)
class Run:
    number: int
    view: JobView
    is_base: bool
    change: str
    """How its validation loss is beside the baseline's, or why the two cannot be compared."""
    tone: str


@dataclass(frozen=True)
class Difference:
    name: str
    values: tuple[str, ...]
    """Of each run, in their order."""
    is_other: tuple[bool, ...]
    """Whether it is other than the baseline's."""


def runs(rows: Sequence[model.Job], views: Sequence[JobView]) -> list[Run]:
    """The first one is the baseline."""
    shown = []
    for number, (row, view) in enumerate(zip(rows, views, strict=True), 1):
        change, tone = _change(row, rows[0]) if number > 1 else ("baseline", "")
        shown.append(Run(number, view, number == 1, change, tone))
    return shown


def in_order(shown: Sequence[Run], order: Order) -> list[Run]:
    """Sort rows of the table, those without the number last; the numbers of the runs stay theirs."""
    match order:
        case "loss":
            return sorted(shown, key=lambda run: (run.view.valid_loss is None, run.view.valid_loss or 0.0))
        case "cost":
            return sorted(shown, key=lambda run: Decimal(run.view.answer.retune.cost_usd))
        case _:
            return [*shown]


def _change(row: model.Job, base: model.Job) -> tuple[str, str]:
    if why := why_not_comparable(row, base):
        return f"not comparable: {why}", "muted"
    if row.valid_loss is None or base.valid_loss is None:
        return formats.UNKNOWN, "muted"
    difference = row.valid_loss - base.valid_loss
    if difference == 0:
        return "equal", ""
    words = "better" if difference < 0 else "worse"
    return f"{formats.loss(abs(difference))} {words}", "good" if difference < 0 else "bad"


def why_not_comparable(row: model.Job, base: model.Job) -> str:
    """Why two losses are of different things; empty where they are of one."""
    if row.spec.base_sha != base.spec.base_sha:
        return "another base model"
    if row.dataset_version is None or base.dataset_version is None:
        return (
            "its dataset is not ready"
            if row.dataset_version is None
            else "the baseline's dataset is not ready"
        )
    if row.dataset_version != base.dataset_version:
        return "other data"
    return ""


def differences(rows: Sequence[model.Job]) -> tuple[list[Difference], int]:
    """The settings in which a run is other than the baseline, and how many are equal in all."""
    settings = [_settings(row) for row in rows]
    names = sorted({name for each in settings for name in each})
    other, num_equal = [], 0
    for name in names:
        values = tuple(each.get(name, formats.NONE) for each in settings)
        if len({*values}) == 1:
            num_equal += 1
        else:
            other.append(Difference(name, values, tuple(value != values[0] for value in values)))
    return other, num_equal


def _settings(row: model.Job) -> dict[str, str]:
    spec = row.spec
    files = {
        "training file": spec.training_file,
        "validation file": spec.validation_file,
        "holdout": spec.holdout,
    }
    named = {name: file.filename if file else formats.NONE for name, file in files.items()}
    digests = {f"sha256 of the {name}": formats.short(file.sha256) for name, file in files.items() if file}
    return {
        "base model": spec.base_model or formats.UNKNOWN,
        "files of the base": formats.short(spec.base_sha),
        "starts from": spec.start_from.name if spec.start_from else "the base model",
        "dataset version": formats.short(row.dataset_version),
        **named,
        **digests,
        **_flat("recipe", Recipe.model_validate(spec.recipe).model_dump(mode="json")),
        **_flat("resources", as_asked(Resources.model_validate(spec.resources))),
    }


def _flat(name: str, value: object) -> dict[str, str]:
    if isinstance(value, dict):
        return {
            key: text for own, inner in value.items() for key, text in _flat(f"{name}.{own}", inner).items()
        }
    return {name: formats.setting(value)}
