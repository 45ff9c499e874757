"""The weights that a run begins with: the base model's, those that an earlier job trained, or a bundle's."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from schemas.base import FailureClass
from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.training.bundle import MODEL_FILE
from services.trainer_agent.training.distributed import local
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.snapshot import slice_of


def weights_dir(order: TrainingOrder, bundle_dir: Path | None) -> Path:
    """Where the model is loaded from: a full model that was trained, in the form of its base's files, is one too."""
    if order.recipe.kind == "adapter":
        return order.base_dir
    if bundle_dir is not None:
        return (bundle_dir / MODEL_FILE["full"]).parent
    return order.start_dir or order.base_dir


def start_from(order: TrainingOrder, parameters: Mapping[str, nn.Parameter]) -> None:
    """Step 0 begins with the adapter that the order names, if it names one; a full model was loaded by now."""
    if order.start_dir is not None and order.recipe.kind == "adapter":
        load_adapter(parameters, order.start_dir / Path(MODEL_FILE["adapter"]).name)


def load_adapter(parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    """Each rank reads its own slices. Raises: TrainingFailed(internal) where the file is of another adapter."""
    with torch.no_grad(), safe_open(path, framework="pt") as file:
        names: list[str] = file.keys()
        _require_same_tensors({name: tuple(file.get_slice(name).get_shape()) for name in names}, parameters)
        for name, parameter in parameters.items():
            here = slice_of(name, parameter)
            block = tuple(slice(o, o + n) for o, n in zip(here.offsets, here.shape, strict=True))
            local(parameter).copy_(file.get_slice(name)[block])


def _require_same_tensors(
    shapes: Mapping[str, tuple[int, ...]], parameters: Mapping[str, nn.Parameter]
) -> None:
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            message = (
                f"the adapter has {name} of shape {shapes.get(name)}, the recipe's has {expected.get(name)}"
            )
            raise TrainingFailed(FailureClass.INTERNAL, message)
