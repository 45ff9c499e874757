"""What training needs of a device, by arithmetic: what makes it more and what makes it less."""

import pytest

from schemas.memory import STATE_BYTES, Setting, Shape, bundle_bytes, estimate
from schemas.specification import LoraSpec, Method, Recipe

GIB = 2**30
LLAMA_8B = Shape(
    num_parameters=8_030_261_248,
    num_layers=32,
    hidden_size=4096,
    inner_size=14_336,
    vocab_size=128_256,
    lora_values_per_rank=1_310_720,
)
LLAMA_70B = Shape(70_553_706_496, 80, 8192, 28_672, 128_256, 6_471_680)


def needed(shape=LLAMA_8B, *, devices=1, window=4096, precision="bfloat16", recomputed=False, **recipe):
    estimated = estimate(
        shape, Recipe(**recipe), Setting(devices, window, precision), gradient_checkpointing=recomputed
    )
    assert estimated.total_bytes == sum(
        getattr(estimated, f"{part}_bytes")
        for part in ("weights", "optimizer", "activations", "logits", "fixed")
    )
    return estimated


def test_an_adapter_of_an_8b_fits_into_80_gib_and_of_a_70b_does_not_even_on_eight_devices():
    assert 40 * GIB < needed().total_bytes < 80 * GIB
    assert needed(LLAMA_70B, devices=8).total_bytes > 80 * GIB
    assert needed(LLAMA_70B, devices=8, recomputed=True).total_bytes < 80 * GIB


def test_four_bits_of_an_8b_need_a_third_of_sixteen_and_a_70b_fits_into_80_gib():
    """8.03 billion weights: 1.05 of them in input table and head, the others with 4.13 bits each."""
    of_16, of_4 = needed(), needed(method=Method.QLORA)
    tables = 2 * 128_256 * 4096
    dequantised = 2 * 4096 * 14_336
    linears = of_4.weights_bytes - 2 * tables - 4 * 32 * LLAMA_8B.lora_values_per_rank - dequantised
    assert linears * 8 / (LLAMA_8B.num_parameters - tables) == pytest.approx(4.127, abs=0.01)
    assert of_4.weights_bytes < of_16.weights_bytes * 0.4
    assert of_4.optimizer_bytes == of_16.optimizer_bytes
    assert of_4.activations_bytes == of_16.activations_bytes
    assert needed(LLAMA_70B, recomputed=True).total_bytes > 80 * GIB
    assert needed(LLAMA_70B, recomputed=True, method=Method.QLORA).total_bytes < 80 * GIB
    assert needed(method=Method.QLORA, devices=2).weights_bytes < of_4.weights_bytes * 1.1


def test_all_weights_of_an_8b_need_several_devices():
    assert needed(method=Method.SFT, recomputed=True).total_bytes > 120 * GIB
    assert needed(method=Method.SFT, recomputed=True, devices=8).total_bytes < 40 * GIB


def test_what_is_kept_of_an_8b_is_what_was_counted_on_it():
    """55 bytes per token, layer and unit of the hidden size were counted for its adapters in bfloat16."""
    counted = 55 * 4096 * 4096 * 32
    assert needed().activations_bytes == pytest.approx(counted, rel=0.15)


@pytest.mark.parametrize(
    "less",
    [
        {"recomputed": True},
        {"micro_batch_size": 1},
        {"window": 2048},
        {"lora": LoraSpec(rank=8)},
        {"devices": 2},
    ],
    ids=str,
)
def test_less_of_anything_needs_less(less):
    more = {"micro_batch_size": 2, "lora": LoraSpec(rank=256)}
    assert needed(**more | less).total_bytes < needed(**more).total_bytes


def test_what_an_optimizer_keeps_decides_what_it_needs_and_what_a_bundle_holds():
    needs = {name: needed(method=Method.SFT, optimizer=name).optimizer_bytes for name in STATE_BYTES}
    values = LLAMA_8B.num_parameters
    assert needs["adamw"] == 12 * values
    assert needs["muon"] == 8 * values
    assert needs["adamw_8bit"] == pytest.approx(6.1 * values)
    assert needs["paged_adamw_8bit"] == needs["paged_adamw_32bit"] == 4 * values
    bundles = {
        name: bundle_bytes(LLAMA_8B, Recipe(method=Method.SFT, optimizer=name)) for name in STATE_BYTES
    }
    assert bundles["adamw"] == bundles["paged_adamw_32bit"] == 12 * values
    assert bundles["paged_adamw_8bit"] == pytest.approx(6.1 * values)


def test_precision_of_the_recipe_goes_before_that_of_the_device():
    def precision(recipe, *, is_gpu):
        return Setting.of(recipe, num_devices=1, max_seq_length=1, is_gpu=is_gpu).precision

    assert [precision(Recipe(), is_gpu=gpu) for gpu in (True, False)] == ["bfloat16", "float32"]
    assert precision(Recipe(precision="float32"), is_gpu=True) == "float32"
