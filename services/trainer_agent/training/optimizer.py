"""AdamW over the trained parameters, and its state by parameter name."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from schemas.specification import Recipe

MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(parameters: Mapping[str, nn.Parameter], recipe: Recipe) -> AdamW:
    """Decay acts on matrices; norms and biases are left out of it."""
    groups = [
        {"params": [p for p in parameters.values() if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=0.0, fused=True)


def set_rate(optimizer: AdamW, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def moments(optimizer: AdamW, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The live moments of one parameter, sharded as it is; zeros before its first update."""
    state = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for name in MOMENTS:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {name: state[name] for name in MOMENTS}


def set_step(optimizer: AdamW, step: int) -> None:
    """How many updates the moments have seen, which corrects their bias towards zero."""
    for state in optimizer.state.values():
        state["step"].fill_(float(step))
