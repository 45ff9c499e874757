"""Whether a network's activations are kept, or computed again because its device would not hold them."""

import torch

from schemas.memory import Setting, Shape, estimate, inner_size_of
from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.network import trainable
from services.trainer_agent.training.quantized import num_values
from services.trainer_agent.training.throughput import device_memory_bytes
from shared.causal_models import INNER_SIZES, first_size

MOST_OF_DEVICE = 0.9
"""The rest is for what the estimate does not know: fragments, and a step larger than those before."""


def recomputes(network: TokenLosses, order: TrainingOrder, world: World, *, max_seq_length: int) -> bool:
    """The recipe's word, else the device's: the same on all ranks, which need not have equal devices."""
    recipe, whole = order.recipe, device_memory_bytes(world.device)
    if recipe.gradient_checkpointing or not recipe.gradient_checkpointing_auto or whole is None:
        return recipe.gradient_checkpointing
    return bool(
        world.highest([needs(network, order, max_seq_length=max_seq_length) > MOST_OF_DEVICE * whole])[0]
    )


def needs(network: TokenLosses, order: TrainingOrder, *, max_seq_length: int) -> int:
    """Bytes of a device at the peak of a step, with all activations kept."""
    setting = Setting(
        order.world_size, max_seq_length, "float32" if network.compute_dtype is torch.float32 else "bfloat16"
    )
    return estimate(_shape(network, order), order.recipe, setting, gradient_checkpointing=False).total_bytes


def _shape(network: TokenLosses, order: TrainingOrder) -> Shape:
    text = network.causal_lm.config.get_text_config()
    num_trained = sum(parameter.numel() for parameter in trainable(network).values())
    return Shape(
        num_parameters=num_values(network.causal_lm),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        inner_size=inner_size_of(first_size(text, INNER_SIZES), text.hidden_size),
        vocab_size=text.vocab_size,
        lora_values_per_rank=num_trained // order.recipe.lora.rank,
    )
