"""What other trainers have and this one has not, by the names that people type, with the nearest that works."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

_SHARDED = (
    "recipe.sharding.library fsdp2, or deepspeed with stage 3, with more resources.devices_per_node or nodes: either "
    "spreads weights, gradients and moments, and each device computes whole layers"
)
_SHORTER = (
    f"{_SHARDED}; a smaller policy.max_seq_length or recipe.gradient_checkpointing true for long windows"
)
_WORDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "tensor parallelism": (
        ("tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size", "tp", "tp_size", "tp_plan"),
        _SHARDED,
    ),
    "pipeline parallelism": (
        ("pipeline_parallel", "pipeline_parallel_size", "pipeline_model_parallel_size", "pp", "pp_size"),
        _SHARDED,
    ),
    "context parallelism": (
        (
            "context_parallel",
            "context_parallel_size",
            "sequence_parallel",
            "sequence_parallel_size",
            "cp_size",
        ),
        _SHORTER,
    ),
    "expert parallelism": (("expert_parallel", "expert_parallel_size", "ep_size"), _SHARDED),
    "choosing how deepspeed builds a model": (
        ("zero_init", "zero3_init_flag", "zero3_init"),
        "recipe.sharding.library deepspeed with stage 3, which builds by zero.Init: no process has the whole base",
    ),
    "keeping deepspeed's weights in the host's memory": (
        ("offload_param", "offload_params", "offload_param_device", "fsdp_offload_params", "cpu_offload"),
        "recipe.sharding.library fsdp2 with offload_optimizer true, which keeps weights, gradients and moments there",
    ),
}
UNAVAILABLE: Mapping[str, tuple[str, str]] = {
    name: (what, nearest) for what, (names, nearest) in _WORDS.items() for name in names
}
"""What each name asks for, and the nearest that works."""


def refuse_unavailable(data: Any) -> None:
    """Raise PydanticCustomError for the first field of a request that asks for what there is not."""
    if not isinstance(data, dict) or UNAVAILABLE.keys().isdisjoint(data):
        return
    name = next(name for name in data if name in UNAVAILABLE)
    what, nearest = UNAVAILABLE[name]
    asked = f"{name} is {str(data[name])[:80]}, and {what} is not available; leave it out"
    message = f"{asked}. Nearest that works: {nearest}"
    raise PydanticCustomError("not_available_yet", "{text}", {"text": message, "field": name})
