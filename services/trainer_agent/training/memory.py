"""What an order leaves to its devices, chosen by what they have, and whether each node has all of the weights."""

import torch

from schemas.fitting import MOST_OF_DEVICE, choose, needed
from schemas.memory import Precision, Setting, Shape, inner_size_of
from schemas.specification import Recipe
from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.training.attention import WITH_BORDERS
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.network import tables, trainable
from services.trainer_agent.training.quantized import num_values
from services.trainer_agent.training.throughput import device_memory_bytes
from shared.causal_models import INNER_SIZES, first_size


def fitted(
    network: TokenLosses, order: TrainingOrder, world: World, *, max_seq_length: int, before: Recipe | None
) -> TrainingOrder:
    """Return the order, with what its recipe leaves open chosen by the smallest of all ranks' devices; on a CPU as it
    is.

    before: the recipe of the bundle that is resumed from.
    """
    whole = device_memory_bytes(world.device)
    if whole is None:
        return order
    [negated] = world.highest([-whole])
    chosen = choose(
        shape_of(network, order),
        order.recipe,
        setting_of(network, order, max_seq_length=max_seq_length),
        device_bytes=-negated,
        before=before,
    )
    return order.model_copy(update={"recipe": chosen})


def has_all_by_node(network: TokenLosses, order: TrainingOrder, world: World, *, max_seq_length: int) -> bool:
    """Return whether the devices of each node hold all that is spread, so that only gradients travel from node to
    node, once a step: the same on all ranks. It is assumed of a CPU, whose memory is not known."""
    if order.nodes == 1 or order.recipe.sharded.library != "fsdp2":
        return False
    whole = device_memory_bytes(world.device)
    own = estimated_bytes(network, order, max_seq_length=max_seq_length, num_devices=order.devices_per_node)
    return not world.highest([whole is not None and own > MOST_OF_DEVICE * whole])[0]


def estimated_bytes(
    network: TokenLosses, order: TrainingOrder, *, max_seq_length: int, num_devices: int | None = None
) -> int:
    """Estimate the bytes that a device needs at the peak of a step, by the order's recipe as it is. `num_devices` are
    those that the weights are spread over; None means all."""
    setting = setting_of(network, order, max_seq_length=max_seq_length, num_devices=num_devices)
    return needed(shape_of(network, order), order.recipe, setting).total_bytes


def setting_of(
    network: TokenLosses, order: TrainingOrder, *, max_seq_length: int, num_devices: int | None = None
) -> Setting:
    precision: Precision = "float32" if network.compute_dtype is torch.float32 else "bfloat16"
    has_borders = network.attention in WITH_BORDERS
    return Setting(num_devices or order.world_size, max_seq_length, precision, has_borders=has_borders)


def shape_of(network: TokenLosses, order: TrainingOrder) -> Shape:
    text = network.causal_lm.config.get_text_config()
    num_trained = sum(parameter.numel() for parameter in trainable(network).values())
    return Shape(
        num_parameters=num_values(network.causal_lm),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        inner_size=inner_size_of(first_size(text, INNER_SIZES), text.hidden_size),
        vocab_size=text.vocab_size,
        lora_values_per_rank=num_trained // order.recipe.lora.rank,
        family=text.model_type,
        num_tables=len({id(table) for table in tables(network)}),
    )
