"""How the demo trains. Not measured yet on the present base model: the gate decides whether it is good enough."""

from typing import Any

RECIPE: dict[str, Any] = {
    "lora": {"rank": 16},
    "learning_rate": 3e-3,
    "num_epochs": 3,
    "batch_size": 8,
    "checkpoint": {"every_steps": 50, "every_seconds": 15},
}

POLICY: dict[str, Any] = {"window_tokens": 1024, "max_bad_share": 0.2}
