"""One plausible message per type: what a reader of the contract can look at, and what tests feed on."""

import types
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from schemas.base import Message, Spec

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BY_NAME: dict[str, Any] = {
    "job_id": "ftjob-4f1c9a0b7d2e",
    "new_job_id": "ftjob-9b8a7c6d5e4f",
    "retry_of": "ftjob-0a1b2c3d4e5f",
    "duplicate_of": "ftjob-0a1b2c3d4e5f",
    "dataset_id": "ds-1a2b3c4d5e6f",
    "sweep_id": "sweep-3c2b1a0f9e8d",
    "tenant": "acme",
    "base_model": "tiny-llama",
    "file_id": "file-7e6d5c4b3a29",
    "node_id": "cpu-spot-0",
    "pool": "cpu-spot",
    "full_name": "ft:tiny-llama:acme:docs:1f2e3d4c",
    "slot": "docs-helper",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "suffix": "docs",
    "host": "127.0.0.1",
    "url": "http://127.0.0.1:8001",
    "name": "tiny-llama",
    "nonce": "5e" * 16,
}


def sample_of(message: type[Message]) -> Message:
    return message.model_validate(_values(message))


def _values(model: type[BaseModel]) -> dict[str, Any]:
    fields = list(model.model_fields.items())
    if issubclass(model, Spec):
        fields = [(name, info) for name, info in fields if info.is_required() or info.default is None]
    return {name: _value(name, info) for name, info in fields}


def _value(name: str, info: FieldInfo) -> Any:
    if any("[0-9a-f]{64}" in str(rule) for rule in info.metadata):
        return "5e" * 32
    return _of_type(name, info.annotation)


def _of_type(name: str, annotation: Any) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return "5e" * 32 if "[0-9a-f]{64}" in str(args[1:]) else _of_type(name, args[0])
    if origin in (Union, types.UnionType):
        return _of_type(name, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        return args[0]
    if origin is tuple:
        return (_of_type(name, args[0]),)
    if origin in (dict, Mapping):
        key = name.rstrip("s") if args[0] is str else _of_type(name, args[0])
        return {key: _of_type(name, args[1])}
    return _of_class(name, annotation)


def _of_class(name: str, annotation: type) -> Any:
    if issubclass(annotation, BaseModel):
        return _values(annotation)
    if issubclass(annotation, Enum):
        return next(iter(annotation))
    plain: dict[type, Any] = {
        bool: True,
        int: 1,
        float: 0.9,
        datetime: NOON,
        AwareDatetime: NOON,
        Decimal: Decimal("0.25"),
        str: BY_NAME.get(name, name.replace("_", "-")),
    }
    return plain[annotation]
