"""Every text, collection and number that somebody may send has a bound: what follows from a command can be sent too."""

import re._parser
from collections.abc import Iterator
from typing import Any

import pytest

from schemas.base import Message
from schemas.envelope import MAX_BATCH_BYTES, MAX_COMMAND_BYTES, MAX_FACT_BYTES, MAX_NAME_BYTES
from schemas.gate import GateSpec
from schemas.specification import DatasetSpec, JobSpec, Recipe
from schemas.topics import TENANT_COMMAND_TYPES, TOPICS
from shared.messaging.delivery import MAX_VALUE_BYTES

COMMANDS = sorted(
    {message for topic in TOPICS if topic.is_commands for message in topic.messages}
    | set(TENANT_COMMAND_TYPES),
    key=lambda message: message.type,
)
SPECIFICATIONS = (JobSpec, DatasetSpec, Recipe, GateSpec)
BOUNDED = {"maxLength", "enum", "const", "format"}
LONGEST_BY_PATTERN = 1_024
DECIMALS = {
    f"{path}{name}" for path in ("spec.job.", "spec.", "") for name in ("max_cost", "alerts.expected_cost")
}
"""Bounded by their number of digits, which JSON Schema does not say of a text."""

Schema = dict[str, Any]


def unbounded(schema: Schema, definitions: Schema, path: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].split("/")[-1]]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(keyword, ()):
            yield from unbounded(branch, definitions, path)
    match schema.get("type"):
        case "string" if not _is_bounded_text(schema) and path not in DECIMALS:
            yield f"{path}: text without maxLength"
        case "integer" | "number":
            yield from _of_number(schema, path)
        case "array":
            if "maxItems" not in schema:
                yield f"{path}: array without maxItems"
            yield from unbounded(schema.get("items", {}), definitions, f"{path}[]")
        case "object":
            yield from _of_object(schema, definitions, path)


def _is_bounded_text(schema: Schema) -> bool:
    """A pattern is a bound where it is one of the whole text and repeats nothing without end."""
    pattern = schema.get("pattern", "")
    is_whole = pattern.startswith("^") and pattern.endswith("$")
    longest = re._parser.parse(pattern).getwidth()[1]  # type: ignore[attr-defined]
    return bool(BOUNDED & schema.keys()) or (is_whole and longest <= LONGEST_BY_PATTERN)


def _of_number(schema: Schema, path: str) -> Iterator[str]:
    if "enum" in schema or "const" in schema:
        return
    if not {"maximum", "exclusiveMaximum"} & schema.keys():
        yield f"{path}: number without maximum"
    # 1e-300 is above zero: as a pause, a rate or a divisor it is as bad as zero.
    if "minimum" not in schema and (schema["type"] == "number" or "exclusiveMinimum" not in schema):
        yield f"{path}: number without minimum"


def _of_object(schema: Schema, definitions: Schema, path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield from unbounded(field, definitions, f"{path}.{name}".lstrip("."))
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        if not {"maxProperties", "propertyNames"} <= schema.keys():
            yield f"{path}: object without maxProperties and propertyNames"
        yield from unbounded(values, definitions, f"{path}{{}}")


@pytest.mark.parametrize("model", [*COMMANDS, *SPECIFICATIONS], ids=lambda model: model.__name__)
def test_all_that_may_be_asked_for_is_bounded(model: type[Message]):
    schema = model.model_json_schema()
    assert list(unbounded(schema, schema.get("$defs", {}))) == []


def test_an_unbounded_field_is_seen():
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "texts": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "by_name": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
            "any_length": {"type": "string", "pattern": "^[a-z]*$"},
            "part": {"type": "string", "pattern": "[a-z]{3}"},
            "no_most": {"type": "integer", "minimum": 0},
            "no_least": {"type": "number", "exclusiveMinimum": 0, "maximum": 3},
            "fine": {"type": "string", "maxLength": 3},
            "fine_by_pattern": {"type": "string", "pattern": "^[a-z]{3}$"},
            "fine_number": {"type": "integer", "exclusiveMinimum": 0, "maximum": 3},
        },
    }
    paths = [each.split(":")[0] for each in unbounded(schema, {})]
    assert paths == [
        *("text", "texts", "texts[]", "by_name"),
        *("any_length", "part", "no_most", "no_least"),
    ]


def test_what_follows_from_a_command_can_be_written_and_what_is_written_can_be_read():
    """A fact repeats a command's payload once, with attributes of its own and what was decided."""
    attributes = 16 * MAX_NAME_BYTES
    assert MAX_COMMAND_BYTES + attributes < MAX_FACT_BYTES < MAX_VALUE_BYTES < MAX_BATCH_BYTES
