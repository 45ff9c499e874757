"""DeepSpeed's ZeRO (Rajbhandari et al., arXiv:1910.02054): each rank updates a range of all trained values in order.

Stage 1 spreads the moments, 2 the gradients too, 3 also the weights, of the frozen base as well. With
`offload_optimizer` moments and the update are in the host's memory (ZeRO-Offload, arXiv:2101.06840). DeepSpeed
reduces, clips and updates; what it would compile at a first step is left out: the update is torch's, on the host too,
and the kernels for its collectives in shared memory are for inference.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from schemas.memory import BUCKET_VALUES, LIVE_VALUES
from schemas.specification import Recipe
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.environment import name_place_to_deepspeed
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.network import tables, trainable
from services.trainer_agent.training.optimizer import parts_of
from services.trainer_agent.training.quantized import move_scales
from services.trainer_agent.training.rows import filled, stand_in
from services.trainer_agent.training.sharding.interface import Held, Sharding
from services.trainer_agent.training.slices import Slice, whole_slice


@dataclass(frozen=True)
class Range:
    """The place of this rank's share of a trained tensor."""

    flat: nn.Parameter
    """Parameter that the optimizer updates: the shares of many tensors, one behind the other."""
    start: int
    """First index of the share in `flat`."""
    offset: int
    """First index of the share in the tensor."""
    length: int

    def of(self, values: Tensor) -> Tensor:
        """Return the live share of `values`, which are as long as `flat`."""
        return values.detach().narrow(0, self.start, self.length)

    def slice_of(self, name: str) -> Slice:
        return Slice(tensor=name, offsets=(self.offset,), shape=(self.length,))


def zero(network: TokenLosses, recipe: Recipe, world: World) -> Sharding:
    return (SpreadWeights if recipe.sharded.zero_stage == 3 else WholeWeights)(network, recipe, world)


class Zero(ABC):
    """What all stages have in common."""

    is_copy = False

    def __init__(self, network: TokenLosses, recipe: Recipe, world: World) -> None:
        deepspeed = _library(world)
        move_scales(network, world.device)
        unread = stand_in(network.causal_lm)
        self._parameters = trainable(network)
        [self._part] = parts_of(self._parameters, recipe, tables(network))
        num_trained = sum(p.numel() for p in self._parameters.values())
        config = configuration(recipe, world, num_trained=num_trained)
        if unread:
            _spread(
                network, filled(unread, network.unread, world.device, reads=world.rank == 0), config, world
            )
        self.training_network, *_ = deepspeed.initialize(
            model=network, optimizer=self._part.optimizer, config=config, dist_init_required=False
        )
        self._zero = self.training_network.optimizer
        self._rank = world.rank

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        self.training_network.set_gradient_accumulation_boundary(is_last)
        self.training_network.backward(loss)

    def clip_gradients(self) -> float:
        """Return the norm of the gradient, which the update itself scales down."""
        return self._norm()

    def step(self, rate: float) -> None:
        self._part.set_rate(rate)
        self.training_network.step()

    def drop_gradients(self) -> None:
        self._zero.zero_grad(set_to_none=True)
        self._start_to_accumulate()

    def held(self) -> Iterator[Held]:
        for name, parameter in self._parameters.items():
            place = self._range_of(parameter)
            if place is not None:
                moments = self._part.moments_of(place.flat)
                live = {part: place.of(moment) for part, moment in moments.items()}
                yield Held(place.slice_of(name), place.of(place.flat), live)

    def set_step(self, step: int) -> None:
        for flat in self._flats():
            self._part.set_step(flat, step)

    @abstractmethod
    def whole_weights(self) -> Iterator[tuple[str, Tensor]]: ...

    @abstractmethod
    def read_by_passes(self) -> Iterator[tuple[Slice, Tensor]]: ...

    @abstractmethod
    def _norm(self) -> float: ...

    @abstractmethod
    def _start_to_accumulate(self) -> None:
        """Make the next gradient the first of its step."""

    @abstractmethod
    def _flats(self) -> Sequence[nn.Parameter]:
        """Return what the optimizer updates on this rank."""

    @abstractmethod
    def _range_of(self, parameter: Any) -> Range | None:
        """Return this rank's share of a parameter; None where it updates nothing of it."""


class WholeWeights(Zero):
    """Stages 1 and 2: each rank has all weights."""

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, parameter.detach()) for name, parameter in self._parameters.items())

    def read_by_passes(self) -> Iterator[tuple[Slice, Tensor]]:
        return ((whole_slice(name, weight), weight) for name, weight in self.whole_weights())

    def _norm(self) -> float:
        return float(self._zero.scaled_global_norm())

    def _start_to_accumulate(self) -> None:
        self._zero.micro_step_id = -1
        for gradients in (self._zero.averaged_gradients, self._zero.all_grad_tensors):
            gradients.update(dict.fromkeys(gradients))

    def _flats(self) -> Sequence[nn.Parameter]:
        flats: list[nn.Parameter] = self._zero.single_partition_of_fp32_groups
        return flats

    def _range_of(self, parameter: Any) -> Range | None:
        share = parameter._hp_mapping  # noqa: SLF001 its public readers copy, and read whole tensors
        if share is None:
            return None
        place, flat = share.lp_fragment_address, self._flats()[share.param_group_index]
        return Range(flat, share.hp_fragment_address.start, place.start, place.numel)


class SpreadWeights(Zero):
    """Stage 3: the weights are spread too. They are gathered as modules are called: on all ranks in one order."""

    def __init__(self, network: TokenLosses, recipe: Recipe, world: World) -> None:
        super().__init__(network, recipe, world)
        network.highest_over_ranks = lambda number: world.highest([number])[0]

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        from deepspeed.utils import safe_get_full_fp32_param

        return ((name, safe_get_full_fp32_param(parameter)) for name, parameter in self._parameters.items())

    def read_by_passes(self) -> Iterator[tuple[Slice, Tensor]]:
        for name, parameter in self._parameters.items():
            place = self._range_of(parameter)
            if place is not None:
                share: Tensor = parameter.ds_tensor  # type: ignore[attr-defined]
                yield place.slice_of(name), share.detach().narrow(0, 0, place.length)

    def _norm(self) -> float:
        from deepspeed.runtime.utils import combine_grad_norm_groups

        return float(combine_grad_norm_groups(self._zero._get_norm_groups()))  # noqa: SLF001 there is no other

    def _start_to_accumulate(self) -> None:
        # Dropping has set its count of micro batches back.
        self._zero.averaged_gradients = {}

    def _flats(self) -> Sequence[nn.Parameter]:
        flats: list[nn.Parameter] = self._zero.fp32_partitioned_groups_flat
        return flats

    def _range_of(self, parameter: Any) -> Range | None:
        group, start, length = self._zero.grad_position[self._zero.get_param_id(parameter)]
        offset = length * self._rank
        # All ranks' shares are equally long: what fills the last one up is no value of the tensor.
        length = min(length, parameter.ds_numel - offset)
        return Range(self._flats()[group], start, offset, length) if length > 0 else None


def configuration(recipe: Recipe, world: World, *, num_trained: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration. It is given the micro batches of a step one by one, so it counts none. Its
    bucket for gradients is as large as it may become, and no larger than what is trained."""
    sharding = recipe.sharded
    # Small weights too are spread, which all of a small model are.
    fields: dict[str, Any] = {
        "stage": sharding.zero_stage,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": LIVE_VALUES,
        "reduce_bucket_size": min(num_trained, BUCKET_VALUES),
    }
    if sharding.offload_optimizer:
        fields["offload_optimizer"] = {"device": "cpu", "pin_memory": world.device.type == "cuda"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": recipe.max_grad_norm,
        "zero_optimization": fields,
        "zero_force_ds_cpu_optimizer": False,
    }


def _spread(
    network: TokenLosses, parameters: Iterator[nn.Parameter], config: Mapping[str, Any], world: World
) -> None:
    """Leave each rank its share of parameters that the first rank has. DeepSpeed takes and sends one at a time, and
    moves nothing else of a network to its device where it meets some that are spread."""
    import deepspeed

    first: Any = next(parameters)
    deepspeed.zero.Init(module=nn.ParameterList([first]), config_dict_or_path=config)
    first.convert_to_zero_parameters(param_list=parameters)
    for buffer in network.buffers():
        buffer.data = buffer.data.to(world.device)


def _library(world: World) -> Any:
    name_place_to_deepspeed(world)
    import deepspeed

    # It compiles what is named here, when a process group is first used.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed
