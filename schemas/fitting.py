"""What a recipe leaves to the device (micro batch, recomputation, offload), chosen so that a step fits. Pure."""

from collections.abc import Iterator

from schemas.memory import MemoryEstimate, Setting, Shape, estimate
from schemas.specification import Recipe

MOST_OF_DEVICE = 0.9
"""Share of the device that a step may take. The rest is for what the estimate does not know: fragments, and a step
larger than those before."""


def choices(recipe: Recipe, *, num_devices: int) -> Iterator[Recipe]:
    """Yield recipes from the fastest to the one with the least memory; the recipe alone where nothing is open."""
    offloads = _options(recipe.sharded.offload_optimizer, is_open=recipe.sharded.offload_optimizer_auto)
    recomputations = _options(recipe.gradient_checkpointing, is_open=recipe.gradient_checkpointing_auto)
    for is_offloaded in offloads:
        for is_recomputed in recomputations:
            for size in _micro_batch_sizes(recipe, num_devices):
                yield _with(recipe, size, is_recomputed=is_recomputed, is_offloaded=is_offloaded)


def choose(
    shape: Shape, recipe: Recipe, setting: Setting, *, device_bytes: int, before: Recipe | None = None
) -> Recipe:
    """Return the first choice that fits the device, or the one that needs the least where none does.

    before: what was chosen for the run that is resumed. It is kept where it fits, so that sums have the same order.
    """
    options = list(choices(recipe, num_devices=setting.num_devices))
    if before is not None:
        options.sort(key=lambda option: _order_of_sums(option) != _order_of_sums(before))
    limit = MOST_OF_DEVICE * device_bytes
    fitting = (option for option in options if needed(shape, option, setting).total_bytes <= limit)
    return next(fitting, options[-1])


def is_open(recipe: Recipe, *, num_devices: int) -> bool:
    """Return whether there is more than one choice."""
    return len(list(choices(recipe, num_devices=num_devices))) > 1


def least(recipe: Recipe, *, num_devices: int) -> Recipe:
    """Return the choice that needs the least memory, with nothing left open."""
    *_, last = choices(recipe, num_devices=num_devices)
    closed = last.model_copy(update={"gradient_checkpointing_auto": False, "micro_batch_size_auto": False})
    if closed.sharding is None:
        return closed
    sharding = closed.sharding.model_copy(update={"offload_optimizer_auto": False})
    return closed.model_copy(update={"sharding": sharding})


def needed(shape: Shape, recipe: Recipe, setting: Setting) -> MemoryEstimate:
    return estimate(shape, recipe, setting, gradient_checkpointing=recipe.gradient_checkpointing)


def _options(asked: bool, *, is_open: bool) -> tuple[bool, ...]:
    return (False, True) if is_open and not asked else (asked,)


def _micro_batch_sizes(recipe: Recipe, num_devices: int) -> Iterator[int]:
    """Yield powers of two, from the largest that divides a device's windows of a step down to 1."""
    if not recipe.micro_batch_size_auto:
        yield recipe.micro_batch_size
        return
    # Before the dataset is counted, all that is known is that a device has a window.
    windows = 1 if recipe.batch_size == "auto" else -(-recipe.batch_size // num_devices)
    size = windows & -windows
    while size:
        yield size
        size //= 2


def _with(recipe: Recipe, micro_batch_size: int, *, is_recomputed: bool, is_offloaded: bool) -> Recipe:
    changes: dict[str, object] = {
        "micro_batch_size": micro_batch_size,
        "gradient_checkpointing": is_recomputed,
    }
    if recipe.sharding is not None:
        changes["sharding"] = recipe.sharding.model_copy(update={"offload_optimizer": is_offloaded})
    return recipe.model_copy(update=changes)


def _order_of_sums(recipe: Recipe) -> tuple[int, bool]:
    """Return the settings that change the order of sums. What is computed again has the same bits."""
    return recipe.micro_batch_size, recipe.sharded.offload_optimizer
