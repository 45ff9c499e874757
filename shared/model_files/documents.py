"""Read the JSON files beside a model's weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.model_files.tensors import BadModel

MAX_JSON_BYTES = 64 * 1024 * 1024


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the content of a configuration that names no code to run. Raises BadModel."""
    config = read_object(path)
    if "auto_map" in config:
        raise BadModel(
            f"{path.name}: auto_map asks to run the model's own code, which is not done; remove it"
        )
    return config


def read_object(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file. Raises BadModel."""
    try:
        content = json.loads(read_bounded(path, max_bytes=max_bytes))
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{path.name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadModel(f"{path.name} holds a {type(content).__name__}, expected an object")
    return content


def read_bounded(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return the bytes of a file that is read as a whole. Raises BadModel."""
    if (size := path.stat().st_size) > max_bytes:
        raise BadModel(f"{path.name}: found {size} bytes, expected at most {max_bytes}")
    return path.read_bytes()
