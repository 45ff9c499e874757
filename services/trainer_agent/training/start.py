"""The weights that a run begins with: the base model's, those that an earlier job trained, or a bundle's."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from schemas.base import FailureClass
from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.training.bundle import MODEL_FILE
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.network import trainable
from services.trainer_agent.training.slices import Shapes, Slice, read_slice, whole_slice


def weights_dir(order: TrainingOrder, bundle_dir: Path | None) -> Path:
    """Return the directory to load the model from: a full model that was trained has the form of its base's files."""
    if order.recipe.kind == "adapter":
        return order.base_dir
    if bundle_dir is not None:
        return (bundle_dir / MODEL_FILE["full"]).parent
    return order.start_dir or order.base_dir


def load_weights(order: TrainingOrder, bundle_dir: Path | None, network: TokenLosses) -> None:
    """Load an adapter that is not sharded yet: the bundle's, or the one that the order starts from, or leave it as it
    is made. A full model is loaded from its files."""
    if order.recipe.kind != "adapter":
        return
    path = bundle_dir / MODEL_FILE["adapter"] if bundle_dir is not None else adapter_at_the_start(order)
    if path is not None:
        parameters = trainable(network)
        blocks = ((whole_slice(name, parameter), parameter) for name, parameter in parameters.items())
        load_adapter(path, shapes_of(parameters), blocks)


def adapter_at_the_start(order: TrainingOrder) -> Path | None:
    """Return the file of the adapter that step 0 begins with, if the order names one."""
    return None if order.start_dir is None else order.start_dir / Path(MODEL_FILE["adapter"]).name


def load_adapter(path: Path, shapes: Shapes, blocks: Iterable[tuple[Slice, Tensor]]) -> None:
    """Read each block. `shapes` are of the whole tensors, by name.

    Raises: TrainingFailed(internal) where the file is of another adapter.
    """
    with torch.no_grad(), safe_open(path, framework="pt") as file:
        names: list[str] = file.keys()
        _require_same_tensors({name: tuple(file.get_slice(name).get_shape()) for name in names}, shapes)
        for here, live in blocks:
            live.copy_(read_slice(file, here))


def shapes_of(parameters: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(parameter.shape) for name, parameter in parameters.items()}


def _require_same_tensors(shapes: Shapes, expected: Shapes) -> None:
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            message = (
                f"the adapter has {name} of shape {shapes.get(name)}, the recipe's has {expected.get(name)}"
            )
            raise TrainingFailed(FailureClass.INTERNAL, message)
