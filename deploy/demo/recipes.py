"""How the demo trains: gently, so that the base model's own abilities stay."""

from typing import Any

RECIPE: dict[str, Any] = {
    "lora": {"rank": 32},
    "learning_rate": 2e-3,
    "num_epochs": 3,
    "batch_size": 2,
    "micro_batch_size": 2,
    "checkpoint": {"every_steps": 50, "every_seconds": 15},
}

POLICY: dict[str, Any] = {"max_seq_length": 256}

SAFETY_SHARE = 1.0
"""Rows of the safety mix per training row: so many that all of the mix is used."""

BENCHMARK = "general"
SAFETY_SUITE = "refusals"
BENIGN_SUITE = "benign"
"""Names of what a new stack comes with: the demo's files take their place."""
