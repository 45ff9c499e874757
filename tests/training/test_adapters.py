"""Variants of an adapter: what each layer computes, written out by hand, and what its files say."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from schemas.base import FailureClass
from schemas.specification import LoraSpec
from services.trainer_agent.protocol import Ended, Outcome, Saved
from services.trainer_agent.training.network import build_network
from shared.model_files.adapters import check_adapter
from shared.model_files.models import read_base
from shared.model_files.tensors import shapes_of
from tests.training.jobs import a_recipe, an_order, carry_out, reports_of

RANK = 4


def network_of(inputs, **lora):
    recipe = a_recipe(lora=LoraSpec(rank=RANK, **lora))
    return build_network(recipe, inputs.base_dir, torch.device("cpu"))


def adapted(network):
    """Names of the layers that have an adapter."""
    return {name for name, module in network.causal_lm.named_modules() if hasattr(module, "lora_A")}


@pytest.mark.parametrize(
    ("lora", "factor"),
    [({"alpha": 6.0}, 6.0 / RANK), ({"alpha": 6.0, "use_rslora": True}, 6.0 / math.sqrt(RANK))],
)
def test_a_layer_adds_the_product_times_its_factor(inputs, lora, factor):
    network = network_of(inputs, target_modules=("layers.1.*.q_proj",), **lora)
    [name] = adapted(network)
    layer = network.causal_lm.get_submodule(name)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        b.normal_(generator=torch.Generator().manual_seed(1))
        x = torch.randn(3, a.shape[1], generator=torch.Generator().manual_seed(2))
        expected = x @ layer.base_layer.weight.T + factor * (x @ a.T @ b.T)
        torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("layers.0.*.q_proj",), {"model.layers.0.self_attn.q_proj"}),
        (("layers.1.mlp.*_proj",), {f"model.layers.1.mlp.{each}_proj" for each in ("gate", "up", "down")}),
        (("layers.[0].self_attn.[qk]_proj",), {f"model.layers.0.self_attn.{each}_proj" for each in "qk"}),
        (("layers.0.self_attn.v_proj", "model.layers.0.*.v_proj"), {"model.layers.0.self_attn.v_proj"}),
    ],
)
def test_a_pattern_names_layers_by_the_end_of_their_names(inputs, targets, expected):
    assert adapted(network_of(inputs, target_modules=targets)) == expected


def test_a_pattern_that_names_no_layer_is_the_users_failure(inputs, tmp_path):
    recipe = a_recipe(lora=LoraSpec(rank=RANK, target_modules=("q_proj", "layers.7.*")))
    [ended] = reports_of(carry_out(tmp_path / "work", an_order(inputs, recipe)), Ended)
    assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.USER)
    assert "no plain linear layer is named layers.7.*, expected some of down_proj, gate_proj" in ended.message


def test_the_files_of_a_rank_stabilised_adapter_are_those_that_the_registry_takes(inputs, tmp_path):
    lora = LoraSpec(rank=RANK, use_rslora=True, target_modules=("layers.*.q_proj",))
    recipe = a_recipe(lora=lora, num_epochs=1)
    saved = reports_of(carry_out(tmp_path / "work", an_order(inputs, recipe)), Saved)[-1]
    directory = saved.directory / "model"
    check_adapter(directory, shapes_of(read_base(inputs.base_dir)), rank=RANK)
    config = json.loads((directory / "adapter_config.json").read_text())
    assert (config["use_rslora"], config["lora_alpha"]) == (True, 16)
    assert all(".q_proj." in name for name in load_file(directory / "adapter_model.safetensors"))
