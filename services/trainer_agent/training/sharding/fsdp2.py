"""torch's own sharding (FSDP2): rows of each tensor, gathered layer by layer. One process takes all whole. Several
nodes share out one copy of the weights, or each has one of its own (HSDP).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from schemas.specification import Recipe
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.network import tables, trainable, transformer_blocks
from services.trainer_agent.training.optimizer import Optimizer
from services.trainer_agent.training.quantized import move_scales
from services.trainer_agent.training.rows import read_rows
from services.trainer_agent.training.sharding.interface import Held
from services.trainer_agent.training.slices import Slice, slice_of


class Fsdp2:
    def __init__(self, network: TokenLosses, recipe: Recipe, world: World, *, by_node: bool) -> None:
        spread(network, world, by_node=by_node, offload=recipe.sharded.offload_optimizer)
        self.is_copy = by_node and world.rank >= world.local_size
        self.training_network = network
        # Until then each device has the gradient whole: nothing for an adapter, too much for all weights.
        self._reduces_once = recipe.kind == "adapter"
        self._max_grad_norm = recipe.max_grad_norm
        self._parameters = trainable(network)
        self._optimizer = Optimizer.of(self._parameters, recipe, tables(network))

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        if isinstance(self.training_network, FSDPModule):
            if self._reduces_once:
                self.training_network.set_requires_gradient_sync(is_last)
            # From node to node, of what each has reduced within itself.
            self.training_network.set_requires_all_reduce(is_last)
        loss.backward()  # type: ignore[no-untyped-call]

    def clip_gradients(self) -> float:
        return float(_whole(clip_grad_norm_(self._parameters.values(), self._max_grad_norm)))

    def step(self, rate: float) -> None:
        self._optimizer.step(rate)

    def drop_gradients(self) -> None:
        self._optimizer.drop_gradients()
        _drop_unreduced(self.training_network)

    def held(self) -> Iterator[Held]:
        for name, parameter in self._parameters.items():
            state = self._optimizer.moments_of(parameter)
            moments = {part: _local(value) for part, value in state.items()}
            yield Held(slice_of(name, parameter), _local(parameter.detach()), moments)

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, _whole(parameter.detach())) for name, parameter in self._parameters.items())

    def read_by_passes(self) -> Iterator[tuple[Slice, Tensor]]:
        for name, parameter in self._parameters.items():
            yield slice_of(name, parameter), _local(parameter.detach())

    def set_step(self, step: int) -> None:
        self._optimizer.set_step(step)


def spread(network: TokenLosses, world: World, *, by_node: bool = False, offload: bool = False) -> None:
    """Move the network from host memory to its devices, spread block by block over all ranks, or (`by_node`) over
    those of each node: weights, gradients and moments. With `offload` they stay in host memory, and a device gets the
    block that computes. One process takes it whole.
    """
    move_scales(network, world.device)
    if world.size == 1:
        network.to(world.device)
        return
    mesh = _mesh(world, by_node=by_node)
    reduced = network.compute_dtype is not torch.float32
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        if reduced
        else MixedPrecisionPolicy(cast_forward_inputs=False)
    )
    is_gpu = world.device.type == "cuda"
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=is_gpu)
    for block in transformer_blocks(network):
        fully_shard(block, **options)
    # Kept gathered between forward and backward: the recomputed head needs its weight there.
    fully_shard(network, reshard_after_forward=False, **options)
    register_fsdp_forward_method(network, "whole_logits_losses")
    read_rows(network.causal_lm, network.unread, torch.device("cpu") if offload else world.device)


def _mesh(world: World, *, by_node: bool) -> DeviceMesh:
    if not by_node:
        return init_device_mesh(world.device.type, (world.size,))
    shape = world.size // world.local_size, world.local_size
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("nodes", "devices"))


def _drop_unreduced(network: nn.Module) -> None:
    """Drop what backward passes before the last of a step left. torch's `reset_iter_state` leaves some of it."""
    for module in network.modules():
        if isinstance(module, FSDPModule):
            groups: list[Any] = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
            for group in groups:
                group._partial_reduce_output = None  # noqa: SLF001
            for parameter in (each for group in groups for each in group.fsdp_params):
                parameter.unsharded_accumulated_grad = None
                # There is none before the first forward pass.
                if (unsharded := getattr(parameter, "_unsharded_param", None)) is not None:
                    unsharded.grad = None


def _local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
