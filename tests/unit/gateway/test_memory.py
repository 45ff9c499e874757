"""Jobs that no device of a pool could hold are refused at submit, with the nearest that works."""

import pytest

from schemas.base import DeviceKind
from schemas.capabilities import BaseCapabilities
from schemas.job import SubmitJob
from schemas.placement import suits
from schemas.specification import Resources
from services.gateway.memory import Base, chosen_by, of_base
from services.gateway.model import BaseModelDetail, RegisteredBase
from services.gateway.obstacles import Known, obstacles
from services.gateway.representations import base_model
from services.gateway.submission import with_least_memory
from tests.builders import NOON, a_file_ref, a_sha
from tests.unit.gateway.test_obstacles import a_pool, a_spec

GIB = 2**30
CAPABILITIES = BaseCapabilities(
    family="llama",
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14_336,
    vocab_size=128_256,
    attention="sdpa",
    lora_values_per_rank=1_310_720,
)
BASE = Base(CAPABILITIES, num_parameters=8_030_261_248, context_tokens=131_072)


def a_gpu_pool(gib: int | None, *, devices: int = 1, name: str = "gpu"):
    memory = None if gib is None else gib * GIB
    return a_pool(name, devices_per_node=devices, device="cuda", device_memory_bytes=memory)


def obstacles_of(*pools, window=4096, later_windows=(), base=BASE, recipe=None, **spec):
    known = Known(pools=pools, base=base, windows=(window, *later_windows))
    return list(obstacles(a_spec(recipe=recipe or {}, **spec), known))


@pytest.mark.parametrize(
    ("recipe", "window", "pool", "nearest"),
    [
        ({"method": "sft"}, 4096, a_gpu_pool(80), "recipe.method lora"),
        ({"method": "sft"}, 4096, a_gpu_pool(80, devices=8), "resources.devices_per_node 8"),
        ({"gradient_checkpointing": False}, 4096, a_gpu_pool(33), "recipe.gradient_checkpointing true"),
        ({"micro_batch_size": 64}, 4096, a_gpu_pool(80), "recipe.micro_batch_size 1"),
        ({}, 4096, a_gpu_pool(14), "recipe.method qlora"),
        ({"method": "dpo"}, 4096, a_gpu_pool(14), "recipe.quantization nf4"),
        ({"method": "cpt"}, 4096, a_gpu_pool(14), "recipe.weights adapter, recipe.quantization nf4"),
        ({}, 32_768, a_gpu_pool(24), "recipe.method qlora, policy.max_seq_length 16384"),
        ({"method": "qlora"}, 32_768, a_gpu_pool(24), "policy.max_seq_length 16384"),
        ({}, 4096, a_gpu_pool(8), "recipe.method qlora, policy.max_seq_length 512"),
        ({}, 4096, a_gpu_pool(6), "a smaller base model"),
    ],
)
def test_a_job_that_no_device_holds_is_refused_with_the_nearest_that_works(recipe, window, pool, nearest):
    [obstacle] = [each for each in obstacles_of(pool, recipe=recipe, window=window) if each.is_final]
    assert (obstacle.code, obstacle.is_final) == ("does_not_fit", True)
    assert f"pool gpu has {pool.device_memory_bytes / GIB:.1f} GiB" in obstacle.message
    assert obstacle.message.endswith(f"Nearest that works: {nearest}")


@pytest.mark.parametrize(("windows", "is_refused"), [((4096,), True), ((512,), False), ((None,), False)])
def test_a_later_stage_that_no_device_holds_is_refused_before_the_first_is_trained(windows, is_refused):
    """Its pairs are longer than the answers of the first."""
    stage = {"recipe": {"method": "dpo"}, "training_file": a_file_ref("pairs.jsonl")}
    refusals = obstacles_of(a_gpu_pool(17), window=512, later_windows=windows, later_stages=(stage,))
    final = [each for each in refusals if each.is_final]
    assert [each.param for each in final] == ["later_stages[0].recipe"] * is_refused
    assert all(each.message.startswith("later_stages[0]: dpo of ") for each in final)


def test_a_job_that_fits_once_activations_are_computed_again_is_admitted():
    assert obstacles_of(a_gpu_pool(40)) == []


@pytest.mark.parametrize(
    ("pools", "changes"),
    [
        ((a_gpu_pool(None),), {}),
        ((a_gpu_pool(8), a_gpu_pool(None, name="other")), {}),
        ((a_gpu_pool(8), a_gpu_pool(80, name="other")), {}),
        ((a_gpu_pool(8),), {"base": None}),
        ((a_gpu_pool(8),), {"window": None}),
    ],
)
def test_no_job_is_refused_for_want_of_news(pools, changes):
    assert obstacles_of(*pools, **changes) == []


@pytest.mark.parametrize(
    ("method", "resources", "seconds"),
    [("sft", {}, 359), ("sft", {"nodes": 4}, 90), ("sft", {"grace_seconds": 360.0}, 0), ("lora", {}, 0)],
)
def test_a_notice_that_is_too_short_for_a_bundle_is_a_warning(method, resources, seconds):
    """89.7 GiB of weights and moments; 0: no warning."""
    spec = a_spec(recipe={"method": method}, resources=resources)
    warnings = list(obstacles(spec, Known(base=BASE)))
    assert [(each.code, each.param, each.is_final) for each in warnings] == (
        [("grace_too_short", "resources.grace_seconds", False)] if seconds else []
    )
    assert all(f"has about 89.7 GiB: {seconds} seconds" in each.message for each in warnings)


class TestWhatIsShownOfAJob:
    SMALL, LARGE, UNKNOWN = a_gpu_pool(24, name="small"), a_gpu_pool(80, name="large"), a_gpu_pool(None)

    def shown(self, *pools, **recipe):
        return chosen_by(pools, a_spec(recipe=recipe), BASE, max_seq_length=4096)

    def test_it_is_what_the_largest_device_chooses(self):
        shown = self.shown(self.SMALL, self.UNKNOWN, self.LARGE, batch_size=8)
        assert (shown.pool, shown.micro_batch_size, shown.gradient_checkpointing) == ("large", 2, False)
        assert 40 * GIB < shown.total_bytes < 0.9 * 80 * GIB
        small = self.shown(self.SMALL, batch_size=8)
        assert (small.pool, small.micro_batch_size, small.gradient_checkpointing) == ("small", 2, True)

    def test_a_batch_that_is_not_known_yet_has_one_window_for_each_device(self):
        assert self.shown(self.LARGE).micro_batch_size == 1

    def test_it_is_the_least_where_no_pool_says_what_its_devices_have(self):
        shown = self.shown(self.UNKNOWN, batch_size=8)
        assert (shown.pool, shown.micro_batch_size, shown.gradient_checkpointing) == (None, 1, True)


def test_a_base_model_shows_what_each_method_needs():
    detail = BaseModelDetail(
        manifest_sha256=a_sha("manifest"),
        source="a directory",
        template_sha256=a_sha("template"),
        context_tokens=2048,
        num_parameters=BASE.num_parameters,
        capabilities=CAPABILITIES,
    )
    row = RegisteredBase(name="llama", base_sha=a_sha("llama"), registered_at=NOON, detail=detail)
    shown = base_model(row).retune.memory
    assert shown == of_base(Base(CAPABILITIES, BASE.num_parameters, context_tokens=2048))
    assert shown["lora"].recomputed_bytes < shown["lora"].kept_bytes < shown["sft"].kept_bytes
    assert shown["lora"].max_seq_length == 2048
    unknown = detail.model_copy(update={"capabilities": None})
    assert base_model(row.model_copy(update={"detail": unknown})).retune.memory is None


class TestLeastMemory:
    """What a job needs by estimate keeps it from pools whose devices are too small, though they be cheaper."""

    @staticmethod
    def resources(*pools, windows=(4096,), base=BASE, **spec) -> Resources:
        submit = SubmitJob(job_id="job", tenant="acme", dataset_id="ds", spec=a_spec(**spec))
        known = Known(pools=pools, base=base, windows=windows)
        return with_least_memory(submit, known).spec.resources

    @pytest.mark.parametrize("method", ["lora", "qlora", "sft", "dpo"])
    def test_a_pool_is_left_out_where_the_job_would_be_refused_in_it_alone(self, method):
        large, left_out = a_gpu_pool(1000, name="large"), []
        for gib in range(4, 200, 4):
            pool = a_gpu_pool(gib, name="small")
            asked = self.resources(pool, large, recipe={"method": method})
            assert suits(asked, large, DeviceKind.CUDA)
            is_refused = any(each.is_final for each in obstacles_of(pool, recipe={"method": method}))
            assert suits(asked, pool, DeviceKind.CUDA) != is_refused, gib
            left_out.append(is_refused)
        assert {True, False} == set(left_out)

    def test_a_pool_that_does_not_say_what_it_has_takes_it(self):
        asked = self.resources(a_gpu_pool(80), a_gpu_pool(None))
        assert suits(asked, a_gpu_pool(None), DeviceKind.CUDA)

    def test_the_stage_that_needs_most_counts(self):
        stage = {"recipe": {"method": "sft"}, "training_file": a_file_ref()}
        alone = self.resources(a_gpu_pool(1000)).device_memory_gib
        with_stage = self.resources(a_gpu_pool(1000), windows=(4096, 4096), later_stages=(stage,))
        assert with_stage.device_memory_gib > 3 * alone

    @pytest.mark.parametrize(
        "changes",
        [
            {"resources": {"device_memory_gib": 3.0}},
            {"windows": (None,)},
            {"base": None},
            {"resources": {"device": "cpu"}},
        ],
    )
    def test_it_stays_as_it_was_asked_for(self, changes):
        pools = (a_gpu_pool(80), a_pool("cpu", device="cpu"))
        asked = a_spec(**{key: value for key, value in changes.items() if key == "resources"}).resources
        assert self.resources(*pools, **changes) == asked
