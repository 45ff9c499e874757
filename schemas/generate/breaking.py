"""What in a changed JSON Schema would break a reader or a writer of the old one."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """Return a sentence for each breaking change; none where only optional fields were added or texts changed."""
    return list(_compare(old, new, old, new, "payload", set()))


def _compare(
    old: Schema, new: Schema, old_root: Schema, new_root: Schema, where: str, seen: set[str]
) -> Iterator[str]:
    old, new = _resolve(old, old_root), _resolve(new, new_root)
    if where.count(".") > 12 or where in seen:
        return
    seen.add(where)
    if _kind(old) != _kind(new):
        yield f"{where}: was {_kind(old)}, is {_kind(new)}"
        return
    allowed: list[Any] = old.get("enum", [])
    for value in sorted(set(allowed) - set(new.get("enum", allowed))):
        yield f"{where}: no longer allows {value!r}"
    yield from _compare_fields(old, new, old_root, new_root, where, seen)
    if "items" in old and "items" in new:
        yield from _compare(old["items"], new["items"], old_root, new_root, f"{where}[]", seen)


def _compare_fields(
    old: Schema, new: Schema, old_root: Schema, new_root: Schema, where: str, seen: set[str]
) -> Iterator[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    for name in before:
        if name not in after:
            yield f"{where}.{name}: removed"
        else:
            yield from _compare(before[name], after[name], old_root, new_root, f"{where}.{name}", seen)
    for name in sorted(set(_must_give(new)) - set(_must_give(old))):
        yield f"{where}.{name}: is required now"


def _must_give(schema: Schema) -> list[str]:
    """Return the fields without a default: a writer of the old version must have sent them."""
    return [
        name
        for name in schema.get("required", ())
        if "default" not in schema.get("properties", {}).get(name, {})
    ]


def _resolve(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _kind(schema: Schema) -> str:
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(sorted(_kind(option) for option in schema[key]))
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    return str(schema.get("type", "any"))
