"""Check that a directory is a base model, or a full model of one: no code, no pickle, each tensor once."""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from shared.model_files.documents import read_config, read_object
from shared.model_files.tensors import (
    BASE_DTYPES,
    TRAINED_DTYPES,
    BadModel,
    Shapes,
    Tensor,
    read_tensors,
    shapes_of,
)

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
FULL_WEIGHTS = "model.safetensors"
WEIGHTS_SUFFIX = ".safetensors"
MODEL_SUFFIXES = frozenset({WEIGHTS_SUFFIX, ".json", ".jinja", ".model", ".txt"})
"""No pickle and no code: nothing that runs when it is opened."""


def read_base(directory: Path) -> tuple[Tensor, ...]:
    """Return the tensors of a base model that was fetched from S3. Raises BadModel."""
    _require_plain_files(directory)
    names = sorted(path.name for path in directory.iterdir())
    for name in names:
        if name.endswith(CONFIG):
            read_config(directory / name)
    return read_shards(directory, names)


def read_shards(
    directory: Path, names: Collection[str], *, dtypes: frozenset[str] = BASE_DTYPES
) -> tuple[Tensor, ...]:
    """Return the tensors of these files, each in one file, the index's if there is one. Raises BadModel."""
    shards = {
        name: read_tensors(directory / name, dtypes=dtypes) for name in names if name.endswith(WEIGHTS_SUFFIX)
    }
    files: dict[str, str] = {}
    for file, tensors in shards.items():
        for tensor in tensors:
            if tensor.name in files:
                raise BadModel(f"{file}: tensor {tensor.name[:120]!r} is in {files[tensor.name]} too")
            files[tensor.name] = file
    if not files:
        raise BadModel(f"{directory.name}: no {WEIGHTS_SUFFIX} file, expected the weights")
    if INDEX in names:
        _check_index(read_object(directory / INDEX), files)
    return tuple(tensor for tensors in shards.values() for tensor in tensors)


def check_full(directory: Path, base: Shapes, base_digests: Mapping[str, str]) -> None:
    """Raise BadModel unless a full model is its weights, with an index where they are in several files, and the base
    model's other files byte for byte.

    base_digests: sha256 of the base model's files.
    """
    _require_plain_files(directory)
    names = [str(path.relative_to(directory)) for path in sorted(directory.rglob("*")) if path.is_file()]
    weights = [name for name in names if name.endswith(WEIGHTS_SUFFIX)]
    if weights != [FULL_WEIGHTS] and INDEX not in names:
        listed = ", ".join(weights) or "no file"
        raise BadModel(f"weights in {listed}, expected {FULL_WEIGHTS} alone, or {INDEX} beside several")
    if not (directory / CONFIG).is_file():
        raise BadModel(f"no {CONFIG}, expected the base model's")
    for name, digest in digests_beside_weights(directory).items():
        if name != INDEX and base_digests.get(name) != digest:
            raise BadModel(f"{name}: expected the base model's file of that name, byte for byte")
    shapes = shapes_of(read_shards(directory, names, dtypes=TRAINED_DTYPES))
    if INDEX in names and (unlisted := shapes.keys() - read_object(directory / INDEX)["weight_map"].keys()):
        raise BadModel(f"{INDEX}: tensor {min(unlisted)[:120]!r} is missing")
    _check_shapes(shapes, base)


def digests_beside_weights(directory: Path) -> dict[str, str]:
    """Return the sha256 of each file of a model but for its weights."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.suffix != WEIGHTS_SUFFIX
    }


def _require_plain_files(directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.suffix.lower() in MODEL_SUFFIXES):
            raise BadModel(f"{path.name}: expected only files of {', '.join(sorted(MODEL_SUFFIXES))}")


def _check_index(index: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Raise BadModel unless the index names for each tensor the file that holds it.

    files: name of each tensor -> the file that holds it.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise BadModel(f"{INDEX}: weight_map is missing")
    for tensor, file in weight_map.items():
        if files.get(tensor) != file:
            raise BadModel(f"{INDEX}: tensor {tensor[:120]!r} is not in {str(file)[:120]!r}")


def _check_shapes(shapes: Shapes, base: Shapes) -> None:
    # Tied models are saved with or without the head that equals the embedding.
    names = (shapes.keys() | base.keys()) - ({"lm_head.weight"} - base.keys())
    odd = sorted(name for name in names if list(shapes.get(name, ())) != list(base.get(name, ())))
    if odd:
        raise BadModel(
            f"{len(odd)} tensors differ from the base model's, first {odd[0][:120]!r}: shape {shapes.get(odd[0])},"
            f" expected {base.get(odd[0])}"
        )
