"""Avro schemas of messages. Times, decimals and enumerations are strings, as they are in the JSON payload."""

import types
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

NAMESPACE = "retune"
_PRIMITIVES: dict[type, str] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    datetime: "string",
    AwareDatetime: "string",
    Decimal: "string",
}


def record(model: type[BaseModel], *, name: str | None = None) -> dict[str, Any]:
    """Return the model as an Avro record; nested models are defined at first use and named afterwards."""
    return _record(model, name or model.__name__, seen=set())


def _record(model: type[BaseModel], name: str, seen: set[str]) -> dict[str, Any]:
    seen.add(name)
    fields = [_field(key, info, seen) for key, info in model.model_fields.items()]
    doc = (model.__doc__ or "").strip().split("\n")[0]
    return {"type": "record", "name": name, "namespace": NAMESPACE, "doc": doc, "fields": fields}


def _field(name: str, info: FieldInfo, seen: set[str]) -> dict[str, Any]:
    field: dict[str, Any] = {"name": name, "type": _type(info.annotation, seen)}
    if info.description:
        field["doc"] = info.description
    if _has_default(info):
        field["default"] = to_jsonable_python(info.default)
    return field


def _has_default(info: FieldInfo) -> bool:
    """Return whether Avro can express the default: a union's has to be of its first type, which is null here."""
    return not info.is_required() and (info.default in (None, (), {}) or _is_plain(info.annotation))


def _is_plain(annotation: Any) -> bool:
    """Return whether it is a primitive, one of several words, a list or map, or a record of nothing else."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return all(_is_plain(info.annotation) for info in annotation.model_fields.values())
    if get_origin(annotation) is Annotated:
        return _is_plain(get_args(annotation)[0])
    return get_origin(annotation) in (Literal, tuple, list, dict, Mapping) or annotation in _PRIMITIVES


def _type(annotation: Any, seen: set[str]) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0], seen)
    if origin in (Union, types.UnionType):
        return _union(args, seen)
    if origin is Literal:
        return "string"
    if origin in (tuple, list):
        return {"type": "array", "items": _type(args[0], seen)}
    if origin in (dict, Mapping):
        return {"type": "map", "values": _type(args[1], seen)}
    if annotation is type(None):
        return "null"
    return _named(annotation, seen)


def _named(annotation: type, seen: set[str]) -> Any:
    if annotation in _PRIMITIVES:
        return _PRIMITIVES[annotation]
    if issubclass(annotation, Enum):
        return "string"
    if issubclass(annotation, BaseModel):
        name = annotation.__name__
        return f"{NAMESPACE}.{name}" if name in seen else _record(annotation, name, seen)
    raise TypeError(f"no Avro type for {annotation!r}; add it to the generator")


def _union(args: tuple[Any, ...], seen: set[str]) -> Any:
    members: list[Any] = []
    for arg in sorted(args, key=lambda each: each is not type(None)):
        member = _type(arg, seen)
        members += [
            each for each in (member if isinstance(member, list) else [member]) if each not in members
        ]
    return members[0] if len(members) == 1 else members
