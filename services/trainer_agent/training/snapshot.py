"""All that decides what a run does next, copied to host memory at a step boundary."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from schemas.base import Value
from services.trainer_agent.training.distributed import World, local, whole
from services.trainer_agent.training.optimizer import Optimizer


class Slice(Value):
    """A block of a tensor: where it begins and how far it reaches in each dimension."""

    tensor: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    model: Mapping[str, Tensor]
    """Whole tensors by their name in the model file; empty but on global rank 0."""
    slices: tuple[Slice, ...]
    """What this rank holds of each tensor."""
    weights: Mapping[str, Tensor]
    """This rank's slices of the trained weights."""
    moments: Mapping[str, Tensor]
    """This rank's slices of the optimizer's state, as `<tensor>.<name>`."""
    rng: Mapping[str, Tensor]

    @property
    def sha256(self) -> str:
        """Over every bit of this rank's state."""
        digest = hashlib.sha256()
        for group in (self.weights, self.moments, self.rng):
            for name in sorted(group):
                digest.update(name.encode())
                digest.update(_bytes(group[name]))
        return digest.hexdigest()


def take_snapshot(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer, world: World) -> Snapshot:
    """All ranks at once: sharded weights are gathered."""
    weights = {name: _copy(local(parameter)) for name, parameter in parameters.items()}
    return Snapshot(
        model=dict(_whole_weights(parameters, weights, world)),
        slices=tuple(slice_of(name, parameter) for name, parameter in parameters.items()),
        weights=weights,
        moments={
            f"{name}.{part}": _copy(local(value))
            for name, parameter in parameters.items()
            for part, value in optimizer.state_of(parameter).items()
        },
        rng=rng_state(world.device),
    )


def slice_of(name: str, tensor: Tensor) -> Slice:
    """The block of a sharded tensor that this rank holds, or the whole of one that is not sharded."""
    if not isinstance(tensor, DTensor):
        return Slice(tensor=name, offsets=(0,) * tensor.ndim, shape=tuple(tensor.shape))
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return Slice(tensor=name, offsets=tuple(offsets), shape=tuple(shape))


def rng_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _whole_weights(
    parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor], world: World
) -> Iterable[tuple[str, Tensor]]:
    for name, parameter in parameters.items():
        tensor = whole(parameter.detach())
        if world.rank == 0:
            yield name, weights[name] if world.size == 1 else _copy(tensor)


def _copy(tensor: Tensor) -> Tensor:
    """A contiguous copy in host memory that later updates do not reach."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
