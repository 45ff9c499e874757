"""A full model's weights as the files of its base have them: what loads the base loads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from shared.causal_models import as_in_files, tied_names


def as_base_files(model: Any, tensors: Mapping[str, Tensor], base_dir: Path) -> dict[str, Tensor]:
    """`model` was loaded with the tensors of `base_dir`; `tensors` are its trained parameters, whole.

    What the files have beside them (buffers, layers that are not trained) is copied.
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
    """The file of each tensor."""
    places: dict[str, Path] = {}
    for path in sorted(base_dir.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            places |= dict.fromkeys(file.keys(), path)
    return places


def _read(path: Path, name: str) -> Tensor:
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
