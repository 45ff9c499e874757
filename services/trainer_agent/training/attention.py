"""Which attention a model is trained with, by device and family.

| attention | on | keeps packed examples apart by |
|---|---|---|
| `flash_attention_2` | a GPU with the library flash-attn | borders |
| `varlen` | a GPU, torch's own kernel; a CPU, each example by itself | borders |
| `sdpa`, `eager` | any device; the first where the family has no cap of its scores | a mask made of the positions |

With borders nothing is computed across them, and there is no mask of T × T. The kernels of a GPU know bfloat16 alone.
The pre-flight proves the choice on the job's own model and rows; where it does not, a mask takes its place.
"""

# ruff: noqa: N803, N806 shapes are part of tensors' names
# B = rows, T = tokens per row, N = tokens of all rows, L = tokens between two borders, H = heads, D = values per head
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

from services.trainer_agent.training.tensors import Inputs
from shared.causal_models import attention_of, model_class_of

VARLEN = "varlen"
WITH_BORDERS = (VARLEN, "flash_attention_2")
MAX_HEAD_SIZE = 256
HEAD_SIZE_STEP = 8
DROPOUTS = ("attention_dropout", "attn_pdrop")
"""Names that families have for the share of attention's weights that is dropped in training."""


def fastest(config: Any, device: torch.device, dtype: torch.dtype) -> str:
    """Return the name that transformers knows the attention by. Raises KeyError if it has no such model."""
    masked = attention_of(config)
    if masked != "sdpa" or not _takes_borders(config):
        return masked
    if device.type == "cpu":
        return VARLEN
    if dtype is not torch.bfloat16 or not _knows_head_size(config):
        return masked
    return "flash_attention_2" if is_flash_attn_2_available() else VARLEN


def borders_of(inputs: Inputs) -> dict[str, Any]:
    """Return what transformers' models hand on to attention, by the names that they have for it."""
    return {
        "cu_seq_lens_q": inputs.borders_N,
        "cu_seq_lens_k": inputs.borders_N,
        "max_length_q": inputs.longest,
        "max_length_k": inputs.longest,
    }


def varlen(
    module: Any,
    query_BHTD: Tensor,
    key_BHTD: Tensor,
    value_BHTD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend from each token to those before it, up to the border. Without borders each row is one sequence.

    Returns: (B, T, H, D), and no weights. `key_BHTD` and `value_BHTD` may have fewer heads, each for several.
    """
    num_rows, num_heads, num_tokens = query_BHTD.shape[:3]
    borders, longest = cu_seq_lens_q, max_length_q
    if borders is None or longest is None:
        ends = num_rows * num_tokens + 1
        borders = torch.arange(0, ends, num_tokens, dtype=torch.int32, device=query_BHTD.device)
        longest = num_tokens
    attend = each_alone if query_BHTD.device.type == "cpu" else varlen_attn
    mixed = attend(
        _rows_joined(query_BHTD),
        _rows_joined(key_BHTD),
        _rows_joined(value_BHTD),
        borders,
        borders,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        enable_gqa=key_BHTD.shape[1] != num_heads,
    )
    assert isinstance(mixed, Tensor)
    return mixed.view(num_rows, num_tokens, num_heads, -1), None


AttentionInterface.register(VARLEN, varlen)


def each_alone(
    query_NHD: Tensor,
    key_NHD: Tensor,
    value_NHD: Tensor,
    borders: Tensor,
    _key_borders: Tensor,
    _longest: int,
    _longest_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """Attend as `varlen_attn` does, which no CPU has: within each pair of borders by PyTorch's causal attention.

    Returns: (N, H, D).
    """
    most_before, _ = window_size
    pieces = []
    for start, end in pairwise(borders.tolist()):
        query_HLD, key_HLD, value_HLD = (
            states[start:end].transpose(0, 1) for states in (query_NHD, key_NHD, value_NHD)
        )
        has_all = most_before < 0 or end - start <= most_before + 1
        mixed_HLD = scaled_dot_product_attention(
            query_HLD[None],
            key_HLD[None],
            value_HLD[None],
            attn_mask=None if has_all else _band(end - start, most_before, query_NHD.device),
            is_causal=has_all,
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
        pieces.append(mixed_HLD.transpose(0, 1))
    return torch.cat(pieces)


def _band(length: int, most_before: int, device: torch.device) -> Tensor:
    """Return booleans (L, L), True where a token attends to another: itself and so many before it."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return causal.triu(-most_before)


def _takes_borders(config: Any) -> bool:
    """Return whether the family's code hands borders on, and nothing is dropped."""
    text = config.get_text_config()
    model_class = model_class_of(config)
    return bool(
        model_class._supports_flash_attn  # noqa: SLF001 transformers has no public name for it
        and model_class._supports_attention_backend  # noqa: SLF001 nor for this
        and not any(getattr(text, name, 0.0) for name in DROPOUTS)
    )


def _knows_head_size(config: Any) -> bool:
    """Return whether the kernels of a GPU know heads of this size."""
    text = config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return bool(size <= MAX_HEAD_SIZE and size % HEAD_SIZE_STEP == 0)


def _rows_joined(states_BHTD: Tensor) -> Tensor:
    """Return (B * T, H, D) in the type that products are computed in: norms with weights in float32 leave theirs."""
    kind = states_BHTD.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states_BHTD.dtype
    return states_BHTD.transpose(1, 2).flatten(0, 1).to(dtype)
