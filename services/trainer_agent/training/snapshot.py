"""All that decides what a run does next, copied to host memory at a step boundary."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.sharding.interface import Sharding
from services.trainer_agent.training.shards import NO_SHARDS, Shards
from services.trainer_agent.training.slices import Slice


@dataclass(frozen=True)
class Snapshot:
    model: Mapping[str, Tensor]
    """Whole tensors of this rank's shard by their name in the model file."""
    slices: tuple[Slice, ...]
    """Slices that this rank holds, one of each tensor."""
    weights: Mapping[str, Tensor]
    """Trained weights of this rank's slices, by the tensor's name."""
    moments: Mapping[str, Tensor]
    """State of the optimizer for this rank's slices, as `<tensor>.<name>`."""
    rng: Mapping[str, Tensor]

    @property
    def sha256(self) -> str:
        """Digest over every bit of this rank's state."""
        digest = hashlib.sha256()
        for group in (self.weights, self.moments, self.rng):
            for name in sorted(group):
                digest.update(name.encode())
                digest.update(_bytes(group[name]))
        return digest.hexdigest()


NOTHING = Snapshot(model={}, slices=(), weights={}, moments={}, rng={})


def take_snapshot(
    sharding: Sharding, world: World, shards: Shards = NO_SHARDS, *, memory_of: Snapshot = NOTHING
) -> Snapshot:
    """Copy the state of a run. All ranks call it at once: for shards, sharded weights are gathered one by one.

    The copies lie in the memory of an earlier snapshot that nobody reads any more, where one is given: fresh memory
    takes longer to get than to fill.
    """
    held = tuple(sharding.held())
    weights = {
        each.slice.tensor: _copy(each.weight, memory_of.weights.get(each.slice.tensor)) for each in held
    }
    moments = {f"{each.slice.tensor}.{name}": each.moments[name] for each in held for name in each.moments}
    return Snapshot(
        model=dict(_whole_weights(sharding, weights, world, shards, memory_of.model)),
        slices=tuple(each.slice for each in held),
        weights=weights,
        moments={name: _copy(moment, memory_of.moments.get(name)) for name, moment in moments.items()},
        rng=rng_state(world.device),
    )


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
    sharding: Sharding,
    weights: Mapping[str, Tensor],
    world: World,
    shards: Shards,
    old: Mapping[str, Tensor],
) -> Iterable[tuple[str, Tensor]]:
    own = shards[world.rank].names if world.rank in shards else frozenset()
    for name, tensor in sharding.whole_weights() if shards else ():
        if name in own:
            yield name, weights[name].view(tensor.shape) if world.size == 1 else _copy(tensor, old.get(name))


def _copy(tensor: Tensor, old: Tensor | None) -> Tensor:
    """Return a contiguous copy in host memory that later updates do not reach."""
    if old is None or (old.shape, old.dtype) != (tensor.shape, tensor.dtype):
        return tensor.detach().to("cpu", copy=True).contiguous()
    return old.copy_(tensor.detach())


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
