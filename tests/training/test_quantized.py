"""An adapter beside a base of 4 bits: the levels and products written out by hand, and runs from start to end."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from peft import PeftModel
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from schemas.specification import LoraSpec, Method, Recipe
from schemas.training import PackingVerdict
from services.trainer_agent.protocol import (
    Ended,
    Outcome,
    PreflightDone,
    ReferenceComputed,
    ResumeChecked,
    Saved,
    Stepped,
)
from services.trainer_agent.training.dataset import load_dataset
from services.trainer_agent.training.network import build_network, num_matmul_parameters
from services.trainer_agent.training.quantized import as_served, four_bit_layers, num_values, quantized_base
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopRequest
from shared.model_files.adapters import check_adapter
from shared.model_files.models import read_base
from shared.model_files.tensors import shapes_of
from tests.training.jobs import (
    BASE_SHA,
    VERSION,
    Inputs,
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    carry_out,
    reports_of,
    rewrite_manifest,
)
from tests.training.test_preference import log_probabilities, terms_by_hand

QLORA = a_recipe(method=Method.QLORA)
RECIPES = {
    "qlora": QLORA,
    "cpt": a_recipe(method=Method.CPT, quantization="nf4"),
    "dpo": a_recipe(method=Method.DPO, quantization="nf4"),
}
CPU = torch.device("cpu")
LEVELS = torch.tensor(
    (
        *(-1.0, -0.6961928, -0.5250730, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
    )
)
"""NF4, as the paper's appendix E lists them."""


@dataclass(frozen=True)
class Case:
    recipe: Recipe
    inputs: Inputs

    def order(self, **changes):
        return an_order(self.inputs, self.recipe, **changes)


@pytest.fixture(scope="module", params=sorted(RECIPES))
def case(request, inputs, texts, preferences):
    files = {"qlora": inputs, "cpt": texts, "dpo": preferences}
    return Case(RECIPES[request.param], files[request.param])


@pytest.fixture(scope="module")
def whole(case, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("whole") / "work", case.order())


def in_levels(weight):
    """Each weight as the nearest level times the largest of its block of 64; scales are not quantised."""
    blocks = weight.flatten().view(-1, 64)
    scales = blocks.abs().amax(1, keepdim=True)
    nearest = ((blocks / scales)[..., None] - LEVELS).abs().argmin(-1)
    return (LEVELS[nearest] * scales).view_as(weight), scales


def weight_of(layer):
    return dequantize_4bit(layer.weight.data, layer.quant_state)


class TestBase:
    def test_each_weight_is_the_nearest_level_of_its_block(self, inputs):
        network = build_network(QLORA, inputs.base_dir, CPU)
        plain = AutoModelForCausalLM.from_pretrained(inputs.base_dir)
        layers = dict(four_bit_layers(network.causal_lm))
        assert len(layers) == 2 * 7
        for name, layer in layers.items():
            expected, scales = in_levels(plain.get_submodule(name).weight.detach())
            distance = (weight_of(layer) - expected).abs().view(-1, 64)
            # A scale is one of 256 steps up to the largest of its block of 256.
            assert (distance <= scales * 0.02 + scales.max() / 256).all(), name
            assert float(distance.mean() / expected.abs().mean()) < 0.01

    def test_head_table_and_norms_are_as_they_were(self, inputs):
        network = build_network(QLORA, inputs.base_dir, CPU)
        plain = AutoModelForCausalLM.from_pretrained(inputs.base_dir)
        tensors = dict(network.causal_lm.named_parameters())
        for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
            assert torch.equal(tensors[name], plain.get_parameter(name))

    def test_values_are_counted_and_not_bytes(self, inputs):
        plain, quantized = (
            build_network(a_recipe(method=method), inputs.base_dir, CPU)
            for method in (Method.LORA, Method.QLORA)
        )
        assert num_values(plain) == num_values(quantized)
        assert num_matmul_parameters(plain) == num_matmul_parameters(quantized)

    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    def test_a_width_that_is_no_multiple_of_64_computes_alike_in_both_modes(self, tmp_path, precision):
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=352,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
        LlamaForCausalLM(config).save_pretrained(tmp_path)
        network = build_network(a_recipe(method=Method.QLORA, precision=precision), tmp_path, CPU)
        tokens = torch.arange(24)
        with torch.no_grad():
            network.train()
            for module in network.modules():
                module.training = module.training and not isinstance(module, torch.nn.Dropout)
            trained = network.whole_logits_losses(tokens)
            evaluated = network.eval().whole_logits_losses(tokens)
        assert torch.equal(trained, evaluated)
        assert all(layer.training for _, layer in four_bit_layers(network))
        assert not network.causal_lm.training


@pytest.mark.any_device
def test_steps_equal_those_of_a_plain_model_with_the_weights_that_the_levels_stand_for(inputs, tmp_path):
    recipe = a_recipe(method=Method.QLORA, lora=LoraSpec(rank=4), precision="float32")
    order = an_order(inputs, recipe)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, inputs.world, Reports(work_dir, inputs.world))
    plain = build_network(a_recipe(lora=LoraSpec(rank=4)), inputs.base_dir, CPU)
    layers = dict(four_bit_layers(run.network.causal_lm))
    with torch.no_grad():
        for name, layer in layers.items():
            plain.causal_lm.get_submodule(name).base_layer.weight.copy_(weight_of(layer))
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], weight_decay=0.0)
    for _ in range(3):
        examples = [example for window in run.next_plan().windows for example in window]
        count = sum(len(example.targets) for example in examples)
        total = 0.0
        for example in examples:
            losses = plain.whole_logits_losses(torch.from_numpy(example.tokens).long())
            loss = losses[torch.from_numpy(example.targets) - 1].sum() / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        stepped = take_step(run, StopRequest(work_dir))
        optimizer.param_groups[0]["lr"] = stepped.learning_rate
        optimizer.step()
        optimizer.zero_grad()
        assert stepped.loss == pytest.approx(total, abs=1e-5)
    served = {name: p for name, p in plain.model.named_parameters() if p.requires_grad}
    weights = dict(run.sharding.whole_weights())
    for name, parameter in served.items():
        torch.testing.assert_close(
            weights[name.replace(".default.", ".")].cpu(), parameter, atol=2e-5, rtol=0, msg=name
        )


def test_as_served_the_layers_are_those_of_the_files_and_afterwards_quantised_again(inputs):
    recipe = a_recipe(method=Method.QLORA, lora=LoraSpec(rank=4))
    quantized = build_network(recipe, inputs.base_dir, CPU)
    plain = build_network(a_recipe(lora=LoraSpec(rank=4)), inputs.base_dir, CPU)
    own = dict(plain.causal_lm.named_parameters())
    with torch.no_grad():
        for name, parameter in quantized.causal_lm.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
            if ".lora_" in name:
                own[name].copy_(parameter)
        tokens = torch.arange(64)
        before = quantized.whole_logits_losses(tokens)
        with as_served(quantized.causal_lm, quantized_base(quantized.causal_lm, inputs.base_dir)):
            served = quantized.whole_logits_losses(tokens)
        assert torch.equal(quantized.whole_logits_losses(tokens), before)
        torch.testing.assert_close(served, plain.whole_logits_losses(tokens))
        assert (served - before).abs().max() > 1e-3


@pytest.mark.any_device
class TestRun:
    def test_learns_with_packing_proved(self, whole):
        [ended], [done] = reports_of(whole, Ended), reports_of(whole, PreflightDone)
        assert ended.outcome is Outcome.COMPLETED, ended.message
        assert done.preparation.packing is PackingVerdict.PROVED
        losses = [stepped.loss for stepped in reports_of(whole, Stepped)]
        assert losses[-1] < losses[0] - 0.02

    def test_says_what_the_adapter_loses_on_the_base_that_it_is_served_on(self, whole):
        *periodic, last = reports_of(whole, Saved)
        assert all(saved.metrics.served_valid_loss is None for saved in periodic)
        metrics = last.metrics
        # The validation file has fewer windows than are looked at.
        assert metrics.valid_loss == pytest.approx(metrics.full_valid_loss)
        assert 0 < abs(metrics.served_valid_loss - metrics.valid_loss) < 0.05
        assert metrics.by_name["served_valid_loss"] == metrics.served_valid_loss

    def test_writes_a_plain_adapter_as_the_registry_takes_it(self, inputs, whole):
        directory = reports_of(whole, Saved)[-1].directory / "model"
        check_adapter(directory, shapes_of(read_base(inputs.base_dir)), rank=4)
        with safe_open(directory / "adapter_model.safetensors", framework="pt") as file:
            assert len(file.keys()) == 2 * 14

    def test_another_base_than_the_writing_runs_is_named(self, case, whole, tmp_path):
        bundle = as_bundle(case.order(), reports_of(whole, Saved)[0], tmp_path / "bundle")
        state = json.loads((bundle / "state.json").read_text())
        assert len(state["quantized_sha256"]) == 64
        (bundle / "state.json").write_text(json.dumps(state | {"quantized_sha256": "0" * 64}))
        rewrite_manifest(bundle)
        later = carry_out(tmp_path / "later", case.order(attempt=2, resume_dir=bundle))
        [checked] = reports_of(later, ResumeChecked)
        assert not checked.certificate.exact
        assert checked.certificate.reason.startswith("quantised base: expected 0000")


class TestPreferences:
    """What a preference is compared with is the base that computes: 4 bits in training, the files' as it is served."""

    def trained(self, directory, preferences, **start):
        recipe = RECIPES["dpo"].model_copy(update={"lora": LoraSpec(rank=4), "num_epochs": 1})
        return carry_out(directory / "work", an_order(preferences, recipe, **start))

    def test_the_reference_is_what_the_base_of_4_bits_says(self, preferences, tmp_path):
        [computed] = reports_of(self.trained(tmp_path, preferences), ReferenceComputed)
        quantized = build_network(RECIPES["dpo"], preferences.base_dir, CPU)
        base = AutoModelForCausalLM.from_pretrained(preferences.base_dir)
        plain = load_file(computed.path)["validation"]
        with torch.no_grad():
            expected_of_16 = self.log_probabilities(base, preferences)
            for name, layer in four_bit_layers(quantized.causal_lm):
                base.get_submodule(name).weight.copy_(weight_of(layer))
            expected = self.log_probabilities(base, preferences)
        np.testing.assert_allclose(plain, expected, atol=1e-3)
        assert np.abs(plain - expected_of_16.numpy()).max() > 0.01
        sha256 = quantized_base(quantized.causal_lm, preferences.base_dir).sha256
        assert computed.identity.quantized_sha256 == sha256

    @pytest.mark.parametrize("starts_from_an_adapter", [False, True])
    def test_as_served_it_is_compared_with_what_the_served_base_says(
        self, preferences, tmp_path, starts_from_an_adapter
    ):
        start, reference = {}, AutoModelForCausalLM.from_pretrained(preferences.base_dir)
        if starts_from_an_adapter:
            first = reports_of(self.trained(tmp_path / "first", preferences), Saved)[-1].directory / "model"
            start = {"start_dir": first, "started_from": "a" * 64}
            reference = PeftModel.from_pretrained(reference, first)
        reports = self.trained(tmp_path / "last", preferences, **start)
        [computed], last = reports_of(reports, ReferenceComputed), reports_of(reports, Saved)[-1]
        beside_4_bits = torch.from_numpy(load_file(computed.path)["validation"])
        base = AutoModelForCausalLM.from_pretrained(preferences.base_dir)
        policy = PeftModel.from_pretrained(base, last.directory / "model")
        with torch.no_grad():
            sums = [self.log_probabilities(model, preferences) for model in (policy, reference)]
        served, mixed = (
            terms_by_hand(RECIPES["dpo"].preferences, sums[0], compared, lengths=None)[0].mean().item()
            for compared in (sums[1], beside_4_bits)
        )
        assert last.metrics.served_valid_loss == pytest.approx(served, abs=1e-6)
        assert served < math.log(2) - 1e-4
        assert abs(mixed - served) > 1e-4

    def log_probabilities(self, model, preferences):
        dataset = load_dataset(preferences.dataset_dir, version=VERSION, base_sha=BASE_SHA, method=Method.DPO)
        windows = dataset.validation
        examples = {example.id: example for index in range(len(windows)) for example in windows[index]}
        return log_probabilities(model.eval(), [examples[index] for index in sorted(examples)])
