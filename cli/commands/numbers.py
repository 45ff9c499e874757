"""How numbers of steps and checkpoints are written for people. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from schemas.numbers import shortest

WRITTEN: Mapping[str, str] = {
    **dict.fromkeys(("loss", "train_loss", "valid_loss", "served_valid_loss", "full_valid_loss"), "{:.4f}"),
    **dict.fromkeys(("chosen_reward", "rejected_reward", "reward_margin", "router_loss"), "{:.3g}"),
    "perplexity": "{:.4g}",
    **dict.fromkeys(("mfu", "reward_accuracy"), "{:.1%}"),
    "device_utilization": "{:.0%}",
    "grad_norm": "{:.3g}",
    "tokens_per_second": "{:,.0f}",
}
WORDS: Mapping[str, str] = {
    "learning_rate": "rate {}",
    "grad_norm": "norm {}",
    "tokens_per_second": "{} tokens/s",
    "mfu": "MFU {}",
    "router_loss": "router {}",
    "device_utilization": "device {}",
    "memory_bytes": "{}",
}
"""A step's numbers as they are written below a bar."""
GIB = 2**30


def written(name: str, value: float | None) -> str:
    """Empty where there is none."""
    if value is None:
        return ""
    if name == "learning_rate":
        return shortest(float(f"{value:.3g}"))
    return f"{value / GIB:.1f} GiB" if name == "memory_bytes" else WRITTEN.get(name, "{}").format(value)


def setting(value: object) -> str:
    """As people type it; empty where there is none."""
    return "" if value is None else shortest(value) if isinstance(value, float) else str(value)


def of_method(method: str, step: Mapping[str, Any]) -> str:
    """What a method measures beside the loss: how often and by how much chosen answers win, or the perplexity."""
    if step.get("reward_accuracy") is not None:
        share, margin = (written(name, step[name]) for name in ("reward_accuracy", "reward_margin"))
        return f"chosen answers preferred in {share} by {margin}"
    if method == "cpt":
        return f"perplexity {written('perplexity', math.exp(min(step['loss'], 700)))}"
    return ""


def of_step(step: Mapping[str, Any]) -> list[str]:
    """How a step went, but for its loss."""
    return [
        text.format(written(name, step[name])) for name, text in WORDS.items() if step.get(name) is not None
    ]
