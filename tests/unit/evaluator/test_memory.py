"""How many devices of one machine a model is scored on."""

import pytest

from schemas.artifacts import BaseModelManifest
from schemas.memory import Shape
from services.evaluator.decide.memory import USED_SHARE, device_bytes, devices_for
from services.evaluator.model import Pool
from services.evaluator.scoring.order import Limits
from tests.builders import a_sha, capabilities

GIB = 2**30
ON_GPU = Limits(device="cuda")
LLAMA_8B = capabilities(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14_336,
    vocab_size=128_256,
    lora_values_per_rank=1_310_720,
    cache_values_per_token=65_536,
)
LLAMA_70B = LLAMA_8B.model_copy(
    update={
        "num_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "lora_values_per_rank": 6_471_680,
        "cache_values_per_token": 163_840,
    }
)


def a_base(shape=LLAMA_70B, num_parameters=70_553_706_496) -> BaseModelManifest:
    return BaseModelManifest(
        name="base",
        source="directory",
        files=(),
        template_sha256=a_sha("template"),
        context_tokens=8192,
        num_parameters=num_parameters,
        capabilities=shape,
    )


def a_pool(gib: float | None, *, devices: int = 8) -> Pool:
    return Pool("h100", devices, None if gib is None else int(gib * GIB))


def bytes_on(num_devices: int, *, limits: Limits = ON_GPU, rank: int = 16) -> int:
    shape = Shape.of(LLAMA_70B, num_parameters=70_553_706_496)
    return device_bytes(shape, LLAMA_70B, limits, num_devices, rank=rank)


@pytest.mark.parametrize(("gib", "expected"), [(141, 2), (80, 3), (48, 4)])
def test_a_model_gets_as_many_devices_as_its_share_of_layers_fits_on(gib, expected):
    assert devices_for(a_base(), ON_GPU, a_pool(gib), rank=16) == expected
    assert bytes_on(expected) <= USED_SHARE * gib * GIB < bytes_on(expected - 1)


def test_a_model_that_one_device_holds_gets_one():
    base = a_base(LLAMA_8B, num_parameters=8_030_261_248)
    assert devices_for(base, ON_GPU, a_pool(80), rank=16) == 1


def test_a_model_that_no_machine_holds_gets_a_whole_one_and_is_tried():
    assert devices_for(a_base(), ON_GPU, a_pool(16, devices=4), rank=16) == 4


@pytest.mark.parametrize(
    ("base", "pool"),
    [(a_base(), None), (a_base(), a_pool(None)), (a_base(shape=None), a_pool(16))],
    ids=["pool not known", "memory not known", "shape not known"],
)
def test_what_is_not_known_gets_one_device(base, pool):
    assert devices_for(base, ON_GPU, pool, rank=16) == 1


def test_a_device_needs_its_weights_keys_and_values_and_adapter():
    assert bytes_on(1) > 2 * 70_553_706_496
    more = ON_GPU.model_copy(update={"batch_tokens": 2 * ON_GPU.batch_tokens})
    cache_bytes = 2 * LLAMA_70B.cache_values_per_token * ON_GPU.batch_tokens
    assert bytes_on(2, limits=more) - bytes_on(2) > cache_bytes / 2
    assert bytes_on(2, rank=64) - bytes_on(2, rank=0) == 4 * 64 * LLAMA_70B.lora_values_per_rank / 2
    assert bytes_on(1, limits=Limits(device="cpu")) > 4 * 70_553_706_496, "float32 there"


def test_head_and_input_table_are_on_devices_of_their_own():
    tied = LLAMA_70B.model_copy(update={"tie_word_embeddings": True})
    table = 128_256 * 8192
    apart, one = (Shape.of(each, num_parameters=10 * table) for each in (LLAMA_70B, tied))
    for num_devices, tables in ((1, 2), (2, 1)):
        layers = 8 * table // num_devices
        untied = device_bytes(apart, LLAMA_70B, ON_GPU, num_devices, rank=0)
        rest = untied - 2 * (layers + tables * table)
        both = device_bytes(one, tied, ON_GPU, num_devices, rank=0)
        assert both - rest == 2 * (9 * table // num_devices + table)
