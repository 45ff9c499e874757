"""What a device chooses: the fastest that fits, the same for every process and every resume."""

import pytest

from schemas.fitting import MOST_OF_DEVICE, choices, choose, is_open, least, needed
from schemas.memory import Setting
from schemas.specification import Recipe
from tests.unit.schemas.test_memory import LLAMA_8B

GIB = 2**30
SETTING = Setting(1, 4096, "bfloat16")
ZERO = {"library": "deepspeed", "stage": 2, "offload_optimizer": "auto"}


def a_recipe(**fields) -> Recipe:
    return Recipe.model_validate({"batch_size": 8} | fields)


def dials(recipe: Recipe) -> tuple[int, bool, bool]:
    return recipe.micro_batch_size, recipe.gradient_checkpointing, recipe.sharded.offload_optimizer


def chosen(gib: float, *, setting=SETTING, before=None, **fields) -> tuple[int, bool, bool]:
    device_bytes = int(gib * GIB / MOST_OF_DEVICE) + 2
    return dials(choose(LLAMA_8B, a_recipe(**fields), setting, device_bytes=device_bytes, before=before))


def gib_of(micro_batch_size: int, *, recomputed: bool, setting=SETTING, **fields) -> float:
    """What exactly this choice needs."""
    fixed = {"micro_batch_size": micro_batch_size, "gradient_checkpointing": recomputed}
    recipe = a_recipe(**fixed | fields)
    return needed(LLAMA_8B, recipe, setting).total_bytes / GIB


@pytest.mark.parametrize(
    ("batch_size", "num_devices", "sizes"),
    [(8, 1, [8, 4, 2, 1]), (12, 1, [4, 2, 1]), (7, 1, [1]), (8, 4, [2, 1]), (9, 2, [1]), ("auto", 1, [1])],
)
def test_micro_batches_are_powers_of_two_that_divide_a_devices_windows(batch_size, num_devices, sizes):
    recipe = a_recipe(batch_size=batch_size, gradient_checkpointing=False)
    assert [each.micro_batch_size for each in choices(recipe, num_devices=num_devices)] == sizes


def test_smaller_micro_batches_come_before_recomputation_and_both_before_offload():
    order = [dials(each) for each in choices(a_recipe(batch_size=4, sharding=ZERO), num_devices=2)]
    assert order == [
        *[(2, False, False), (1, False, False), (2, True, False), (1, True, False)],
        *[(2, False, True), (1, False, True), (2, True, True), (1, True, True)],
    ]


def test_what_the_recipe_says_is_no_choice():
    asked = {"micro_batch_size": 3, "gradient_checkpointing": True}
    assert [dials(each) for each in choices(a_recipe(**asked), num_devices=1)] == [(3, True, False)]
    assert not is_open(a_recipe(**asked), num_devices=1)
    assert is_open(a_recipe(gradient_checkpointing=True), num_devices=1)


def test_the_largest_micro_batch_that_fits_is_taken_and_recomputed_only_where_one_window_does_not():
    four = gib_of(4, recomputed=False)
    assert chosen(four) == (4, False, False)
    assert chosen(four - 0.001) == (2, False, False)
    one = gib_of(1, recomputed=False)
    assert chosen(one) == (1, False, False)
    size, recomputed, _ = chosen(one - 0.001)
    assert recomputed
    assert gib_of(size, recomputed=True) < one <= gib_of(2 * size, recomputed=True) or size == 8
    assert chosen(1) == (1, True, False), "the least, which may fit all the same"


def test_the_optimizer_goes_to_the_host_where_nothing_fits_without():
    setting = Setting(2, 4096, "bfloat16")
    zero = {"method": "sft", "batch_size": 2, "setting": setting}
    kept = ZERO | {"offload_optimizer": False}
    without = gib_of(1, recomputed=True, sharding=kept, **zero)
    assert chosen(without, sharding=ZERO, **zero) == (1, True, False)
    assert chosen(without - 0.001, sharding=ZERO, **zero)[2]


def test_a_resumed_run_keeps_its_micro_batch_where_that_fits():
    before = a_recipe(micro_batch_size=2)
    assert chosen(10_000) == (8, False, False)
    assert chosen(10_000, before=before) == (2, False, False)
    assert chosen(gib_of(2, recomputed=True), before=before) == (2, True, False)
    small = gib_of(1, recomputed=True)
    assert chosen(small, before=before) == (1, True, False)
    assert chosen(10_000, before=a_recipe(micro_batch_size=3)) == (8, False, False)


def test_the_least_leaves_nothing_open():
    recipe = least(a_recipe(sharding=ZERO), num_devices=1)
    assert dials(recipe) == (1, True, True)
    assert not is_open(recipe, num_devices=1)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert dials(least(a_recipe(gradient_checkpointing=False), num_devices=1)) == (1, False, False)


def test_fsdp2_offloads_only_where_nothing_else_fits():
    setting, auto = Setting(2, 4096, "bfloat16"), {"method": "sft", "sharding": {"offload_optimizer": "auto"}}
    kept = auto | {"sharding": {"offload_optimizer": False}}
    least_without = gib_of(1, recomputed=True, setting=setting, **kept)
    assert chosen(least_without, setting=setting, **auto) == (1, True, False)
    assert chosen(least_without - 1, setting=setting, **auto)[2] is True
