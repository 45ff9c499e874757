"""FSDP2 itself: what ranks say to each other, and what each reads and has of a model."""

import gc
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from schemas.specification import CheckpointSpec, LoraSpec, Method, Recipe, ShardingSpec
from services.trainer_agent.protocol import ResumeChecked, Saved, Stepped, TrainingOrder, bundle_manifest
from services.trainer_agent.training.bundle import RankIndex
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.network import build_network
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.sharding import shard
from services.trainer_agent.training.sharding.fsdp2 import spread
from services.trainer_agent.training.step import _gradient
from services.trainer_agent.training.stop import StopRequest
from shared.causal_models import converts_names
from tests.chaos.scale import at_night
from tests.families import FAMILIES, build_family
from tests.training.jobs import (
    a_recipe,
    a_work_dir,
    an_order,
    model_sha256,
    model_weights,
    reports_in,
    reports_of,
)
from tests.training.ranks import in_each_rank, run_gang

T = TypeVar("T")
CPU = torch.device("cpu")
NUM_LAYERS = 2
REDUCE_SCATTER = "reduce_scatter_single"


def recipe_of(method: Method, precision: str = "float32") -> Recipe:
    """Two micro batches a step for each of two processes. Without dropout, of which each draws its own."""
    lora = LoraSpec() if method is Method.SFT else LoraSpec(rank=4)
    return a_recipe(method=method, lora=lora, num_epochs=1, batch_size=8, precision=precision)


def prepared(world: World, work_dir: Path, order: TrainingOrder) -> Run:
    return prepare(order, work_dir, world, Reports(work_dir, world))[0]


@contextmanager
def counted(name: str) -> Iterator[Counter[str]]:
    """How often a function of torch.distributed is called within it."""
    function, calls = getattr(dist, name), Counter[str]()

    def counting(*arguments: Any, **named: Any) -> Any:
        # What all processes agree on has no group.
        calls[name] += "group" in named
        return function(*arguments, **named)

    setattr(dist, name, counting)
    try:
        yield calls
    finally:
        setattr(dist, name, function)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_of_an_adapter_are_reduced_once_a_step(inputs, tmp_path, precision):
    order = an_order(inputs, recipe_of(Method.LORA, precision), devices_per_node=2)
    in_each_rank(_reduce_once, a_work_dir(tmp_path / "work", order), order)


def _reduce_once(world: World, work_dir: Path, order: TrainingOrder) -> None:
    run, stop = prepared(world, work_dir, order), StopRequest(work_dir)
    with counted(REDUCE_SCATTER) as calls:
        expected = _gradient(run, run.next_plan(), stop)
    assert calls[REDUCE_SCATTER] == NUM_LAYERS
    _drop_half_a_step(run)
    assert _gradient(run, run.next_plan(), stop) == expected


def test_gradients_of_all_weights_are_reduced_with_each_micro_batch(inputs, tmp_path):
    order = an_order(inputs, recipe_of(Method.SFT), devices_per_node=2)
    in_each_rank(_reduce_each_time, a_work_dir(tmp_path / "work", order), order)


def _reduce_each_time(world: World, work_dir: Path, order: TrainingOrder) -> None:
    run = prepared(world, work_dir, order)
    with counted(REDUCE_SCATTER) as calls:
        _gradient(run, run.next_plan(), StopRequest(work_dir))
    # The tables are outside the layers.
    assert calls[REDUCE_SCATTER] == 2 * (NUM_LAYERS + 1)


@pytest.fixture(scope="module")
def families(tmp_path_factory) -> dict[str, Path]:
    return {name: build_family(tmp_path_factory.mktemp("family"), name) for name in FAMILIES}


@pytest.mark.parametrize(("method", "precision"), [(Method.LORA, "bfloat16"), (Method.SFT, "float32")])
def test_rows_that_ranks_read_are_those_of_the_whole_model(families, method, precision):
    in_each_rank(_read_each_family, families, recipe_of(method, precision))


def _read_each_family(world: World, families: dict[str, Path], recipe: Recipe) -> None:
    for name, base_dir in families.items():
        whole = build_network(recipe, base_dir, world.device)
        in_rows = build_network(recipe, base_dir, world.device, in_rows=True)
        assert in_rows.unread, name
        assert converts_names(in_rows.causal_lm) == converts_names(whole.causal_lm)
        spread(in_rows, world)
        read = in_rows.state_dict()
        assert read.keys() == whole.state_dict().keys()
        for tensor, expected in whole.state_dict().items():
            assert read[tensor].dtype == expected.dtype
            assert torch.equal(_gathered(read[tensor]), expected), f"{name}: {tensor}"
        assert dict(in_rows.named_parameters()).keys() == dict(whole.named_parameters()).keys()
        for tensor, expected in whole.named_buffers():
            assert torch.equal(in_rows.get_buffer(tensor), expected), f"{name}: {tensor}"


def _gathered(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize(
    ("family", "sizes", "layers"),
    [
        ("llama", {"intermediate_size": 2048}, 8),
        ("mixtral", {"intermediate_size": 512, "num_local_experts": 8}, 4),
    ],
)
def test_a_rank_has_no_more_of_the_base_in_memory_than_its_rows(tmp_path, family, sizes, layers):
    write_bases(tmp_path, family, sizes, layers)
    # What one of them gives back the other one would take again.
    for in_rows in (True, False):
        in_each_rank(_read_in_little_memory, tmp_path, in_rows)


def _read_in_little_memory(world: World, folder: Path, in_rows: bool) -> None:
    growth = growth_of(world, folder, recipe_of(Method.SFT), in_rows=in_rows)
    assert growth < 0.65 if in_rows else growth > 0.9


def write_bases(folder: Path, family: str, sizes: dict[str, int], layers: int) -> None:
    """A large one, and a small one."""
    shared = {"hidden_size": 512, "num_attention_heads": 4, "vocab_size": 4000, "tie_word_embeddings": False}
    for name, number in {"large": layers, "small": 1}.items():
        config = CONFIG_MAPPING[family](**shared, **sizes, num_hidden_layers=number)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)


def growth_of(world: World, folder: Path, recipe: Recipe, *, in_rows: bool) -> float:
    """Of the process's resident memory at the highest moment of reading and sharding the large base, for its size."""
    # Libraries allocate for themselves when they are first used.
    for name in ("small", "large"):
        gc.collect()
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        shard(build_network(recipe, folder / name, world.device, in_rows=in_rows), recipe, world)
        growth = _resident("VmHWM") - before
    return growth / (folder / "large" / "model.safetensors").stat().st_size


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def test_what_cannot_be_read_in_rows_is_read_whole_and_named(families, tmp_path, caplog):
    def read(base_dir: Path) -> str:
        caplog.clear()
        assert not build_network(recipe_of(Method.SFT), base_dir, CPU, in_rows=True).unread
        return caplog.text

    tensors = load_file(families["Qwen 2"] / "model.safetensors")
    twice = Path(shutil.copytree(families["Qwen 2"], tmp_path / "twice"))
    table = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": table}, twice / "model.safetensors", metadata={"format": "pt"})
    assert "the files have lm_head.weight beside what it is tied to" in read(twice)
    less = Path(shutil.copytree(families["Llama"], tmp_path / "less"))
    tensors = load_file(less / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, less / "model.safetensors", metadata={"format": "pt"})
    assert "model.norm.weight has shape None in the files" in read(less)
    experts = Path(shutil.copytree(families["Mixtral"], tmp_path / "experts"))
    tensors = load_file(experts / "model.safetensors")
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    save_file(tensors, experts / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingFailed, match="the base model cannot be loaded"):
        read(experts)
    assert "model.layers.1.mlp.experts.gate_up_proj of mixtral has another form in the files" in caplog.text


@pytest.fixture(scope="module")
def of_nodes(inputs, tmp_path_factory) -> Callable[[Method, int], tuple[TrainingOrder, Path]]:
    """A run of so many nodes of two processes each and the folder of its nodes; of none: of one process."""

    @cache
    def run(method: Method, nodes: int) -> tuple[TrainingOrder, Path]:
        order = an_order(
            inputs, two_nodes_recipe(method), nodes=nodes or 1, devices_per_node=2 if nodes else 1
        )
        folder = tmp_path_factory.mktemp("nodes")
        run_gang(folder, order)
        return order, folder

    return run


def two_nodes_recipe(method: Method) -> Recipe:
    interval = CheckpointSpec(every_steps=1, every_seconds=3600)
    return recipe_of(method).model_copy(update={"batch_size": 16, "checkpoint": interval})


def reports_of_node(folder: Path, node: int, kind: type[T]) -> list[T]:
    return reports_of(reports_in(folder / str(node)), kind)


def bundle_of(order: TrainingOrder, folder: Path, index: int, target: Path) -> Path:
    """Parts of all nodes."""
    for node in reversed(range(order.nodes)):
        saved = reports_of_node(folder, node, Saved)[index]
        shutil.copytree(saved.directory, target, dirs_exist_ok=True)
    (target / "manifest.json").write_text(bundle_manifest(order, saved).model_dump_json())
    return target


@pytest.mark.parametrize("method", [Method.LORA, Method.SFT])
def test_two_nodes_with_a_copy_each_take_the_steps_of_one_process(of_nodes, method):
    (_, nodes), (_, alone) = of_nodes(method, 2), of_nodes(method, 0)
    steps, expected = (reports_of_node(folder, 0, Stepped) for folder in (nodes, alone))
    assert len(steps) == 2
    assert [each.loss for each in steps] == pytest.approx([each.loss for each in expected], abs=1e-4)
    assert [each.grad_norm for each in steps] == pytest.approx(
        [each.grad_norm for each in expected], rel=1e-3
    )


def test_a_bundle_of_two_nodes_has_each_value_once_and_is_resumed_exactly(of_nodes, tmp_path):
    order, folder = of_nodes(Method.SFT, 2)
    bundle = bundle_of(order, folder, 0, tmp_path / "bundle")
    indices = [
        RankIndex.model_validate_json((bundle / f"optimizer/rank-{rank}.json").read_text())
        for rank in range(4)
    ]
    assert [bool(index.slices) for index in indices] == [True, True, False, False]
    weights = model_weights(bundle)
    covered = Counter({each.tensor: math.prod(each.shape) for each in indices[0].slices})
    covered.update({each.tensor: math.prod(each.shape) for each in indices[1].slices})
    assert covered == {name: weight.numel() for name, weight in weights.items()}
    assert not load_file(bundle / indices[2].file)
    run_gang(tmp_path / "resumed", order.model_copy(update={"resume_dir": bundle}))
    [checked] = reports_of_node(tmp_path / "resumed", 0, ResumeChecked)
    assert checked.certificate.exact, checked.certificate.reason
    last, expected = (reports_of_node(each, 0, Saved)[-1] for each in (tmp_path / "resumed", folder))
    assert model_sha256(last) == model_sha256(expected)


def test_a_bundle_of_two_nodes_is_resumed_by_one_process(of_nodes, tmp_path):
    order, folder = of_nodes(Method.SFT, 2)
    bundle = bundle_of(order, folder, 0, tmp_path / "bundle")
    alone, expected = of_nodes(Method.SFT, 0)
    run_gang(tmp_path / "resumed", alone.model_copy(update={"resume_dir": bundle}))
    [step] = reports_of_node(tmp_path / "resumed", 0, Stepped)
    assert step.loss == pytest.approx(reports_of_node(expected, 0, Stepped)[-1].loss, abs=1e-4)


@pytest.mark.parametrize(
    "method", [pytest.param(Method.LORA, marks=at_night("of all weights at each change")), Method.SFT]
)
def test_gradients_travel_from_node_to_node_once_a_step(inputs, tmp_path, method):
    order = an_order(inputs, two_nodes_recipe(method), nodes=2, devices_per_node=2)
    in_each_rank(_travel_once, a_work_dir(tmp_path / "work", order), order, nodes=2)


def _travel_once(world: World, work_dir: Path, order: TrainingOrder) -> None:
    run, stop = prepared(world, work_dir, order), StopRequest(work_dir)
    is_full = order.recipe.kind == "full"
    with counted("all_reduce") as calls:
        expected = _gradient(run, run.next_plan(), stop)
    assert calls["all_reduce"] == NUM_LAYERS + is_full
    _drop_half_a_step(run)
    assert _gradient(run, run.next_plan(), stop) == expected


@pytest.mark.parametrize(
    ("method", "nodes"),
    [
        (Method.LORA, 1),
        pytest.param(Method.SFT, 1, marks=at_night("on two nodes at each change")),
        (Method.QLORA, 1),
        (Method.SFT, 2),
    ],
)
def test_offloaded_two_processes_take_the_same_steps_and_write_the_same_bytes(
    inputs, tmp_path, method, nodes
):
    saved = {}
    for offload in (False, True):
        recipe = recipe_of(method).model_copy(update={"sharding": ShardingSpec(offload_optimizer=offload)})
        run_gang(tmp_path / str(offload), an_order(inputs, recipe, nodes=nodes, devices_per_node=2 // nodes))
        saved[offload] = reports_of_node(tmp_path / str(offload), 0, Saved)[-1]
    assert model_sha256(saved[True]) == model_sha256(saved[False])
    assert saved[True].metrics == saved[False].metrics


def test_every_layer_is_offloaded_and_its_gradient_can_be_dropped(inputs, tmp_path):
    recipe = recipe_of(Method.SFT).model_copy(update={"sharding": ShardingSpec(offload_optimizer=True)})
    order = an_order(inputs, recipe, devices_per_node=2)
    in_each_rank(_offload, a_work_dir(tmp_path / "work", order), order)


def _offload(world: World, work_dir: Path, order: TrainingOrder) -> None:
    run, stop = prepared(world, work_dir, order), StopRequest(work_dir)
    policies = {
        type(group.offload_policy)
        for module in run.network.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups
    }
    assert policies == {CPUOffloadPolicy}
    expected = _gradient(run, run.next_plan(), stop)
    run.sharding.drop_gradients()
    assert _gradient(run, run.next_plan(), stop) == expected


def _drop_half_a_step(run: Run) -> None:
    """What was not reduced yet is dropped too."""
    run.sharding.drop_gradients()
    first, *_ = run.share_of(run.next_plan())
    terms = run.objective.terms(run.sharding.training_network, first, run.device)
    run.sharding.backward(terms.losses.sum(), is_last=False)
    run.sharding.drop_gradients()
