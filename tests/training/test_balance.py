"""The loss that keeps experts in even use: transformers' own of the family, by the formula written out here."""

import sys
from functools import cache

import pytest
import torch

from bench.training.families import build, recipe_of
from schemas.specification import Method
from services.trainer_agent.training.attention import borders_of
from services.trainer_agent.training.plan import Layout, examples_of, rows_of
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopRequest
from services.trainer_agent.training.tensors import inputs_of
from tests.training.jobs import ONE_PROCESS, a_work_dir, an_order

# PEFT looks for the base by the sha that an adapter names it by.
pytestmark = pytest.mark.filterwarnings("ignore:Could not find a config file")

WITH_EXPERTS = ("Mixtral", "Qwen 3 MoE", "gpt-oss")
EXACT = {"atol": 1e-6, "rtol": 1e-6}
FULL = recipe_of(Method.SFT).model_copy(
    update={"precision": "float32", "micro_batch_size": 1, "batch_size": 3, "max_grad_norm": 1e6}
)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    @cache
    def run(family: str, recipe=FULL):
        directory = tmp_path_factory.mktemp("run")
        order = an_order(build(family, directory / "base").inputs, recipe)
        work_dir = a_work_dir(directory / "work", order)
        prepared, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
        return prepared

    return run


def router_logits(run, micro_batch):
    """Of each layer, of real tokens alone; and all of them with what is real."""
    batch = inputs_of(micro_batch, run.device)
    logits = run.network.causal_lm.base_model(
        input_ids=batch.tokens_BT,
        position_ids=batch.positions_BT,
        use_cache=False,
        output_router_logits=True,
        **borders_of(batch),
    ).router_logits
    lengths = [sum(len(example.tokens) for example in row) for row in micro_batch]
    real = torch.arange(batch.tokens_BT.shape[1]) < torch.tensor(lengths)[:, None]
    return logits, real


def by_hand(run, micro_batch) -> torch.Tensor:
    """Experts times the sum over experts of the share of choices times the mean probability, of all layers."""
    logits, real = router_logits(run, micro_batch)
    config = run.network.causal_lm.config
    probabilities = torch.cat([each[real.flatten()].float().softmax(-1) for each in logits])
    chosen = probabilities.topk(config.num_experts_per_tok).indices
    choices = torch.stack([(chosen == expert).any(-1) for expert in range(probabilities.shape[1])], -1)
    return probabilities.shape[1] * (choices.float().mean(0) * probabilities.mean(0)).sum()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_it_is_the_familys_own_over_all_tokens_but_padding(run_of, family, packed):
    run = run_of(family)
    windows = tuple(run.dataset.training[index] for index in (0, 1, 2))
    micro_batch = rows_of(windows, Layout(packed, 3, run.dataset.manifest.max_seq_length))[0]
    if packed:
        # A window is full; its last example is left out of one of them, so that there is padding.
        micro_batch = (micro_batch[0][:-1], *micro_batch[1:])
    assert len({sum(len(example.tokens) for example in row) for row in micro_batch}) > 1
    run.network(inputs_of(micro_batch, run.device))
    actual = run.network.take_router_loss()
    assert run.network.take_router_loss() is None
    torch.testing.assert_close(actual, by_hand(run, micro_batch), **EXACT)
    logits, real = router_logits(run, micro_batch)
    causal_lm = run.network.causal_lm
    function = sys.modules[type(causal_lm).__module__].load_balancing_loss_func
    own = function(logits, causal_lm.num_experts, causal_lm.num_experts_per_tok, real)
    torch.testing.assert_close(actual, own, **EXACT)


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_it_is_what_the_familys_own_forward_pass_adds(run_of, family):
    run = run_of(family)
    micro_batch = ((run.dataset.training[0][0],),)
    batch = inputs_of(micro_batch, run.device)
    run.network(batch)
    output = run.network.causal_lm(input_ids=batch.tokens_BT, use_cache=False, output_router_logits=True)
    torch.testing.assert_close(run.network.take_router_loss(), output.aux_loss, **EXACT)


def test_a_step_minimises_its_mean_over_micro_batches_by_their_tokens_and_shows_it_apart(run_of):
    run = run_of("Mixtral")
    plan = run.next_plan()
    share = run.share_of(plan)
    sizes = [sum(len(example.tokens) for example in examples_of(micro_batch)) for micro_batch in share]
    assert len(share) == 3
    means = [by_hand(run, each) * size / sum(sizes) for each, size in zip(share, sizes, strict=True)]
    losses = torch.cat([run.objective.terms(run.network, each, run.device).losses for each in share])
    router = next(p for name, p in run.network.named_parameters() if name.endswith("mlp.gate.weight"))
    total = losses.mean() + run.network.causal_lm.config.router_aux_loss_coef * sum(means)
    expected, *_ = torch.autograd.grad(total, router)
    gradients = []
    handle = router.register_post_accumulate_grad_hook(lambda each: gradients.append(each.grad.clone()))
    stepped = take_step(run, StopRequest(run.work_dir))
    handle.remove()
    assert stepped.loss == pytest.approx(losses.mean().item(), abs=1e-6)
    assert stepped.router_loss == pytest.approx(sum(means).item(), abs=1e-6)
    torch.testing.assert_close(gradients[-1], expected, atol=1e-7, rtol=1e-4)


def test_recomputation_changes_no_bit_of_it(run_of):
    runs = [
        run_of("Qwen 3 MoE", FULL.model_copy(update={"gradient_checkpointing": value}))
        for value in (False, True)
    ]
    kept, again = (take_step(run, StopRequest(run.work_dir)) for run in runs)
    assert (again.loss, again.router_loss, again.grad_norm) == (kept.loss, kept.router_loss, kept.grad_norm)


def test_beside_an_adapter_and_without_experts_there_is_none(run_of):
    run = run_of("Mixtral", recipe_of(Method.LORA))
    assert take_step(run, StopRequest(run.work_dir)).router_loss is None
    assert run_of("Llama").network.balance is None
