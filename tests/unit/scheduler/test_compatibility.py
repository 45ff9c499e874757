from itertools import product
from typing import get_args

import pytest

from schemas.base import DeviceKind
from schemas.compatibility import ROWS, check, check_base, check_start, methods_for
from schemas.specification import (
    CheckpointSpec,
    DpoSpec,
    EarlyStoppingSpec,
    LoraSpec,
    Method,
    OptimizerName,
    Recipe,
    Resources,
    ShardingLibrary,
    ShardingSpec,
)
from tests.builders import a_file_ref, a_job_spec, capabilities


def a_spec(method=Method.LORA, *, nodes=1, devices_per_node=1, **recipe):
    resources = Resources(nodes=nodes, devices_per_node=devices_per_node)
    return a_job_spec(recipe=Recipe(method=method, **recipe), resources=resources)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_row_admits_what_it_was_tested_at(row):
    nodes, devices = row.tested_at
    for method, precision in product(row.methods, ("auto", *row.precisions)):
        library = "deepspeed" if row.sharding == "deepspeed" else "fsdp2"
        gang = {"nodes": nodes, "devices_per_node": devices, "sharding": ShardingSpec(library=library)}
        bits = None if row.quantization == "none" or method is Method.QLORA else row.quantization
        spec = a_spec(method, **gang, weights=row.weights, precision=precision, quantization=bits)
        assert row.covers(spec)
        assert check(spec) is None
        assert check(spec, [other for other in ROWS if other != row]) is not None


class TestElastic:
    def check(self, *, nodes, min_nodes, **recipe):
        spec = a_spec(**recipe)
        resources = Resources(nodes=nodes, min_nodes=min_nodes)
        return check(spec.model_copy(update={"resources": resources}))

    @pytest.mark.parametrize("library", get_args(ShardingLibrary))
    @pytest.mark.parametrize("method", [Method.LORA, Method.SFT, Method.QLORA])
    def test_any_method_and_sharding_may_have_fewer_nodes(self, method, library):
        sharding = ShardingSpec(library=library)
        assert self.check(nodes=4, min_nodes=1, method=method, sharding=sharding) is None

    @pytest.mark.parametrize("min_nodes", [4, 5])
    def test_the_least_is_less_than_the_most(self, min_nodes):
        refusal = self.check(nodes=4, min_nodes=min_nodes)
        assert (refusal.code, refusal.param) == ("min_nodes_not_less", "resources.min_nodes")
        assert f"is {min_nodes}, and resources.nodes, the most, is 4; expected fewer" in refusal.message

    def test_what_one_size_could_not_run_is_refused_by_that_size(self):
        sharding = ShardingSpec(offload_optimizer=True)
        assert self.check(nodes=3, min_nodes=2, sharding=sharding) is None
        refusal = self.check(nodes=3, min_nodes=1, sharding=sharding)
        assert refusal.code == "sharding_ignored"
        assert refusal.message.startswith("resources.min_nodes is 1, so an attempt may have 1 node: recipe.")
        assert self.check(nodes=2, min_nodes=1, optimizer="muon").code == "optimizer_not_sharded"

    def test_each_device_of_the_most_has_a_window_at_every_step(self):
        assert self.check(nodes=4, min_nodes=1, batch_size=4) is None
        assert self.check(nodes=4, min_nodes=1, batch_size=3).code == "batch_too_small"


def test_no_two_rows_cover_the_same_gang():
    for method, library in product(sorted(Method), get_args(ShardingLibrary)):
        sharding = ShardingSpec(library=library)
        for nodes, devices in product(range(1, 65), range(1, 17)):
            spec = a_spec(method, nodes=nodes, devices_per_node=devices, sharding=sharding)
            assert sum(row.covers(spec) for row in ROWS) == 1


def test_an_option_that_would_be_ignored_is_refused():
    for method, nearest in ((Method.SFT, "method lora"), (Method.CPT, "weights adapter")):
        refusal = check(a_spec(method, lora=LoraSpec(rank=8)))
        assert (refusal.code, refusal.param) == ("lora_ignored", "recipe.lora")
        assert f"Nearest that works: {nearest} with the same recipe.lora" in refusal.message
    assert check(a_spec(Method.CPT, weights="adapter", lora=LoraSpec(rank=8))) is None


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"decay_ratio": 0.2}, "decay_ignored", "schedule cosine would ignore it"),
        (
            {"schedule": "wsd", "warmup_ratio": 0.5, "decay_ratio": 0.6},
            "schedule_too_long",
            "decay_ratio 0.5",
        ),
        ({"schedule": "wsd", "warmup_ratio": 0.95}, "schedule_too_long", "decay_ratio 0.05"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused(fields, code, words):
    refusal = check(a_spec(**fields))
    assert (refusal.code, refusal.param) == (code, "recipe.decay_ratio")
    assert words in refusal.message
    assert check(a_spec(schedule="wsd", warmup_ratio=0.03, decay_ratio=0.97)) is None


VALIDATED = {"validation_file": a_file_ref("valid.jsonl")}


@pytest.mark.parametrize(
    "fields",
    [{"early_stopping": EarlyStoppingSpec()}, {"load_best_model_at_end": True}, {"eval_every_steps": 10}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_goes_by_a_validation_loss_needs_a_validation_file(fields):
    name = next(iter(fields))
    refusal = check(a_job_spec(recipe=Recipe(**fields)))
    assert (refusal.code, refusal.param) == ("no_validation_file", f"recipe.{name}")
    assert f"Nearest that works: the same job with a validation_file, or without {name}" in refusal.message
    assert check(a_job_spec(recipe=Recipe(**fields), **VALIDATED)) is None
    assert check(a_job_spec()) is None


def test_the_best_checkpoint_may_not_be_looked_for_too_often():
    asked = {"load_best_model_at_end": True, "eval_every_steps": 9}
    refusal = check(a_job_spec(recipe=Recipe(**asked), **VALIDATED))
    assert (refusal.code, refusal.param) == ("bundles_too_often", "recipe.eval_every_steps")
    assert refusal.message.endswith("Nearest that works: eval_every_steps 10")
    for fields in ({"eval_every_steps": 10}, {"eval_every_steps": None}, {"load_best_model_at_end": False}):
        assert check(a_job_spec(recipe=Recipe(**asked | fields), **VALIDATED)) is None


def test_a_base_with_other_names_in_memory_is_not_quantised():
    base = capabilities(converts_names=True)
    assert check_base(a_spec(Method.LORA), base) is None
    refusal = check_base(a_spec(Method.QLORA), base)
    assert (refusal.code, refusal.param) == ("method_not_for_base", "recipe.method")
    assert refusal.message.endswith("Nearest that works: method lora on the same base model")
    assert methods_for(base) == [Method.CPT, Method.DPO, Method.LORA, Method.SFT]
    assert methods_for(capabilities()) == sorted(Method)

    quantized = a_spec(Method.DPO, quantization="nf4")
    assert check_base(quantized, capabilities()) is None
    refusal = check_base(quantized, base)
    assert (refusal.code, refusal.param) == ("method_not_for_base", "recipe.quantization")
    assert "cannot be trained with quantization nf4: its weights have other names" in refusal.message
    assert refusal.message.endswith(
        "method dpo and weights adapter without quantization on the same base model"
    )


def test_four_bits_are_asked_for_in_one_way_with_each_method():
    for method in (Method.DPO, Method.CPT):
        for weights in ("auto", "adapter"):
            spec = a_spec(method, weights=weights, quantization="nf4")
            assert check(spec) is None
            assert (spec.recipe.kind, spec.recipe.is_quantized) == ("adapter", True)
    for method, weights, nearest in (
        (Method.LORA, "auto", "Nearest that works: method qlora without recipe.quantization"),
        (Method.SFT, "auto", "Nearest that works: method qlora without recipe.quantization"),
        (Method.QLORA, "auto", "Nearest that works: leave recipe.quantization out"),
        (Method.CPT, "full", "method cpt with weights adapter and the same quantization"),
    ):
        refusal = check(a_spec(method, weights=weights, quantization="nf4"))
        assert (refusal.code, refusal.param) == ("quantization_not_of_method", "recipe.quantization")
        assert refusal.message.endswith(nearest)


@pytest.mark.parametrize(
    ("fields", "devices", "where"),
    [
        ({"stage": 2}, 2, ""),
        ({"offload_optimizer": True}, 1, " on 1 device"),
        ({"offload_optimizer": "auto"}, 1, " on 1 device"),
    ],
)
def test_what_only_deepspeed_does_is_refused_without_it(fields, devices, where):
    [(name, value)] = fields.items()
    refusal = check(a_spec(devices_per_node=devices, sharding=ShardingSpec(**fields)))
    assert (refusal.code, refusal.param) == ("sharding_ignored", f"recipe.sharding.{name}")
    assert f"is {value}, and library fsdp2 would ignore it{where}; leave it out" in refusal.message
    assert f"Nearest that works: library deepspeed with the same {name}" in refusal.message
    sharding = ShardingSpec(library="deepspeed", **fields)
    assert check(a_spec(devices_per_node=devices, sharding=sharding)) is None


@pytest.mark.parametrize(("nodes", "devices"), [(1, 2), (2, 1), (2, 8)])
@pytest.mark.parametrize("method", [Method.LORA, Method.SFT, Method.QLORA])
@pytest.mark.parametrize("offload", [True, "auto"])
def test_fsdp2_offloads_on_several_devices(method, nodes, devices, offload):
    sharding = ShardingSpec(offload_optimizer=offload)
    assert check(a_spec(method, nodes=nodes, devices_per_node=devices, sharding=sharding)) is None


def test_deepspeed_takes_no_other_optimizer_even_on_one_device():
    for optimizer, reason in (("muon", "each matrix whole"), ("paged_adamw_8bit", "updates whole tensors")):
        refusal = check(a_spec(optimizer=optimizer, sharding=ShardingSpec(library="deepspeed")))
        assert (refusal.code, refusal.param) == ("optimizer_not_sharded", "recipe.optimizer")
        assert f"optimizer {optimizer} with library deepspeed: weights are sharded there" in refusal.message
        assert reason in refusal.message
        assert refusal.message.endswith(f"{optimizer} on 1 node with 1 device and library fsdp2")


@pytest.mark.parametrize("device", [None, DeviceKind.CPU])
def test_layers_are_compiled_on_gpus_alone(device):
    spec = a_spec(compile=True)
    refusal = check(spec.model_copy(update={"resources": Resources(device=device)}))
    assert (refusal.code, refusal.param) == ("compile_not_on_device", "recipe.compile")
    assert f"resources.device is {device or 'left out'};" in refusal.message
    assert check(spec.model_copy(update={"resources": Resources(device=DeviceKind.CUDA)})) is None


def test_deepspeed_compiles_no_layer():
    spec = a_spec(compile=True, sharding=ShardingSpec(library="deepspeed"))
    refusal = check(spec.model_copy(update={"resources": Resources(device=DeviceKind.CUDA)}))
    assert (refusal.code, refusal.param) == ("compile_not_sharded", "recipe.compile")
    assert "Nearest that works: library fsdp2" in refusal.message


@pytest.mark.parametrize("name", sorted(get_args(OptimizerName)))
def test_each_optimizer_is_admitted_where_it_was_tested_and_else_refused_with_the_reason(name):
    assert check(a_spec(optimizer=name)) is None
    refusal = check(a_spec(optimizer=name, devices_per_node=2))
    if name == "adamw":
        assert refusal is None
        return
    assert (refusal.code, refusal.param) == ("optimizer_not_sharded", "recipe.optimizer")
    assert (
        f"optimizer {name} on 2 devices" in refusal.message
        or f"optimizer {name} on 1 node" in refusal.message
    )
    assert not any(row.covers(a_spec(optimizer=name, devices_per_node=2)) for row in ROWS)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"use_dora": True}, "use_dora"), ({"modules_to_save": ("lm_head",)}, "modules_to_save")],
)
def test_an_adapter_that_vllm_does_not_serve_is_refused_before_it_is_trained(fields, param):
    for method in (Method.LORA, Method.CPT):
        refusal = check(a_spec(method, weights="adapter", lora=LoraSpec(**fields)))
        assert (refusal.code, refusal.param) == ("adapter_not_served", f"recipe.lora.{param}")
        assert "vLLM serves no" in refusal.message
        assert "Nearest that works: " in refusal.message
    assert check(a_spec(lora=LoraSpec(use_rslora=True))) is None


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("q_proj", "layers.*.k_*", "layers.[01].*", "*q?proj"), None),
        (("layers.*.v_*", "q_proj"), "no plain linear layers named layers.*.v_*."),
        (("layers.2.*",), "has layers 0 to 1, and recipe.lora.target_modules names layers.2.*"),
    ],
)
def test_patterns_of_modules_that_name_no_layer_are_refused(targets, words):
    refusal = check_base(a_spec(lora=LoraSpec(target_modules=targets)), capabilities())
    assert (refusal is None) if words is None else words in refusal.message


@pytest.mark.parametrize(
    ("method", "dpo", "code", "param", "nearest"),
    [
        (Method.LORA, {"beta": 0.2}, "dpo_ignored", "recipe.dpo", "method dpo with the same recipe.dpo"),
        (Method.CPT, {"label_smoothing": 0.1}, "dpo_ignored", "recipe.dpo", "method dpo with"),
        (
            Method.DPO,
            {"gamma": 1},
            "gamma_ignored",
            "recipe.dpo.gamma",
            "recipe.dpo.loss simpo with the same gamma",
        ),
    ],
)
def test_what_no_loss_would_read_of_preferences_is_refused(method, dpo, code, param, nearest):
    refusal = check(a_spec(method, dpo=DpoSpec(**dpo)))
    assert (refusal.code, refusal.param) == (code, param)
    assert f"Nearest that works: {nearest}" in refusal.message
    assert check(a_spec(Method.DPO, dpo=DpoSpec(loss="simpo", **dpo))) is None


@pytest.mark.parametrize(
    ("method", "weights", "nearest"), [(Method.LORA, "full", "sft"), (Method.SFT, "adapter", "lora")]
)
def test_weights_that_a_method_does_not_train_are_refused_with_the_method_that_does(method, weights, nearest):
    refusal = check(a_spec(method, weights=weights))
    assert (refusal.code, refusal.param) == ("weights_not_of_method", "recipe.weights")
    assert f"Nearest that works: method {nearest}, or method {method} without" in refusal.message


def test_what_a_base_model_cannot_be_trained_with_holds_of_every_method_with_the_same_weights():
    base = capabilities(refused_methods={Method.LORA: "vLLM serves it without adapters"})
    assert check_base(a_spec(Method.CPT), base) is None
    refusal = check_base(a_spec(Method.CPT, weights="adapter"), base)
    assert (refusal.code, refusal.param) == ("method_not_for_base", "recipe.method")
    assert "method cpt and weights adapter: vLLM serves it without adapters" in refusal.message
    assert refusal.message.endswith("Nearest that works: weights full on the same base model")
    assert methods_for(base) == [Method.CPT, Method.DPO, Method.SFT]
    assert methods_for(capabilities(refused_methods={Method.LORA: "no", Method.SFT: "no"})) == []


ADAPTER = Recipe(lora=LoraSpec(rank=8))
FULL = Recipe(method=Method.SFT)


@pytest.mark.parametrize(
    ("trained", "recipe"),
    [
        (ADAPTER, Recipe(lora=LoraSpec(rank=8, alpha=16, dropout=0.1), seed=3)),
        (ADAPTER, Recipe(method=Method.CPT, weights="adapter", lora=LoraSpec(rank=8))),
        (
            Recipe(lora=LoraSpec(target_modules=("q_proj", "v_proj"))),
            Recipe(lora=LoraSpec(target_modules=("v_proj", "q_proj"))),
        ),
        (FULL, Recipe(method=Method.CPT)),
    ],
)
def test_a_job_starts_from_weights_like_its_own(trained, recipe):
    assert check_start(recipe, trained, "ft:x") is None


@pytest.mark.parametrize(
    ("trained", "recipe", "param", "nearest"),
    [
        (ADAPTER, Recipe(lora=LoraSpec(rank=16)), "recipe.lora.rank", "or rank 8"),
        (ADAPTER, Recipe(lora=LoraSpec(rank=8, alpha=8)), "recipe.lora.alpha", "or alpha 16.0"),
        (
            ADAPTER,
            Recipe(lora=LoraSpec(rank=8, target_modules=("q_proj",))),
            "recipe.lora.target_modules",
            "or target_modules all-linear",
        ),
        (ADAPTER, FULL, "recipe.method", "method lora"),
        (ADAPTER, Recipe(method=Method.CPT), "recipe.weights", "weights adapter"),
        (FULL, ADAPTER, "recipe.method", "method sft"),
    ],
)
def test_what_starts_from_other_weights_is_refused_with_the_nearest_that_does_not(
    trained, recipe, param, nearest
):
    refusal = check_start(recipe, trained, "ft:x")
    assert refusal.param == param
    assert refusal.code == ("other_adapter" if "lora" in param else "other_weights")
    assert "ft:x" in refusal.message
    assert refusal.message.endswith(nearest)


def test_what_no_row_covers_is_refused_with_the_nearest_row():
    rows = [row for row in ROWS if row.nodes.stop <= 2]
    refusal = check(a_spec(nodes=2, devices_per_node=8), rows)
    assert (refusal.code, refusal.param) == ("not_compatible", "resources")
    assert refusal.message == (
        "lora of an adapter on 2 nodes with 8 devices each in auto is in no row of compatibility table 7. "
        "Nearest that works: lora or cpt or dpo of an adapter on 1 node with 2 to 16 devices each in bfloat16 or float32"
    )


@pytest.mark.parametrize(
    ("batch", "resources", "nearest"),
    [
        (4, {"devices_per_node": 8}, "batch_size 4 on 1 node with 4 devices each"),
        (3, {"nodes": 2, "devices_per_node": 8}, "batch_size 3 on 2 nodes with 1 device each"),
        (1, {"nodes": 2}, "batch_size 1 on 1 node with 1 device each"),
    ],
)
def test_a_batch_that_leaves_devices_without_work_is_refused_with_both_nearest_pairs(
    batch, resources, nearest
):
    refusal = check(a_job_spec(recipe=Recipe(batch_size=batch), resources=Resources(**resources)))
    num_devices = Resources(**resources).num_devices
    assert (refusal.code, refusal.param) == ("batch_too_small", "recipe.batch_size")
    assert f"leaves {num_devices - batch} of {num_devices} devices without work" in refusal.message
    assert f"batch_size {num_devices} (or auto) with the same resources" in refusal.message
    assert nearest in refusal.message


@pytest.mark.parametrize("batch", ["auto", 8, 12])
def test_a_batch_with_work_for_all_devices_is_admitted(batch):
    assert check(a_job_spec(recipe=Recipe(batch_size=batch), resources=Resources(devices_per_node=8))) is None


@pytest.mark.parametrize(
    ("interval", "nearest"),
    [({"every_steps": 9}, "every_steps 10"), ({"every_seconds": 4.5}, "every_seconds 5")],
)
def test_bundles_without_a_pause_between_them_are_refused(interval, nearest):
    refusal = check(a_job_spec(recipe=Recipe(checkpoint=CheckpointSpec(**interval))))
    assert (refusal.code, refusal.param) == ("bundles_too_often", f"recipe.checkpoint.{nearest.split()[0]}")
    assert refusal.message.endswith(f"Nearest that works: {nearest}")
    assert (
        check(a_job_spec(recipe=Recipe(checkpoint=CheckpointSpec(every_steps=10, every_seconds=5)))) is None
    )
