"""The pre-flight must notice every known way in which packed examples come to see each other."""

import pytest
import torch

from schemas.base import FailureClass
from services.trainer_agent.protocol import Ended, PackingVerdict, PreflightDone, Stepped
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.plan import Layout, rows_of
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.tensors import inputs_of
from tests.training.jobs import ONE_PROCESS, a_recipe, a_work_dir, an_order, carry_out, reports_of


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


@pytest.mark.parametrize("change", [with_cache, with_default_cache, with_mask, without_positions])
def test_a_leak_between_packed_examples_is_refused_and_the_run_goes_on_unpacked(
    inputs, tmp_path, spoil, change
):
    order = an_order(inputs, a_recipe(num_epochs=1))
    honest = carry_out(tmp_path / "honest", order)
    spoil(change)
    leaking = carry_out(tmp_path / "leaking", order)
    [proved], [refused] = reports_of(honest, PreflightDone), reports_of(leaking, PreflightDone)
    assert (proved.packing, refused.packing) == (PackingVerdict.PROVED, PackingVerdict.REFUSED)
    assert proved.max_loss_difference < 1e-5
    assert refused.max_loss_difference > 100 * refused.tolerance
    first_losses = [reports_of(reports, Stepped)[0].loss for reports in (honest, leaking)]
    assert first_losses[0] == pytest.approx(first_losses[1], abs=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_packed_losses_equal_those_of_each_example_alone(inputs, tmp_path, rows):
    order = an_order(inputs)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
    run.network.eval()
    windows = [run.dataset.training[index] for index in range(5, 5 + rows)]
    packed = Layout(packed=True, micro_batch_size=rows, window_tokens=96)
    alone = Layout(packed=False, micro_batch_size=1, window_tokens=1)
    with torch.no_grad():
        [micro_batch] = rows_of(windows, packed)
        found = run.network(inputs_of(micro_batch, run.device))
        singles = {
            batch[0][0].id: run.network(inputs_of(batch, run.device)) for batch in rows_of(windows, alone)
        }
    expected = torch.cat([singles[example.id] for window in windows for example in window])
    assert (found - expected).abs().max() < 1e-5


def test_a_model_whose_loss_is_more_than_its_head_is_refused_also_without_packing(
    inputs, tmp_path, monkeypatch
):
    """As where a family caps or scales its logits."""
    honest = TokenLosses.whole_logits_losses
    monkeypatch.setattr(TokenLosses, "whole_logits_losses", lambda net, tokens: honest(net, tokens) * 0.9)
    reports = carry_out(tmp_path / "work", an_order(inputs, a_recipe(packing=False)))
    [ended] = reports_of(reports, Ended)
    assert ended.failure_class is FailureClass.USER
    assert "LlamaForCausalLM" in ended.message


def test_losses_in_chunks_equal_losses_at_once(inputs, tmp_path, monkeypatch):
    """Values and gradients: a chunk's logits are computed again for the backward pass."""
    order = an_order(inputs)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
    run.network.eval()
    batch = inputs_of((run.dataset.training[6],), run.device)
    results = []
    for logits_per_chunk in (2**26, 512 * 10):
        monkeypatch.setattr("services.trainer_agent.training.loss.LOGITS_PER_CHUNK", logits_per_chunk)
        losses = run.network(batch)
        losses.sum().backward()
        gradients = [parameter.grad.clone() for parameter in run.parameters.values()]
        run.optimizer.zero_grad()
        results.append((losses.detach(), gradients))
    (at_once, expected), (in_chunks, found) = results
    assert torch.allclose(at_once, in_chunks, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(expected, found, strict=True))


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
