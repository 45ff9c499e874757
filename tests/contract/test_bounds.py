"""Every text and every collection that somebody may send has a bound: what follows from a command can be sent too."""

from collections.abc import Iterator
from typing import Any

import pytest

from schemas.base import Message
from schemas.envelope import MAX_COMMAND_BYTES, MAX_FACT_BYTES, MAX_NAME_BYTES
from schemas.specification import DatasetSpec, GateSpec, JobSpec, Recipe
from schemas.topics import TENANT_COMMAND_TYPES, TOPICS
from shared.messaging.delivery import MAX_VALUE_BYTES

COMMANDS = sorted(
    {message for topic in TOPICS if topic.is_commands for message in topic.messages}
    | set(TENANT_COMMAND_TYPES),
    key=lambda message: message.type,
)
SPECIFICATIONS = (JobSpec, DatasetSpec, Recipe, GateSpec)
BOUNDED = {"maxLength", "enum", "const", "pattern", "format"}
DECIMALS = {"spec.max_cost", "max_cost"}
"""Bounded by their number of digits, which JSON Schema does not say of a text."""

Schema = dict[str, Any]


def unbounded(schema: Schema, definitions: Schema, path: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].split("/")[-1]]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(keyword, ()):
            yield from unbounded(branch, definitions, path)
    match schema.get("type"):
        case "string" if not BOUNDED & schema.keys() and path not in DECIMALS:
            yield f"{path}: text without maxLength"
        case "array":
            if "maxItems" not in schema:
                yield f"{path}: array without maxItems"
            yield from unbounded(schema.get("items", {}), definitions, f"{path}[]")
        case "object":
            yield from _of_object(schema, definitions, path)


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
            "fine": {"type": "string", "maxLength": 3},
        },
    }
    assert [each.split(":")[0] for each in unbounded(schema, {})] == ["text", "texts", "texts[]", "by_name"]


def test_what_follows_from_a_command_can_be_written_and_what_is_written_can_be_read():
    """A fact repeats a command's payload once, with attributes of its own and what was decided."""
    attributes = 16 * MAX_NAME_BYTES
    assert MAX_COMMAND_BYTES + attributes < MAX_FACT_BYTES < MAX_VALUE_BYTES
