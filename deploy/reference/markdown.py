"""JSON Schema and tables as Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
Definitions = Mapping[str, Schema]

BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "≥ {} characters",
    "maxLength": "≤ {} characters",
    "minItems": "≥ {} items",
    "maxItems": "≤ {} items",
    "maxProperties": "≤ {} items",
    "pattern": "`{}`",
}
FORMATS = {"password": "secret", "path": "path", "duration": "duration", "date-time": "time"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell(each) for each in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(value: object) -> str:
    """A value as JSON in a code span; an empty text for a secret or a text that is empty."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if text else '`""`'


def fields(schema: Schema, definitions: Definitions) -> str:
    """A table of a model's fields."""
    required = schema.get("required", ())
    rows = [
        (
            f"`{name}`",
            type_of(field, definitions),
            "required" if name in required else default_of(field),
            field.get("description", ""),
        )
        for name, field in schema.get("properties", {}).items()
    ]
    return table(("field", "type", "default", "meaning"), rows) if rows else "No fields."


def default_of(field: Schema) -> str:
    default = field.get("default")
    return "" if "default" not in field or isinstance(default, dict) else code(default)


def type_of(field: Schema, definitions: Definitions) -> str:
    """The type of a field in words, with its bounds; models are links."""
    if "$ref" in field:
        return _reference(field["$ref"].rpartition("/")[2], definitions)
    if "enum" in field or "const" in field:
        return " or ".join(code(value) for value in field.get("enum", [field.get("const")]))
    if alternatives := field.get("anyOf") or field.get("oneOf") or field.get("allOf"):
        return " or ".join(dict.fromkeys(type_of(each, definitions) for each in alternatives))
    bounds = _bounds(field)
    return _name(field, definitions) + (f" ({', '.join(bounds)})" if bounds else "")


def _reference(name: str, definitions: Definitions) -> str:
    definition = definitions[name]
    return f"[{name}](#{name.lower()})" if is_model(definition) else type_of(definition, definitions)


def linked_to(page: str, text: str, names: Iterable[str]) -> str:
    """The text with the links of these models leading to another page."""
    for name in names:
        text = text.replace(f"](#{name.lower()})", f"]({page}.md#{name.lower()})")
    return text


def is_model(definition: Schema) -> bool:
    return "properties" in definition or definition.get("type") == "object"


def _name(field: Schema, definitions: Definitions) -> str:
    match field.get("type", "any"):
        case "array":
            return f"list of {type_of(field.get('items', {}), definitions)}"
        case "object":
            values = field.get("additionalProperties")
            return f"map to {type_of(values, definitions)}" if isinstance(values, dict) else "object"
        case str(name):
            return FORMATS.get(field.get("format", ""), name)
        case several:
            return " or ".join(several)


def _bounds(field: Schema) -> list[str]:
    return [text.format(_without_fraction(field[name])) for name, text in BOUNDS.items() if name in field]


def _without_fraction(bound: object) -> object:
    """OpenAPI writes the bounds of integers as floats."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound
