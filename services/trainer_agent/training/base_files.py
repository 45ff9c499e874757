"""A full model's weights in the form of its base's files: what loads the base loads it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from services.trainer_agent.training.shards import Shards
from services.trainer_agent.training.slices import Shapes
from shared.causal_models import as_in_files


def as_base_files(
    model: Any,
    tied: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    base_dir: Path,
    *,
    only: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """Return a full model's tensors by their names in the files of its base, from which it was loaded.

    `tensors` are its trained parameters, whole, and `tied` its `tied_names`. What else the files have (buffers, and
    layers not trained) is copied: all of it, or what is in `only`.
    """
    places = tensor_places(base_dir)
    further = {name: tensors[first] for name, first in tied.items() if name in places and first in tensors}
    written = as_in_files(model, {**tensors, **further}, places)
    # Halves of one tensor, and tied ones, share memory, which a file cannot say.
    own = {
        name: tensor if tensors.get(name) is tensor else tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in written.items()
    }
    others = (name for name in places if name not in own and (only is None or name in only))
    return own | {name: _read(places[name], name) for name in others}


def weight_map(
    model: Any, tied: Mapping[str, str], shards: Shards, shapes: Shapes, base_dir: Path
) -> dict[str, str]:
    """Return the file of each tensor of a full model that several ranks write, by its name in the files of its base.

    `shapes` are of the model's tensors, each of which is one of the files or several. What is not trained is in the
    first rank's.
    """
    places = tensor_places(base_dir)
    files = dict.fromkeys(places, Path(shards[0].path).name)
    for shard in shards.values():
        names = shard.names | {
            name for name, first in tied.items() if name in places and first in shard.names
        }
        tensors = {name: torch.empty(shapes[tied.get(name, name)], device="meta") for name in names}
        files |= dict.fromkeys(as_in_files(model, tensors, places), Path(shard.path).name)
    return files


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
