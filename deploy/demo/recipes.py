"""How the demo trains: gently, so that the base model's own abilities stay."""

from typing import Any

RECIPE: dict[str, Any] = {
    "lora": {"rank": 32},
    "learning_rate": 2e-3,
    "num_epochs": 4,
    "batch_size": 4,
    "checkpoint": {"every_steps": 50, "every_seconds": 15},
}

POLICY: dict[str, Any] = {"window_tokens": 256}
