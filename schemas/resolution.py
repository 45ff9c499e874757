"""Numbers for each `auto` in a recipe, once the dataset is known. Pure arithmetic."""

from collections.abc import Mapping

from schemas.specification import DEFAULT_DECAY_RATIO, Method, Recipe, Weights

DEFAULT_RATES: Mapping[Weights, float] = {"adapter": 2e-4, "full": 2e-5}
PREFERENCE_RATE_DIVISOR = 40
"""Preferences are learned at rates far below those for answers: 5e-6 for an adapter, 5e-7 for all weights."""
ONE_EPOCH = frozenset({Method.CPT, Method.DPO})


def resolve_recipe(recipe: Recipe, *, rows: int, windows: int, num_devices: int) -> Recipe:
    """Replace each `auto` by its number on a dataset of so many rows and windows."""
    default_rate = DEFAULT_RATES[recipe.kind]
    if recipe.method is Method.DPO:
        default_rate /= PREFERENCE_RATE_DIVISOR
    rate = default_rate if recipe.learning_rate == "auto" else recipe.learning_rate
    default_epochs = 1 if recipe.method in ONE_EPOCH or rows >= 10_000 else 3
    epochs = default_epochs if recipe.num_epochs == "auto" else recipe.num_epochs
    batch = _batch_size(recipe, windows, num_devices) if recipe.batch_size == "auto" else recipe.batch_size
    decay = DEFAULT_DECAY_RATIO if recipe.schedule == "wsd" and not recipe.decay_ratio else recipe.decay_ratio
    numbers = {"learning_rate": rate, "num_epochs": epochs, "batch_size": batch, "decay_ratio": decay}
    asked = recipe.preferences
    dpo = asked.model_copy(update={"beta": asked.beta_value}) if recipe.method is Method.DPO else recipe.dpo
    return recipe.model_copy(update=numbers | {"dpo": dpo})


def _batch_size(recipe: Recipe, windows: int, num_devices: int) -> int:
    by_data = min(32, max(1, windows // 200))
    if num_devices == 1:
        return by_data
    # A device without a window computes an empty batch at every step, and is paid for all the same.
    whole = num_devices * recipe.micro_batch_size
    return -(-by_data // whole) * whole
