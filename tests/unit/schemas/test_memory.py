"""What training needs of a device, by arithmetic: what makes it more and what makes it less."""

from dataclasses import replace

import pytest

from schemas.memory import (
    BUCKET_VALUES,
    LIVE_VALUES,
    STATE_BYTES,
    Setting,
    Shape,
    bundle_bytes,
    estimate,
)
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
FEW_LOGITS = replace(LLAMA_8B, vocab_size=1000)
"""Its peak is in the backward pass of the last layer."""
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
    for method in (Method.DPO, Method.CPT):
        assert needed(method=method, quantization="nf4") == of_4
    assert needed(method=Method.QLORA, devices=2).weights_bytes < of_4.weights_bytes * 1.1


def test_all_weights_of_an_8b_need_several_devices():
    assert needed(method=Method.SFT, recomputed=True).total_bytes > 120 * GIB
    assert needed(method=Method.SFT, recomputed=True, devices=8).total_bytes < 40 * GIB


def test_each_stage_of_zero_spreads_more_of_all_weights_of_an_8b_over_eight_devices():
    """Counted by hand, in bytes a weight: itself in both types, gradient, the copy that is updated, two moments."""

    def of(**sharding):
        return needed(method=Method.SFT, devices=8, sharding=sharding)

    one, two, three = (of(library="deepspeed", stage=stage) for stage in (1, 2, 3))
    num, bucket = LLAMA_8B.num_parameters, 4 * BUCKET_VALUES
    assert one.weights_bytes == two.weights_bytes == 6 * num
    assert one.optimizer_bytes == int((4 + 4 / 8 + 8 / 8) * num) + bucket
    assert two.optimizer_bytes == int((4 / 8 + 4 / 8 + 8 / 8) * num) + bucket
    assert three.optimizer_bytes == two.optimizer_bytes
    tables, layers = 2 * 128_256 * 4096, 2 * num // 32
    assert tables + layers > LIVE_VALUES
    assert three.weights_bytes == 4 * num // 8 + 4 * (tables + layers)
    offloaded = of(library="deepspeed", stage=2, offload_optimizer=True)
    assert offloaded.optimizer_bytes == int(4 / 8 * num) + bucket


def test_stage_3_of_zero_leaves_a_small_model_gathered():
    small = Shape(10**8, 12, 512, 1408, 16_000, 82_000)
    sharding = {"library": "deepspeed", "stage": 3}
    assert needed(small, devices=2, sharding=sharding).weights_bytes == pytest.approx(
        2 * 10**8 / 2 + 2 * 10**8, rel=0.03
    )


def test_gradients_of_all_weights_are_not_there_with_the_activations_of_a_steps_only_micro_batch():
    """Where activations are much more than gradients; the other way round the end of the backward pass is higher."""
    small = Shape(10**8, 12, 512, 1408, 16_000, 82_000)
    one, several = (needed(small, method=Method.SFT, batch_size=size) for size in (1, 2))
    assert several.optimizer_bytes - one.optimizer_bytes == 4 * 10**8
    assert (several.activations_bytes, several.logits_bytes) == (one.activations_bytes, one.logits_bytes)
    large = needed(method=Method.SFT, recomputed=True, batch_size=1)
    assert large.optimizer_bytes == 12 * LLAMA_8B.num_parameters
    assert large.logits_bytes == 0


def test_fsdp2_has_the_gradient_of_an_adapter_whole_until_a_steps_last_micro_batch():
    num = LoraSpec().rank * LLAMA_8B.lora_values_per_rank
    one, several = (needed(devices=8, batch_size=size) for size in (8, 16))
    assert several.optimizer_bytes == 8 * num // 8 + 4 * num
    assert one.optimizer_bytes == 8 * num // 8


def test_offloaded_by_fsdp2_a_device_has_what_is_gathered_and_nothing_to_update():
    offload = {"offload_optimizer": True}
    plain, away = (
        needed(method=Method.SFT, devices=8, batch_size=8, sharding=each) for each in (None, offload)
    )
    num, tables = LLAMA_8B.num_parameters, 2 * 128_256 * 4096
    assert plain.weights_bytes - away.weights_bytes == 4 * num // 8
    assert away.weights_bytes == 2 * (tables + 2 * num // 32)
    # The head's gradient is there whole for a moment.
    assert away.optimizer_bytes == 2 * tables // 2 == plain.optimizer_bytes - 8 * num // 8
    of_4, of_4_away = (needed(method=Method.QLORA, devices=8, sharding=each) for each in (None, offload))
    assert of_4_away.weights_bytes < of_4.weights_bytes


def test_fsdp2_has_the_gradient_of_the_head_whole_and_at_the_end_that_of_both_tables_and_once_more():
    alone, shared = (needed(method=Method.SFT, devices=devices) for devices in (1, 2))
    assert shared.optimizer_bytes == alone.optimizer_bytes // 2 + 2 * 128_256 * 4096
    ends = [
        needed(method=Method.SFT, devices=n, batch_size=2, recomputed=True, micro_batch_size=2)
        for n in (1, 2)
    ]
    assert ends[1].optimizer_bytes == ends[0].optimizer_bytes // 2 + (2 + 4) * 2 * 128_256 * 4096


def test_a_table_that_is_also_the_head_is_gathered_once():
    tied = replace(LLAMA_8B, num_tables=1)
    less = needed(devices=2).weights_bytes - needed(tied, devices=2).weights_bytes
    assert less == 2 * 128_256 * 4096


def test_each_layer_keeps_a_mask_where_attention_is_not_given_borders():
    masked = replace(FEW_LOGITS, takes_borders=False)
    more = needed(masked).activations_bytes - needed(FEW_LOGITS).activations_bytes
    assert more == pytest.approx(2 * 4096**2 * 33, rel=1e-6)


def test_layers_of_a_family_that_keep_more_count_more():
    wide = replace(FEW_LOGITS, family="gemma3_text")
    more = needed(wide).activations_bytes - needed(FEW_LOGITS).activations_bytes
    assert more == pytest.approx(13.5 * 4096 * 4096 * 33, rel=1e-6)


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
