"""The pages of docs/reference, each made from the code that it describes."""

import importlib
import itertools
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import typer
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from pydantic_settings import BaseSettings
from typer.core import TyperGroup

from deploy.bootstrap.settings import Settings as BootstrapSettings
from deploy.monitoring.metrics import metrics
from deploy.placeholders import placeholder_settings
from deploy.reference.markdown import Schema, code, fields, is_model, linked_to, table, type_of
from schemas.base import Message
from schemas.dataset import SubmitDataset
from schemas.gate import GateSpec
from schemas.handled import HANDLED
from schemas.job import SubmitJob
from schemas.specification import DatasetPolicy, DatasetSpec, JobSpec
from schemas.topics import LISTENS, TOPICS, Topic, listens_to_tenants, tenant_topics
from services.gateway.app import build
from services.gateway.requests import CreateJob
from services.gateway.settings import Settings as GatewaySettings
from shared.settings import ServiceSettings, Timing
from shared.tls import Tls

ROOT = Path(__file__).parents[2]
JOB = (CreateJob, JobSpec, DatasetSpec)
POLICIES = (DatasetPolicy, GateSpec)
PARTS = ("timing", "tls")
"""Settings with a section of their own."""
OWN_ERRORS = {"HTTPValidationError", "ValidationError"}
"""FastAPI's, in whose place ours answer in OpenAI's shape."""
ALIAS = "/v1/fine-tuning/"
"""Another spelling of `/v1/fine_tuning/`, whose routes are the same."""


def pages() -> dict[str, str]:
    """The text of each page by its name."""
    return {
        "job": _job(),
        "policies": _policies(),
        "settings": _settings(),
        "cli": _cli(),
        "http": _http(),
        "messages": _messages(),
        "topics": _topics(),
        "metrics": _metrics(),
    }


def _page(title: str, introduction: str, sections: Iterable[str]) -> str:
    origin = "Written by `make reference` from the code; a change here is lost."
    return "\n\n".join([f"# {title}", introduction, origin, *sections]) + "\n"


def _models(models: Iterable[type[BaseModel]], mode: JsonSchemaMode = "validation") -> dict[str, Schema]:
    _, document = models_json_schema([(model, mode) for model in models], ref_template="#/$defs/{model}")
    definitions: dict[str, Schema] = document["$defs"]
    return definitions


def _sections(definitions: Mapping[str, Schema], names: Iterable[str]) -> Iterator[str]:
    """A section for each model, with its sentence and its fields."""
    for name in names:
        if is_model(definition := definitions[name]):
            description = definition.get("description", "")
            yield "\n\n".join(filter(None, (f"## {name}", description, fields(definition, definitions))))


def _reached(definitions: Mapping[str, Schema], name: str) -> list[str]:
    """The model of that name and all that it consists of, each before its parts."""
    names, waiting = [], [name]
    while waiting:
        current = waiting.pop(0)
        if current not in names:
            names.append(current)
            waiting += _references(definitions[current])
    return names


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].rpartition("/")[2]] if isinstance(value.get("$ref"), str) else []
        return own + [name for each in value.values() for name in _references(each)]
    return [name for each in value for name in _references(each)] if isinstance(value, list) else []


def _job() -> str:
    names = [name for name in _names(*JOB) if name not in _names(*POLICIES)]
    page = _page(
        "Job specification",
        "`POST /v1/fine_tuning/jobs` takes a [CreateJob](#createjob); what OpenAI's API has no word for is under"
        f" `retune`. Over Kafka, {SubmitJob.type} carries a [JobSpec](#jobspec) and {SubmitDataset.type} a"
        " [DatasetSpec](#datasetspec). Unknown fields are refused.",
        _sections(_models(JOB), names),
    )
    return linked_to("policies", page, _names(*POLICIES))


def _policies() -> str:
    return _page(
        "Policies",
        "What is checked of a dataset's rows, and what a model must show before it is served. Both are parts of a"
        " [job](job.md). How often the gate errs is in [gate.md](../gate.md).",
        _sections(_models(POLICIES), _names(*POLICIES)),
    )


def _names(*roots: type[BaseModel]) -> list[str]:
    """The models and all that they consist of, without repetition."""
    definitions = _models(roots)
    return list(dict.fromkeys(name for root in roots for name in _reached(definitions, root.__name__)))


def _settings() -> str:
    sections = [_settings_section("Every service", ServiceSettings, "<SERVICE>_", leave_out=PARTS)]
    sections.append(_settings_section("Timing", Timing, "TIMING_"))
    sections.append(_settings_section("TLS of every process", Tls, "RETUNE_"))
    folder = ROOT / "services"
    for name in sorted(".".join(path.relative_to(folder).parts[:-1]) for path in folder.rglob("settings.py")):
        settings = importlib.import_module(f"services.{name}.settings").Settings
        inherited = ServiceSettings.model_fields if issubclass(settings, ServiceSettings) else {}
        prefix = settings.model_config["env_prefix"]
        sections.append(_settings_section(name, settings, prefix, leave_out={*inherited, *PARTS}))
    sections.append(_settings_section("`python -m deploy.bootstrap`", BootstrapSettings, "", leave_out=PARTS))
    return _page(
        "Settings",
        "Each service reads its environment once, at start: a variable is the prefix and the name in capitals."
        " A duration is a number of seconds or ISO 8601 (`PT5M`); lists and maps are JSON."
        " A required variable that is missing stops the process with its name.",
        sections,
    )


def _settings_section(
    title: str, settings: type[BaseSettings], prefix: str, leave_out: Iterable[str] = ()
) -> str:
    document = settings.model_json_schema(ref_template="#/$defs/{model}")
    definitions, required = document.get("$defs", {}), document.get("required", ())
    own = {name: field for name, field in document["properties"].items() if name not in leave_out}
    rows = [
        (
            f"`{prefix}{name.upper()}`",
            type_of(field, definitions),
            "required" if name in required else _setting_default(field),
            field.get("description", ""),
        )
        for name, field in own.items()
    ]
    body = table(("variable", "type", "default", "meaning"), rows) if rows else "Only those of every service."
    return "\n\n".join([f"## {title}", body, *_sections(definitions, dict.fromkeys(_references(own)))])


def _setting_default(field: Schema) -> str:
    if "default" not in field or isinstance(field["default"], dict):
        return ""
    return code(field["default"]).replace(str(Path.home()), "~")


def _cli() -> str:
    return _page(
        "The `retune` command",
        "`--json` before the noun prints results as JSON on stdout; everything else goes to stderr.",
        _commands("retune", command_line()),
    )


def command_line() -> Any:
    """The command `retune`, which pyproject.toml names the module of."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module = importlib.import_module(scripts["retune"].partition(":")[0])
    return typer.main.get_command(module.app)


def _commands(path: str, command: Any) -> Iterator[str]:
    """A section for each command below this one."""
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from _commands(f"{path} {name}", command.get_command(context, name))
        return
    hints = get_type_hints(command.callback)
    rows = [
        (
            ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts)),
            _parameter_type(hints.get(each.name, bool)),  # the option of `Changes` is no parameter of it
            "required" if each.required else "" if each.default in (None, False, ()) else code(each.default),
            getattr(each, "help", "") or "",
        )
        for each in command.params
    ]
    arguments = [each.name.upper() for each in command.params if each.param_type_name == "argument"]
    usage = f"`{' '.join([path, *arguments])}`"
    parameters = table(("parameter", "type", "default", "meaning"), rows) if rows else ""
    yield "\n\n".join(filter(None, (f"## {path}", command.help or "", usage, parameters)))


def _parameter_type(hint: Any) -> str:
    if hint is bool:
        return "flag"
    document = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    return type_of(document, document.get("$defs", {})).removesuffix(" or null")


def _http() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the alias has the operation ids of what it is an alias of
        document = build(placeholder_settings(GatewaySettings)).openapi()
    sections = [
        _operation(method, path, operation)
        for path, operations in document["paths"].items()
        if not path.startswith(ALIAS)
        for method, operation in operations.items()
    ]
    definitions = {
        **document.get("components", {}).get("schemas", {}),
        **_models_of_bodies(document["paths"]),
    }
    elsewhere = {*_names(*JOB)}
    page = _page(
        "HTTP",
        "The shapes are OpenAI's where OpenAI has them: `/v1/fine_tuning`, `/v1/files`, `/v1/models` and"
        f" `/v1/chat/completions` work with the `openai` client. `{ALIAS}…` is another spelling of"
        " `/v1/fine_tuning/…`."
        " The key goes into the header `Authorization: Bearer …`; routes under `/v1/admin` take the operator's.",
        [
            *sections,
            *_sections(definitions, [name for name in definitions if name not in elsewhere | OWN_ERRORS]),
        ],
    )
    return linked_to("job", linked_to("policies", page, _names(*POLICIES)), elsewhere)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [
        (f"`{each['name']}`", each["in"], "required" if each.get("required") else _parameter_default(each))
        for each in operation.get("parameters", ())
    ]
    parts = [
        f"## {method.upper()} {path}",
        operation.get("description", ""),
        _linked("Body", operation.get("requestBody", {})),
        _linked("Answer", operation.get("responses", {}).get("200", {})),
        table(("parameter", "in", "default"), rows) if rows else "",
    ]
    return "\n\n".join(filter(None, parts))


def _schemas_of(carrier: Mapping[str, Any]) -> list[Schema]:
    """Return the schemas of a body or an answer, one for each content type."""
    return [content["schema"] for content in carrier.get("content", {}).values() if "schema" in content]


def _linked(word: str, carrier: Mapping[str, Any]) -> str:
    """A sentence that links the models of a body or an answer."""
    named = [
        [schema["title"]] if _stands_inline(schema) else _references(schema)
        for schema in _schemas_of(carrier)
    ]
    links = [f"[{name}](#{name.lower()})" for name in dict.fromkeys(itertools.chain(*named))]
    return f"{word}: {' or '.join(links)}." if links else ""


def _stands_inline(schema: Schema) -> bool:
    return "properties" in schema and "title" in schema


def _models_of_bodies(paths: Mapping[str, Any]) -> dict[str, Schema]:
    """Return the models of bodies that are written in their operation and not among the components."""
    operations = (operation for each in paths.values() for operation in each.values())
    bodies = (schema for each in operations for schema in _schemas_of(each.get("requestBody", {})))
    inline = [schema for schema in bodies if _stands_inline(schema)]
    return {
        name: model
        for schema in inline
        for name, model in {schema["title"]: schema, **schema.get("$defs", {})}.items()
    }


def _parameter_default(parameter: Mapping[str, Any]) -> str:
    return code(parameter["schema"]["default"]) if "default" in parameter["schema"] else ""


def _messages() -> str:
    messages: dict[str, type[Message]] = {
        message.type: message for topic in TOPICS for message in topic.messages
    }
    definitions = _models(messages.values(), "serialization")
    parts = sorted(set(definitions) - set(messages))
    sections = _sections(definitions, sorted(messages))
    origins = (_origin(messages[name]) for name in sorted(messages))
    return _page(
        "Messages",
        "Every command and fact with its fields; the parts that several share are at the end. A record's value is"
        " the JSON of these fields, its headers are CloudEvents attributes (`ce_type` is `retune.<name>.v<version>`)."
        " Machine-readable: `schemas/json`, `schemas/avro`, one example of each in `schemas/samples`. Which topic"
        " carries what: [topics](topics.md).",
        [*map("\n\n".join, zip(sections, origins, strict=True)), *_sections(definitions, parts)],
    )


def _origin(message: type[Message]) -> str:
    handlers = ", ".join(f"`{service}`" for service in _handlers(message)) or "none of the services"
    carriers = _carriers(message)
    return f"Version {message.version}, keyed by `{message.keyed_by}`, on {carriers}; handled by {handlers}."


def _handlers(message: type[Message]) -> list[str]:
    return [
        service
        for service, topics in HANDLED.items()
        if any(message.type in types for types in topics.values())
    ]


def _carriers(message: type[Message]) -> str:
    names = [topic.name for topic in TOPICS if message in topic.messages]
    shown = [name for name in names if not name.startswith("parked.")] or ["parked.<service>"]
    return ", ".join(f"`{name}`" for name in shown)


def _topics() -> str:
    topics = (*TOPICS, *tenant_topics("<tenant>"))
    rows = [
        (
            f"`{topic.name}`",
            ", ".join(code(writer) for writer in topic.writers),
            ", ".join(code(reader) for reader in _listeners(topic)),
            str(topic.partitions),
            f"{topic.retention_days} days",
            ", ".join(f"[{message.type}](messages.md#{message.type.lower()})" for message in topic.messages),
        )
        for topic in topics
    ]
    return _page(
        "Topics",
        "Who writes a topic, who reads it, how long it keeps records, and what it carries. Rights in Kafka follow"
        " from this table. The auditor reads all but `run.metrics`, in no group. What is on `agent.directives`, nodes"
        " ask trainer_agent for.",
        [table(("topic", "written by", "read by", "partitions", "kept", "carries"), rows)],
    )


def _listeners(topic: Topic) -> list[str]:
    if topic.tenant is not None:
        return [*filter(listens_to_tenants, LISTENS)]
    return [service for service, topics in LISTENS.items() if topic in topics]


def _metrics() -> str:
    rows = [
        (code(each.name), each.kind, ", ".join(map(code, each.labels)), each.meaning) for each in metrics()
    ]
    return _page(
        "Metrics",
        "What services show at `/metrics` for Prometheus. `service` is the service that shows it; gauges of rows"
        " (jobs, pools, replicas) are the same at every process of a service. Alert rules and dashboards are in"
        " [deploy/monitoring](../../deploy/monitoring/README.md).",
        [table(("metric", "kind", "labels", "meaning"), rows)],
    )
