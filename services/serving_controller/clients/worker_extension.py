"""What lets vLLM 0.32 serve adapters rightly on a CPU; each of its workers imports this module.

- Tokens of the base model have the index -1 among adapters. vLLM's kernels for GPUs skip them; those for CPUs take
  the adapter at the last index, so that a base request that shares a batch with others is answered by that adapter
  (vLLM's pull request 48421, open).
- With adapters vLLM takes the experts' kernels of Triton, which no CPU has, although its own for CPUs do when no
  expert has an adapter. None has one here: adapters are on the layers alone that `--lora-target-modules` names.
"""

# ruff: noqa: N803, N806 shapes are part of tensors' names
# T = tokens of a batch, R = rank, D = outputs
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.oracle import unquantized
from vllm.platforms import current_platform


class Extension:
    """Adds nothing to a worker; `--worker-extension-cls` takes the name of a class."""


def skip_base_tokens(expand: Callable[..., None]) -> Callable[..., None]:
    """`expand` adds x_TR of each token, times its adapter's B, to y_TD; here the base model's tokens add zero."""

    def expand_adapters(
        x_TR: Tensor, weights: Tensor, y_TD: Tensor, index_T: Tensor, *others: Any, **named: Any
    ) -> None:
        is_base_T1 = (index_T < 0).unsqueeze(1)
        expand(x_TR.masked_fill(is_base_T1, 0.0), weights, y_TD, index_T, *others, **named)

    return expand_adapters


def without_adapters(select: Callable[[FusedMoEConfig], Any]) -> Callable[[FusedMoEConfig], Any]:
    """`select` chooses the kernels of experts."""

    def select_without_adapters(moe_config: FusedMoEConfig) -> Any:
        return select(replace(moe_config, is_lora_enabled=False))

    return select_without_adapters


def _replace(name: str, change: Callable[..., Any], *modules: Any) -> None:
    changed = change(getattr(modules[0], name))
    for module in modules:
        setattr(module, name, changed)


if current_platform.is_cpu():
    _replace("bgmv_expand", skip_base_tokens, lora_ops, punica_cpu)
    _replace("bgmv_expand_slice", skip_base_tokens, lora_ops, punica_cpu)
    _replace("select_unquantized_moe_backend", without_adapters, unquantized, unquantized_fused_moe_method)
