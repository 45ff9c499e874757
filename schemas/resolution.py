"""Numbers for each `auto` in a recipe, once the dataset is known, each with its reason. Pure arithmetic."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from schemas.numbers import shortest
from schemas.specification import DEFAULT_DECAY_RATIO, Method, Recipe, Weights

DEFAULT_RATES: Mapping[Weights, float] = {"adapter": 2e-4, "full": 2e-5}
PREFERENCE_RATE_DIVISOR = 40
"""Preferences are learned at rates far below those for answers: 5e-6 for an adapter, 5e-7 for all weights."""
ROWS_OF_ONE_EPOCH = 10_000
STEPS_OF_AN_EPOCH = 200
MAX_BATCH_SIZE = 32


class ResolvedRecipe(NamedTuple):
    recipe: Recipe
    """No `auto` is left."""
    reasons: dict[str, str]
    """For each field that the recipe left open, by its name: its number and why it is this one, for people."""


class _Choice(NamedTuple):
    number: float
    reason: str

    @property
    def sentence(self) -> str:
        number = self.number
        text = str(number) if isinstance(number, int) else shortest(float(f"{number:g}")).removesuffix(".0")
        return f"{text}: {self.reason}"


def resolve_recipe(recipe: Recipe, *, rows: int, windows: int, num_devices: int) -> ResolvedRecipe:
    """Replace each `auto` by its number on a dataset of so many rows and windows."""
    choices = dict(_choices(recipe, rows=rows, windows=windows, num_devices=num_devices))
    numbers: dict[str, object] = {name: choice.number for name, choice in choices.items()}
    reasons = {name: choice.sentence for name, choice in choices.items()}
    if recipe.method is Method.DPO:
        asked = recipe.preferences
        numbers["dpo"] = asked.model_copy(update={"beta": asked.beta_value})
        if asked.beta == "auto":
            reasons["dpo.beta"] = _Choice(asked.beta_value, f"the default of loss {asked.loss}").sentence
    return ResolvedRecipe(recipe.model_copy(update=numbers), reasons)


def _choices(recipe: Recipe, *, rows: int, windows: int, num_devices: int) -> Iterator[tuple[str, _Choice]]:
    if recipe.num_epochs == "auto":
        yield "num_epochs", _num_epochs(recipe.method, rows)
    if recipe.learning_rate == "auto":
        yield "learning_rate", _learning_rate(recipe)
    if recipe.batch_size == "auto":
        yield "batch_size", _batch_size(recipe, windows, num_devices)
    if recipe.schedule == "wsd" and not recipe.decay_ratio:
        yield "decay_ratio", _Choice(DEFAULT_DECAY_RATIO, "the default with wsd")


def _num_epochs(method: Method, rows: int) -> _Choice:
    if method is Method.CPT:
        return _Choice(1, "with cpt each text is read once, as in pre-training")
    if method is Method.DPO:
        return _Choice(1, "with dpo each pair is seen once, for further passes soon overfit")
    size = f"the dataset has {rows:,} rows, and"
    if rows >= ROWS_OF_ONE_EPOCH:
        return _Choice(1, f"{size} from {ROWS_OF_ONE_EPOCH:,} on one pass is enough: more tend to overfit")
    return _Choice(3, f"{size} below {ROWS_OF_ONE_EPOCH:,} one pass is too few steps")


def _learning_rate(recipe: Recipe) -> _Choice:
    rate = DEFAULT_RATES[recipe.kind]
    trained = "an adapter" if recipe.kind == "adapter" else "all weights"
    if recipe.method is not Method.DPO:
        return _Choice(rate, f"the default for {trained}")
    reason = f"with dpo a fortieth of the default for {trained}, {shortest(rate)}, for preferences need small updates"
    return _Choice(rate / PREFERENCE_RATE_DIVISOR, reason)


def _batch_size(recipe: Recipe, windows: int, num_devices: int) -> _Choice:
    by_data = min(MAX_BATCH_SIZE, max(1, windows // STEPS_OF_AN_EPOCH))
    reason = f"for {STEPS_OF_AN_EPOCH} steps an epoch of {windows:,} windows, within 1 and {MAX_BATCH_SIZE}"
    if num_devices == 1:
        return _Choice(by_data, reason)
    # A device without a window computes an empty batch at every step, and is paid for all the same.
    whole = num_devices * recipe.micro_batch_size
    micro_batches = f"whole micro batches of {recipe.micro_batch_size} on each of {num_devices} devices"
    return _Choice(-(-by_data // whole) * whole, f"{reason}, then rounded up to {micro_batches}")


def num_steps(recipe: Recipe, *, windows: int) -> int:
    """Optimizer steps of all epochs; the last batch of an epoch may be smaller."""
    assert isinstance(recipe.batch_size, int), "the recipe is not resolved"
    assert isinstance(recipe.num_epochs, int), "the recipe is not resolved"
    return recipe.num_epochs * -(-windows // recipe.batch_size)


def flops_per_token(recipe: Recipe, *, num_weights: int) -> int:
    """Floating-point operations of training, attention's own products left out: a frozen weight needs no gradient of
    its own, which is a third of the work."""
    return (4 if recipe.kind == "adapter" else 6) * num_weights
