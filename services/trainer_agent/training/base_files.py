"""A full model's weights in the form of its base's files: what loads the base loads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from shared.causal_models import as_in_files, tied_names


def as_base_files(model: Any, tensors: Mapping[str, Tensor], base_dir: Path) -> dict[str, Tensor]:
    """Return a full model's tensors by their names in the files of its base, from which it was loaded.

    `tensors` are its trained parameters, whole. What else the files have (buffers, layers not trained) is copied.
    """
    places = tensor_places(base_dir)
    tied = {name: tensors[first] for name, first in tied_names(model).items() if name in places}
    written = as_in_files(model, {**tensors, **tied}, places)
    # Halves of one tensor, and tied ones, share memory, which a file cannot say.
    own = {
        name: tensor if tensors.get(name) is tensor else tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in written.items()
    }
    return own | {name: _read(path, name) for name, path in places.items() if name not in own}


def tensor_places(base_dir: Path) -> dict[str, Path]:
    """Return the file of each tensor."""
    places: dict[str, Path] = {}
    for path in sorted(base_dir.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            places |= dict.fromkeys(file.keys(), path)
    return places


def _read(path: Path, name: str) -> Tensor:
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
