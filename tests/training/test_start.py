"""A job that starts from what another one trained: the same weights to the last bit, and nothing else of it."""

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from schemas.base import FailureClass
from schemas.specification import LoraSpec, Method
from services.trainer_agent.protocol import Ended, Outcome, ResumeChecked, Saved, Started, Stepped
from services.trainer_agent.training.device import on_ordered_device
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopRequest
from tests.training.jobs import (
    ONE_PROCESS,
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    carry_out,
    model_sha256,
    reports_of,
)

pytestmark = pytest.mark.any_device

FIRST = a_recipe(num_epochs=1)
SECOND = a_recipe(num_epochs=1, seed=7, learning_rate=2e-3)
FULL = a_recipe(method=Method.SFT, lora=LoraSpec(), num_epochs=1, learning_rate=1e-3)


def trained(directory, inputs, recipe):
    """The folder of the model that a run of the recipe ends with."""
    last = reports_of(carry_out(directory, an_order(inputs, recipe)), Saved)[-1]
    return last.directory / "model"


@pytest.fixture(scope="module")
def adapter_dir(inputs, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("first") / "work", inputs, FIRST)


def prepared(directory, order):
    work_dir = a_work_dir(directory, order)
    world = on_ordered_device(ONE_PROCESS, order.device)
    run, _ = prepare(order, work_dir, world, Reports(work_dir, world))
    return run, StopRequest(work_dir)


def test_the_first_loss_is_that_of_the_adapter_on_the_same_batch(inputs, adapter_dir, tmp_path):
    """By hand: PEFT loads the adapter on its base, and each example is alone in front of the model."""
    recipe = SECOND.model_copy(update={"lora": LoraSpec(rank=4), "precision": "float32"})
    run, stop = prepared(tmp_path / "work", an_order(inputs, recipe, start_dir=adapter_dir))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(inputs.base_dir), adapter_dir)
    assert run.step == 0
    assert not any(moment.any() for held in run.sharding.held() for moment in held.moments.values())
    expected = loss_of(model, run.next_plan())
    assert take_step(run, stop).loss == pytest.approx(expected, abs=1e-5)


def loss_of(model, plan):
    losses = []
    with torch.no_grad():
        for example in (example for window in plan.windows for example in window):
            tokens = torch.from_numpy(example.tokens).long()
            log_probs = torch.log_softmax(model(tokens[None]).logits[0].float(), dim=-1)
            losses += [-log_probs[index - 1, tokens[index]] for index in example.targets]
    return torch.stack(losses).mean().item()


def test_answers_are_learned_by_what_texts_taught_all_weights(inputs, texts, tmp_path):
    """The stages `cpt` then `sft`."""
    recipe = a_recipe(method=Method.CPT, weights="full", num_epochs=1, learning_rate=1e-3)
    start_dir = trained(tmp_path / "texts", texts, recipe)
    recipe = FULL.model_copy(update={"precision": "float32"})
    run, stop = prepared(tmp_path / "work", an_order(inputs, recipe, start_dir=start_dir))
    plan = run.next_plan()
    taught, base = (
        loss_of(AutoModelForCausalLM.from_pretrained(directory), plan)
        for directory in (start_dir, inputs.base_dir)
    )
    assert take_step(run, stop).loss == pytest.approx(taught, abs=1e-5)
    assert taught < base - 0.1


@pytest.mark.parametrize("recipe", [SECOND, FULL], ids=["adapter", "full"])
def test_the_weights_are_those_of_the_files(recipe, inputs, adapter_dir, tmp_path):
    start_dir = adapter_dir if recipe is SECOND else trained(tmp_path / "first", inputs, FULL)
    run, _ = prepared(tmp_path / "work", an_order(inputs, recipe, start_dir=start_dir))
    [path] = start_dir.glob("*.safetensors")
    written = load_file(path)
    weights = dict(run.sharding.whole_weights())
    assert run.trained.keys() == weights.keys() <= written.keys()
    assert all(torch.equal(weight.cpu(), written[name]) for name, weight in weights.items())


def test_an_interrupted_run_continues_from_its_own_bundle(inputs, adapter_dir, tmp_path):
    order = an_order(inputs, SECOND, start_dir=adapter_dir)
    whole = carry_out(tmp_path / "whole", order)
    at_3 = next(saved for saved in reports_of(whole, Saved) if saved.step == 3)
    bundle = as_bundle(order, at_3, tmp_path / "bundle")
    resumed = carry_out(tmp_path / "resumed", an_order(inputs, SECOND, attempt=2, resume_dir=bundle))
    [started], [checked] = reports_of(resumed, Started), reports_of(resumed, ResumeChecked)
    assert (started.start_step, checked.certificate.exact) == (3, True), checked.certificate.reason
    tail = [step.loss for step in reports_of(whole, Stepped)][3:]
    assert [step.loss for step in reports_of(resumed, Stepped)] == tail
    assert model_sha256(reports_of(resumed, Saved)[-1]) == model_sha256(reports_of(whole, Saved)[-1])


def test_a_second_stage_trains_what_a_job_of_its_own_does(inputs, adapter_dir, tmp_path):
    """Its order differs in names alone: of the job, of its attempt, and of what it starts from."""
    job = an_order(inputs, SECOND, start_dir=adapter_dir, started_from="1d" * 32)
    names = {"job_id": "job-2", "attempt": 2, "config_hash": "2e" * 32, "started_from": "3f" * 32}
    ends = [
        reports_of(carry_out(tmp_path / each.job_id, each), Saved)[-1]
        for each in (job, job.model_copy(update=names))
    ]
    assert model_sha256(ends[0]) == model_sha256(ends[1])
    assert ends[0].step == ends[1].step


def test_an_adapter_of_another_rank_is_refused_by_the_name_of_a_tensor(inputs, adapter_dir, tmp_path):
    recipe = SECOND.model_copy(update={"lora": LoraSpec(rank=8)})
    [ended] = reports_of(carry_out(tmp_path / "work", an_order(inputs, recipe, start_dir=adapter_dir)), Ended)
    assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.INTERNAL)
    assert "lora_A.weight of shape (4, " in ended.message
    assert "the recipe's has (8, " in ended.message
