"""A full model's weights in several files: each process writes a share of them, and all together they are the model."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.training.families import build, recipe_of
from schemas.specification import Method
from services.trainer_agent.protocol import ResumeChecked, Saved
from services.trainer_agent.training.bundle import INDEX, MODEL_FILE, full_model_files
from services.trainer_agent.training.network import build_network, trainable
from services.trainer_agent.training.shards import shards_of
from services.trainer_agent.training.snapshot import take_snapshot
from services.trainer_agent.training.start import shapes_of
from shared.model_files.models import check_full, digests_beside_weights, read_base
from shared.model_files.tensors import shapes_of as shapes_in_files
from tests.families import FAMILIES, build_family
from tests.training.jobs import (
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    model_sha256,
    model_weights,
    reports_in,
    reports_of,
)
from tests.training.ranks import in_each_rank, run_gang
from tests.training.test_fsdp import prepared

CPU = torch.device("cpu")
FULL = MODEL_FILE["full"]


class TestShares:
    SHAPES = {f"layer-{index}": (100, 10) for index in range(8)} | {"norm": (10,), "head": (50, 100)}

    @pytest.mark.parametrize("num_writers", [1, 2, 3, 4, 7, 64])
    def test_have_each_tensor_once_and_about_as_many_values(self, num_writers):
        shards = shards_of(self.SHAPES, FULL, num_writers=num_writers)
        assert 0 in shards
        assert set(shards) <= set(range(num_writers))
        names = [name for shard in shards.values() for name in shard.names]
        assert sorted(names) == sorted(self.SHAPES)
        sizes = [sum(math.prod(self.SHAPES[name]) for name in shard.names) for shard in shards.values()]
        assert max(sizes) < sum(sizes) / num_writers + 50 * 100

    def test_have_the_names_that_transformers_gives(self):
        paths = [shard.path for shard in shards_of(self.SHAPES, FULL, num_writers=2).values()]
        assert paths == ["model/model-00001-of-00002.safetensors", "model/model-00002-of-00002.safetensors"]

    def test_of_one_writer_is_the_one_file(self):
        [shard] = shards_of(self.SHAPES, FULL, num_writers=1).values()
        assert shard.path == FULL


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_files_of_all_ranks_are_those_of_one(family, tmp_path):
    """Tied heads, experts, names without the inner model's, and buffers that are in the files."""
    base_dir = build_family(tmp_path / "base", family)
    network = build_network(a_recipe(method=Method.SFT), base_dir, CPU)
    model = network.causal_lm
    tensors = {name: parameter.detach() for name, parameter in trainable(network).items()}

    def written(num_writers: int) -> tuple[dict[str, str], dict[str, torch.Tensor], str | None]:
        shards = shards_of(shapes_of(tensors), FULL, num_writers=num_writers)
        places, values, index = {}, {}, None
        for rank, shard in shards.items():
            files = full_model_files(base_dir, model, shapes_of(tensors), shards, rank)
            own = files.as_written({name: tensors[name] for name in shard.names})
            assert not own.keys() & values.keys()
            values |= own
            places |= dict.fromkeys(own, Path(shard.path).name)
            index = files.texts.get(INDEX)
        return places, values, index

    _, whole, no_index = written(1)
    places, values, index = written(3)
    assert no_index is None
    assert values.keys() == whole.keys()
    assert all(torch.equal(values[name], tensor) for name, tensor in whole.items())
    assert index is not None
    assert json.loads(index)["weight_map"] == places
    assert len(set(places.values())) == 3


def test_files_are_written_while_passes_replace_the_parameters(inputs, monkeypatch):
    """The writing thread looks at none of the model's: sharding swaps them, and tied ones are known by identity."""
    network = build_network(a_recipe(method=Method.SFT), inputs.base_dir, CPU)
    tensors = {name: parameter.detach() for name, parameter in trainable(network).items()}
    shards = shards_of(shapes_of(tensors), FULL, num_writers=2)
    files = full_model_files(inputs.base_dir, network.causal_lm, shapes_of(tensors), shards, 0)

    def replaced(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a parameter of the model was read")

    monkeypatch.setattr(type(network.causal_lm), "named_parameters", replaced)
    assert files.as_written({name: tensors[name] for name in shards[0].names})


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    """Two processes on a full model: its order, where they worked, and what they saved."""
    recipe = a_recipe(method=Method.SFT, num_epochs=2, batch_size=8)
    order, folder = an_order(inputs, recipe, devices_per_node=2), tmp_path_factory.mktemp("trained")
    run_gang(folder, order)
    return order, reports_of(reports_in(folder / "0"), Saved)


def test_a_bundle_of_two_processes_is_a_model_that_is_loaded_and_registered(trained, inputs, tmp_path):
    _, saved = trained
    directory = saved[-1].directory / "model"
    index = json.loads((saved[-1].directory / INDEX).read_text())["weight_map"]
    assert set(index.values()) == {path.name for path in directory.glob("*.safetensors")}
    assert len(set(index.values())) == 2
    check_full(
        directory, shapes_in_files(read_base(inputs.base_dir)), digests_beside_weights(inputs.base_dir)
    )
    loaded = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True).state_dict()
    weights = model_weights(saved[-1].directory)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_experts_are_written_by_several_processes_and_resumed_exactly(tmp_path, monkeypatch):
    """In the files each is for itself, in the model they are one tensor."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    base = build("Mixtral", tmp_path / "base").inputs
    order = an_order(base, recipe_of(Method.SFT).model_copy(update={"num_epochs": 2}), devices_per_node=2)
    saved = reports_of(run_gang(tmp_path / "whole", order), Saved)
    index = json.loads((saved[-1].directory / INDEX).read_text())["weight_map"]
    experts = {file for name, file in index.items() if ".experts." in name}
    assert experts == {path.name for path in (saved[-1].directory / "model").glob("*.safetensors")}
    assert index.keys() == shapes_in_files(read_base(base.base_dir)).keys()
    bundle = as_bundle(order, saved[0], tmp_path / "bundle")
    resumed = run_gang(tmp_path / "resumed", order.model_copy(update={"resume_dir": bundle}))
    [checked] = reports_of(resumed, ResumeChecked)
    assert checked.certificate.exact, checked.certificate.reason
    assert model_sha256(reports_of(resumed, Saved)[-1]) == model_sha256(saved[-1])


def test_no_process_holds_all_of_a_full_model(trained, tmp_path):
    order, _ = trained
    in_each_rank(_hold_a_share, a_work_dir(tmp_path / "work", order), order)


def _hold_a_share(world, work_dir, order) -> None:
    run = prepared(world, work_dir, order)
    shards = shards_of(run.trained, FULL, num_writers=world.size)
    total = sum(map(math.prod, run.trained.values()))
    held = sum(tensor.numel() for tensor in take_snapshot(run.sharding, world, shards).model.values())
    assert 0.2 * total < held < 0.8 * total, (held, total)
    assert not take_snapshot(run.sharding, world).model


def test_it_is_resumed_exactly(trained, tmp_path):
    order, saved = trained
    bundle = as_bundle(order, saved[0], tmp_path / "bundle")
    run_gang(tmp_path / "work", order.model_copy(update={"resume_dir": bundle}))
    reports = reports_in(tmp_path / "work" / "0")
    [checked] = reports_of(reports, ResumeChecked)
    assert checked.certificate.exact, checked.certificate.reason
    assert model_sha256(reports_of(reports, Saved)[-1]) == model_sha256(saved[-1])
