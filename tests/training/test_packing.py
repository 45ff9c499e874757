"""The pre-flight must notice every known way in which packed examples come to see each other."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from schemas.base import FailureClass
from schemas.specification import Method
from schemas.training import PackingDistances, PackingVerdict, Preparation
from services.trainer_agent.protocol import Ended, PreflightDone, Report, Stepped
from services.trainer_agent.training import network, setup
from services.trainer_agent.training.attention import VARLEN
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.network import trainable
from services.trainer_agent.training.plan import Layout, rows_of
from services.trainer_agent.training.preflight import proves
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.tensors import inputs_of
from tests.training.jobs import (
    ONE_PROCESS,
    Inputs,
    a_recipe,
    a_work_dir,
    an_order,
    carry_out,
    reports_in,
    reports_of,
)


def with_cache(call: dict) -> dict:
    return call | {"use_cache": True}


def with_default_cache(call: dict) -> dict:
    return {name: value for name, value in call.items() if name != "use_cache"}


def with_mask(call: dict) -> dict:
    return call | {"attention_mask": torch.ones_like(call["input_ids"])}


def without_positions(call: dict) -> dict:
    return {name: value for name, value in call.items() if name != "position_ids"}


@pytest.fixture
def spoil(monkeypatch):
    """Change the arguments of the loop's own forward pass; the reference's pass stays as it is."""

    def install(change):
        forward = TokenLosses.forward

        def spoilt(network, inputs):
            body = network.causal_lm.base_model
            honest = body.forward
            monkeypatch.setattr(body, "forward", lambda **call: honest(**change(call)))
            try:
                return forward(network, inputs)
            finally:
                monkeypatch.setattr(body, "forward", honest)

        monkeypatch.setattr(TokenLosses, "forward", spoilt)

    return install


@pytest.fixture
def masked(monkeypatch):
    """Let a mask keep examples apart, which each of these changes takes away."""
    monkeypatch.setattr(network, "fastest", lambda *_: "sdpa")


LEAKS = [with_cache, with_default_cache, with_mask, without_positions]


@pytest.mark.usefixtures("masked")
@pytest.mark.parametrize("change", LEAKS)
def test_a_leak_between_packed_examples_is_refused_and_the_run_continues_unpacked(
    inputs, tmp_path, spoil, change
):
    order = an_order(inputs, a_recipe(num_epochs=1))
    honest = carry_out(tmp_path / "honest", order)
    spoil(change)
    leaking = carry_out(tmp_path / "leaking", order)
    proved, refused = preparation_of(honest), preparation_of(leaking)
    assert (proved.packing, refused.packing) == (PackingVerdict.PROVED, PackingVerdict.REFUSED)
    assert proved.distances.packed < 1e-5
    assert refused.distances.packed > 1000 * refused.distances.noise
    first_losses = [reports_of(reports, Stepped)[0].loss for reports in (honest, leaking)]
    assert first_losses[0] == pytest.approx(first_losses[1], abs=1e-4)


@pytest.fixture(scope="module")
def deep(inputs, tmp_path_factory) -> Inputs:
    base_dir = a_deep_model(inputs.base_dir, tmp_path_factory.mktemp("deep"), spread=3)
    return Inputs(base_dir, inputs.dataset_dir)


def a_deep_model(like: Path, directory: Path, spread: float) -> Path:
    """A random model of 32 layers whose logits are spread as far as those of trained ones are."""
    config = AutoConfig.from_pretrained(like, num_hidden_layers=32, initializer_range=0.06)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        logits = model(torch.randint(0, config.vocab_size, (1, 96))).logits
        model.lm_head.weight.mul_(spread / logits.std())
    model.save_pretrained(directory)
    return directory


def the_verdict(directory: Path, inputs: Inputs, precision: str) -> Preparation:
    order = an_order(inputs, a_recipe(precision=precision))
    work_dir = a_work_dir(directory, order)
    prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
    return preparation_of(reports_in(work_dir))


def preparation_of(reports: Sequence[Report]) -> Preparation:
    [done] = reports_of(reports, PreflightDone)
    return done.preparation


@pytest.mark.usefixtures("masked")
@pytest.mark.parametrize("spread", [1, 3, 6])
def test_rounding_of_a_deep_model_in_bfloat16_is_no_leak(inputs, tmp_path, spread):
    base_dir = a_deep_model(inputs.base_dir, tmp_path / "base", spread)
    verdict = the_verdict(tmp_path / "work", Inputs(base_dir, inputs.dataset_dir), "bfloat16")
    assert verdict.packing is PackingVerdict.PROVED
    assert verdict.distances.packed > 1e-3, "rounding that a limit for tiny models would not have borne"


@pytest.mark.parametrize("change", [with_cache, with_default_cache, with_mask])
def test_examples_that_are_computed_apart_see_no_other_whatever_becomes_of_the_mask(
    deep, tmp_path, spoil, change
):
    spoil(change)
    verdict = the_verdict(tmp_path / "work", deep, "bfloat16")
    assert (verdict.attention, verdict.packing) == (VARLEN, PackingVerdict.PROVED)
    assert verdict.distances.packed <= verdict.distances.noise + 1e-3 * verdict.distances.leak


@pytest.mark.usefixtures("masked")
@pytest.mark.parametrize("change", LEAKS)
def test_a_leak_of_a_deep_model_in_bfloat16_is_refused(deep, tmp_path, spoil, change):
    spoil(change)
    assert the_verdict(tmp_path / "work", deep, "bfloat16").packing is PackingVerdict.REFUSED


@pytest.mark.usefixtures("masked")
@pytest.mark.parametrize("layer", [0, 16, 31])
def test_a_leak_in_one_layer_of_32_is_refused(deep, tmp_path, monkeypatch, layer):
    """As where a family builds the mask of one kind of its layers in its own way."""
    attend = LlamaAttention.forward

    def leaking(attention, *args, **kwargs):
        # Without a mask the layer is causal over the whole row.
        mask = None if attention.layer_idx == layer else kwargs["attention_mask"]
        return attend(attention, *args, **kwargs | {"attention_mask": mask})

    monkeypatch.setattr(LlamaAttention, "forward", leaking)
    assert the_verdict(tmp_path / "work", deep, "bfloat16").packing is PackingVerdict.REFUSED


@pytest.mark.parametrize(
    ("packed", "noise", "leak"),
    [
        (0.09, 0.02, 3.0),  # more than rounding
        (0.05, 0.05, 0.4),  # too near to a leak
        (0.0, 0.0, None),
        (None, 1e-3, 3.0),
        (0.0, None, 3.0),
    ],
)
def test_what_is_not_surely_rounding_proves_nothing(packed, noise, leak):
    assert not proves(PackingDistances(packed=packed, noise=noise, leak=leak))


@pytest.mark.parametrize("rows", [1, 3])
def test_packed_losses_equal_those_of_each_example_alone(inputs, tmp_path, rows):
    order = an_order(inputs)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
    run.network.eval()
    windows = [run.dataset.training[index] for index in range(5, 5 + rows)]
    packed = Layout(packed=True, micro_batch_size=rows, max_seq_length=96)
    alone = Layout(packed=False, micro_batch_size=1, max_seq_length=1)
    with torch.no_grad():
        [micro_batch] = rows_of(windows, packed)
        losses = run.network(inputs_of(micro_batch, run.device))
        singles = {
            batch[0][0].id: run.network(inputs_of(batch, run.device)) for batch in rows_of(windows, alone)
        }
    expected = torch.cat([singles[example.id] for window in windows for example in window])
    assert (losses - expected).abs().max() < 1e-5


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_whose_loss_is_more_than_its_head_is_refused(
    inputs, tmp_path, monkeypatch, precision, packing
):
    """As where a family caps its logits and the loop does not know it."""
    honest = LlamaForCausalLM.forward

    def capped(model, *args, **kwargs):
        output = honest(model, *args, **kwargs)
        output.logits = 5.0 * torch.tanh(output.logits / 5.0)
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", capped)
    spread = Inputs(a_deep_model(inputs.base_dir, tmp_path / "base", spread=1), inputs.dataset_dir)
    reports = carry_out(tmp_path / "work", an_order(spread, a_recipe(precision=precision, packing=packing)))
    [ended] = reports_of(reports, Ended)
    assert ended.failure_class is FailureClass.USER
    assert "LlamaForCausalLM: loss of a single example differs by" in ended.message


def test_the_form_of_the_loss_is_looked_at_where_the_first_window_has_no_target(
    inputs, tmp_path, monkeypatch
):
    honest = TokenLosses.whole_logits_losses
    monkeypatch.setattr(TokenLosses, "whole_logits_losses", lambda net, tokens: honest(net, tokens) * 0.9)
    load = setup.load_dataset

    def without_targets_in_front(*args, **kwargs):
        dataset = load(*args, **kwargs)
        first, *others = dataset.training
        bare = tuple(replace(example, loss_mask=np.zeros_like(example.loss_mask)) for example in first)
        return replace(dataset, training=FixedWindows([bare, *others], dataset.training.largest_token))

    monkeypatch.setattr(setup, "load_dataset", without_targets_in_front)
    reports = carry_out(tmp_path / "work", an_order(inputs, a_recipe(packing=False)))
    [ended] = reports_of(reports, Ended)
    assert ended.failure_class is FailureClass.USER


class FixedWindows(list):
    def __init__(self, windows, largest_token):
        super().__init__(windows)
        self.largest_token = largest_token


@pytest.mark.parametrize("method", [Method.LORA, Method.SFT])
def test_losses_in_chunks_equal_losses_at_once(inputs, tmp_path, monkeypatch, method):
    """Values and gradients. Of a trained head a chunk's logits are computed again for the backward pass; of a frozen
    one its gradient is computed with them, and each loss may still count as much as it likes."""
    order = an_order(inputs, a_recipe(method=method))
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
    run.network.eval()
    batch = inputs_of((run.dataset.training[6],), run.device)
    results = []
    for logits_per_chunk in (2**26, 512 * 10):
        monkeypatch.setattr("services.trainer_agent.training.loss.LOGITS_PER_CHUNK", logits_per_chunk)
        losses = run.network(batch)
        (losses * torch.linspace(-1, 2, len(losses))).sum().backward()
        gradients = [parameter.grad.clone() for parameter in trainable(run.network).values()]
        run.sharding.drop_gradients()
        results.append((losses.detach(), gradients))
    (at_once, expected), (in_chunks, actual) = results
    assert torch.allclose(at_once, in_chunks, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(expected, actual, strict=True))


def test_the_logits_of_a_chunk_are_all_that_exist_at_a_time(inputs, tmp_path, monkeypatch):
    order = an_order(inputs)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
    monkeypatch.setattr("services.trainer_agent.training.loss.LOGITS_PER_CHUNK", 512 * 10)
    heights = []
    head = run.network.causal_lm.get_output_embeddings()
    head.register_forward_hook(lambda _module, _inputs, logits: heights.append(len(logits)))
    window = run.dataset.training[6]
    run.network(inputs_of((window,), run.device))
    assert sum(heights) == sum(len(example.targets) for example in window)
    assert max(heights) == 10
