"""A job as a form asks for it: what each field means, the request that follows, and where an error belongs. Pure."""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import to_jsonable_python

from schemas.alert import AlertAction, AlertRule, AlertsSpec
from schemas.base import CapacityType
from schemas.capabilities import BaseCapabilities
from schemas.compatibility import methods_for
from schemas.gate import GateSpec
from schemas.recipe_rules import SUPERVISED
from schemas.report import DatasetReport
from schemas.specification import (
    FORMATS_OF_METHOD,
    WEIGHTS_OF_METHOD,
    DatasetPolicy,
    DpoSpec,
    JobSpec,
    LoraSpec,
    Method,
    OptimizerName,
    PreferenceLoss,
    Recipe,
    Resources,
    Schedule,
)
from services.gateway.model import Job, JsonObject, StoredFile, SubmittedSpec, SubmittedStage
from services.gateway.page import formats
from services.gateway.page.views import words_of
from services.gateway.requests import CreateJob, Extensions, SafetyMixChoice
from shared.errors import Refused

ADAPTERS = (Method.LORA, Method.QLORA, Method.DPO, Method.CPT)
EITHER = (Method.DPO, Method.CPT)
YES_NO = ("true", "false")
OPTIONS = "options"
"""Field with the JSON of all that has no field of its own."""
ONCE = re.compile(r"[0-9a-f]{32}")
"""Number of a form, by which one that is sent twice is known."""


@dataclass(frozen=True)
class Setting:
    """A field of the form about one number or choice. Left empty, the default counts."""

    name: str
    path: str
    """Where the request has it."""
    label: str
    group: str
    help: str
    default: str
    choices: tuple[str, ...] = ()
    methods: tuple[Method, ...] = (*Method,)
    """Methods that it is of use with."""


def _setting(group: str, kind: type[BaseModel], parent: str, name: str, label: str, **others: Any) -> Setting:
    """What it means and its default are as the request's own class has them, unless `others` say so."""
    field = kind.model_fields[name]
    path = f"{parent}.{name}"
    own = {"help": field.description or "", "default": _word(field.get_default())}
    return Setting(path.replace(".", "-"), path, label, group, **own | others)


def _word(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "none" if default is None else formats.setting(default)


RECIPE, LORA, DPO, ALERTS = "retune.recipe", "retune.recipe.lora", "retune.recipe.dpo", "retune.alerts"
METHODS: Mapping[Method, str] = {
    Method.LORA: "learns answers, by a small adapter beside the base model",
    Method.QLORA: "as lora, with the base in 4 bits: least memory",
    Method.SFT: "learns answers, by all weights: most memory",
    Method.DPO: "learns which of two answers is preferred",
    Method.CPT: "learns plain texts, token by token",
}
SETTINGS: tuple[Setting, ...] = (
    _setting("Training", Recipe, RECIPE, "learning_rate", "Learning rate"),
    _setting("Training", Recipe, RECIPE, "num_epochs", "Epochs"),
    _setting("Training", Recipe, RECIPE, "batch_size", "Batch size"),
    _setting("Training", Recipe, RECIPE, "schedule", "Schedule", choices=get_args(Schedule)),
    _setting("Training", Recipe, RECIPE, "warmup_ratio", "Warm-up"),
    _setting("Training", Recipe, RECIPE, "weight_decay", "Weight decay"),
    _setting("Training", Recipe, RECIPE, "optimizer", "Optimizer", choices=get_args(OptimizerName)),
    _setting("Training", Recipe, RECIPE, "seed", "Seed"),
    _setting(
        "Weights", Recipe, RECIPE, "weights", "Weights", choices=("auto", "adapter", "full"), methods=EITHER
    ),
    _setting(
        "Weights", Recipe, RECIPE, "quantization", "Quantization", choices=("nf4",), methods=EITHER
    ),
    _setting("Weights", LoraSpec, LORA, "rank", "Rank of the adapter", methods=ADAPTERS),
    _setting("Weights", LoraSpec, LORA, "alpha", "Alpha of the adapter", methods=ADAPTERS, default="2 × rank"),
    _setting("Weights", LoraSpec, LORA, "dropout", "Dropout of the adapter", methods=ADAPTERS),
    _setting(
        "Preferences", DpoSpec, DPO, "loss", "Loss", choices=get_args(PreferenceLoss), methods=(Method.DPO,)
    ),
    _setting("Preferences", DpoSpec, DPO, "beta", "Beta", methods=(Method.DPO,)),
    _setting("Rows and validation", DatasetPolicy, "retune.policy", "max_seq_length", "Window in tokens"),
    _setting("Rows and validation", DatasetPolicy, "retune.policy", "truncation", "Cut long rows", choices=YES_NO),
    _setting("Rows and validation", SafetyMixChoice, "retune.safety_mix", "share", "Share of the safety mix"),
    _setting("Rows and validation", Recipe, RECIPE, "eval_every_steps", "Validate every so many steps"),
    _setting(
        "Rows and validation", Recipe, RECIPE, "load_best_model_at_end", "Keep the best checkpoint", choices=YES_NO
    ),
    _setting("Where", Resources, "retune.resources", "devices_per_node", "Devices of a node"),
    _setting("Where", Resources, "retune.resources", "nodes", "Nodes"),
    _setting("Where", Resources, "retune.resources", "min_nodes", "Least nodes", default="as many as nodes"),
    _setting("Where", Resources, "retune.resources", "pool", "Pool", default="any"),
    _setting(
        "Where", Resources, "retune.resources", "capacity_type", "Capacity",
        choices=("spot-first", *(each.value for each in CapacityType)),
        help="Nodes of `spot` pools cost less and may be taken back; `spot-first` tries these pools before others.",
    ),
    _setting("Where", Extensions, "retune", "max_cost", "Most that it may cost, US dollars", default="no limit"),
    *(
        _setting("Alerts", AlertsSpec, ALERTS, rule.value, words_of(rule).capitalize(), choices=get_args(AlertAction))
        for rule in AlertRule
    ),
    _setting("Alerts", AlertsSpec, ALERTS, "expected_cost", "Planned cost, US dollars", default="no plan"),
    _setting("Afterwards", JobSpec, "retune", "auto_deploy", "Serve it once its gate has passed", choices=YES_NO),
    _setting("Afterwards", Extensions, "retune", "allow_ungated", "Train without a gate", choices=YES_NO),
)  # fmt: skip
MAIN = {
    "model": "model",
    "training_file": "training_file",
    "validation_file": "validation_file",
    "suffix": "suffix",
    "method": "retune.recipe.method",
    "holdout_file": "retune.holdout_file",
    "safety_mix": "retune.safety_mix.file",
}
"""Fields of the form that every job has, and where the request has them."""
PATHS: Mapping[str, str] = MAIN | {setting.name: setting.path for setting in SETTINGS}
Values = Mapping[str, str]
"""What the form's fields hold, by their names."""


def method_of(values: Values) -> Method:
    chosen = values.get("method", "")
    return Method(chosen) if chosen in {*Method} else Method.LORA


def request_of(values: Values) -> CreateJob:
    """Raises Refused where the options are no JSON object, and ValidationError."""
    body: dict[str, Any] = {"retune": _options(values.get(OPTIONS, ""))}
    unused = {setting.name for setting in SETTINGS if method_of(values) not in setting.methods}
    for name, path in PATHS.items():
        if (value := values.get(name, "").strip()) and name not in unused:
            _put(body, path.split("."), value)
    if not body["retune"]:
        del body["retune"]
    return CreateJob.model_validate(body)


def _options(text: str) -> JsonObject:
    try:
        options = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_json", f"{OPTIONS}: not JSON: {error}", param=OPTIONS) from error
    if not isinstance(options, dict):
        message = f"{OPTIONS}: found {type(options).__name__}, expected a JSON object"
        raise Refused("invalid_json", message, param=OPTIONS)
    return options


def _put(body: dict[str, Any], path: list[str], value: JsonValue) -> None:
    """Whatever is in the way is left for the request's own check."""
    for name in path[:-1]:
        body = body.setdefault(name, {})
        if not isinstance(body, dict):
            return
    body[path[-1]] = value


def as_asked(model: BaseModel, *, only_different: bool = False) -> JsonObject:
    """Return what was asked for by name, as a person writes it: `auto` in place of the flag that messages have.

    only_different: without what is as it is by default.
    """
    shown: JsonObject = {}
    for name in type(model).model_fields:
        has_flag = f"{name}_auto" in type(model).model_fields
        value = "auto" if has_flag and getattr(model, f"{name}_auto") else getattr(model, name)
        is_default = value == _default(type(model), name)
        if name not in model.model_fields_set or _is_flag(type(model), name):
            continue
        if is_default and (only_different or has_flag):
            continue
        shown[name] = _json(value, only_different=only_different)
    return shown


def _json(value: object, *, only_different: bool) -> JsonValue:
    if isinstance(value, BaseModel):
        return as_asked(value, only_different=only_different)
    if isinstance(value, tuple | list):
        return [_json(each, only_different=only_different) for each in value]
    plain: JsonValue = to_jsonable_python(value)
    return plain


def _is_flag(kind: type[BaseModel], name: str) -> bool:
    return name.endswith("_auto") and name.removesuffix("_auto") in kind.model_fields


def _default(kind: type[BaseModel], name: str) -> object:
    """Return what it is where it is left out; a field with a flag is not always what its default is."""
    flag = f"{name}_auto"
    if flag not in kind.model_fields:
        return kind.model_fields[name].get_default()
    left_out = kind()
    return "auto" if getattr(left_out, flag) else getattr(left_out, name)


def values_of(body: JsonObject) -> dict[str, str]:
    """Return what the form's fields hold for a request; what has no field is in the options."""
    values: dict[str, str] = {}
    rest = json.loads(json.dumps(body))
    for name, path in PATHS.items():
        value = _take(rest, path.split("."))
        if value is not None:
            values[name] = str(value) if isinstance(value, list | dict) else formats.setting(value)
    options = rest.get("retune", {})
    if options:
        values[OPTIONS] = json.dumps(options, indent=2, ensure_ascii=False)
    return values


def _take(body: dict[str, Any], path: list[str]) -> JsonValue:
    """Remove the value, and the objects that are empty without it; None where there is none."""
    name, *rest = path
    if not rest:
        value: JsonValue = body.pop(name, None)
        return value
    inner = body.get(name)
    if not isinstance(inner, dict):
        return None
    value = _take(inner, rest)
    if not inner:
        del body[name]
    return value


def like(job: Job, policies: Iterable[DatasetPolicy | None]) -> JsonObject:
    """Return a request for a job like this one. Numbers that the platform chose for it are left open again.

    policies: of each stage's dataset. Without its metadata and its safety mix, of which nothing is kept.
    """
    return request_for(job.spec, job.stages, policies, chosen=() if job.stages else job.recipe_reasons)


def request_for(
    spec: SubmittedSpec,
    stages: Sequence[SubmittedStage],
    policies: Iterable[DatasetPolicy | None],
    *,
    chosen: Iterable[str] = (),
) -> JsonObject:
    """Return the request that a job was made of. `chosen`: numbers of its recipe that are left open."""
    first, *later = stages or (spec,)
    policy, *later_policies = policies
    assert first.training_file is not None, "a job that was submitted has one"
    body: JsonObject = {
        "model": spec.start_from.name if spec.start_from else spec.base_model,
        "training_file": first.training_file.file_id,
    }
    if first.validation_file:
        body["validation_file"] = first.validation_file.file_id
    if spec.suffix:
        body["suffix"] = spec.suffix
    retune: JsonObject = {
        "recipe": _open_recipe(first.recipe, chosen),
        "resources": as_asked(Resources.model_validate(spec.resources), only_different=True),
        "gate": as_asked(GateSpec.model_validate(spec.gate), only_different=True),
        "policy": as_asked(policy or DatasetPolicy(), only_different=True),
        "alerts": as_asked(AlertsSpec.model_validate(spec.alerts or {}), only_different=True),
    }
    retune = {name: value for name, value in retune.items() if value}
    if spec.holdout:
        retune["holdout_file"] = spec.holdout.file_id
    retune |= {"auto_deploy": False} if not spec.auto_deploy else {}
    retune |= {"allow_ungated": True} if spec.allow_ungated else {}
    retune |= {"max_cost": str(spec.max_cost)} if spec.max_cost is not None else {}
    if later:
        retune["later_stages"] = [_stage(*each) for each in zip(later, later_policies, strict=True)]
    return body | ({"retune": retune} if retune else {})


def on_dataset(
    base: str, files: Mapping[str, str], policy: DatasetPolicy | None, report: DatasetReport | None
) -> JsonObject:
    """Return a request for a job on the rows of a dataset, by the recipe's defaults.

    files: ids by their roles. report: has the method and the safety mix's share; without it they are the defaults.
    """
    body: JsonObject = {"model": base, "training_file": files["training"]}
    body |= {"validation_file": files["validation"]} if "validation" in files else {}
    method: JsonObject = (
        {"method": report.method.value} if report and report.method is not Method.LORA else {}
    )
    rows = as_asked(policy or DatasetPolicy(), only_different=True)
    retune: JsonObject = {"recipe": method, "policy": rows}
    retune = {name: value for name, value in retune.items() if value}
    retune |= {"holdout_file": files["holdout"]} if "holdout" in files else {}
    if "safety_mix" in files:
        mix: JsonObject = {"file": files["safety_mix"]}
        retune["safety_mix"] = mix | ({"share": report.safety_share} if report else {})
    return body | ({"retune": retune} if retune else {})


def _open_recipe(recipe: JsonObject, chosen: Iterable[str]) -> JsonObject:
    """chosen: names of numbers that the platform chose, as `dpo.beta`."""
    left_open = json.loads(json.dumps(recipe))
    for name in chosen:
        _take(left_open, name.split("."))
    return as_asked(Recipe.model_validate(left_open), only_different=True)


def _stage(stage: SubmittedStage, policy: DatasetPolicy | None) -> JsonObject:
    recipe, rows = _open_recipe(stage.recipe, ()), as_asked(policy or DatasetPolicy(), only_different=True)
    shown: JsonObject = {"training_file": stage.training_file.file_id}
    if stage.validation_file:
        shown["validation_file"] = stage.validation_file.file_id
    return shown | ({"recipe": recipe} if recipe else {}) | ({"policy": rows} if rows else {})


@dataclass(frozen=True)
class Problem:
    field: str
    """Field of the form that it is about; empty where it is about none of them."""
    message: str


def problem_at(param: str | None, message: str) -> Problem:
    """Find the field by the name that the request has for it: the nearest one, or else the options'."""
    path = param or ""
    field = _field_of(path)
    if field in ("", OPTIONS):
        field = next((name for name, own in PATHS.items() if path and own.startswith(f"{path}.")), field)
    return Problem(field, message)


def _field_of(path: str) -> str:
    """Return the field that has the value, or a part of which it is; the options for the rest of what is ours."""
    for name, own in PATHS.items():
        if path == own or path.startswith(f"{own}."):
            return name
    return OPTIONS if path == OPTIONS or path.startswith("retune") else ""


def problems_of(error: ValidationError) -> list[Problem]:
    """Return one for each field; of a field that may be several things, with what each of them expects."""
    messages: dict[Problem, list[str]] = {}
    for each in error.errors():
        path = ".".join(str(part) for part in each["loc"])
        field = _field_of(path)
        value = f"found {str(each['input'])[:80]!r}: " if not isinstance(each["input"], dict) else ""
        place = Problem(field, f"{path}: {value}" if field in ("", OPTIONS) else value)
        messages.setdefault(place, []).append(each["msg"].removeprefix("Value error, "))
    return [Problem(place.field, place.message + ", or: ".join(words)) for place, words in messages.items()]


def refused_methods(capabilities: BaseCapabilities | None, file: StoredFile | None) -> dict[Method, str]:
    """Return by method why it cannot train the base model, or take the file; empty where nothing is against it."""
    return {
        method: _why_not_for_base(method, capabilities) or _why_not_for_file(method, file)
        for method in Method
    }


def _why_not_for_base(method: Method, capabilities: BaseCapabilities | None) -> str:
    if capabilities is None or method in methods_for(capabilities):
        return ""
    refused = capabilities.refused_methods
    supervised = [SUPERVISED[weights] for weights in WEIGHTS_OF_METHOD[method]]
    reasons = [refused[each] for each in supervised if each in refused]
    return "; ".join(reasons) or "its weights have other names in memory than in its files"


def _why_not_for_file(method: Method, file: StoredFile | None) -> str:
    expected = FORMATS_OF_METHOD[method]
    if file is None or file.format is None or file.format in expected:
        return ""
    return f"it expects rows of {' or '.join(sorted(expected))}, and the file has rows of {file.format}"


def once_of(sent: str) -> str:
    """Return the number that a form was sent with, or a new one where there is none or it was meddled with."""
    return sent if ONCE.fullmatch(sent) else secrets.token_hex(16)
