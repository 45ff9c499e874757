"""What a run learns, and what its adapter or model is worth outside of it."""

import json
import math

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from schemas.base import DeviceKind
from schemas.specification import LoraSpec, Method
from schemas.training import PackingVerdict
from services.trainer_agent.protocol import (
    BundleKind,
    Ended,
    Outcome,
    PreflightDone,
    Saved,
    Started,
    Stepped,
)
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopRequest
from tests.training.jobs import (
    BASE_SHA,
    a_recipe,
    a_work_dir,
    an_order,
    carry_out,
    model_sha256,
    reports_of,
)

pytestmark = pytest.mark.any_device

SFT = a_recipe(method=Method.SFT, num_epochs=4)


@pytest.fixture(scope="module")
def lora_reports(inputs, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("lora") / "work", an_order(inputs))


@pytest.fixture(scope="module")
def sft_reports(inputs, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("sft") / "work", an_order(inputs, SFT))


class TestLora:
    def test_tells_the_whole_story_in_order(self, lora_reports, device):
        [started], [preflight] = reports_of(lora_reports, Started), reports_of(lora_reports, PreflightDone)
        [ended] = reports_of(lora_reports, Ended)
        assert [type(report) for report in lora_reports[:2]] == [Started, PreflightDone]
        preparation = preflight.preparation
        assert preparation.num_trainable < preparation.num_parameters
        if device is DeviceKind.CPU:
            expected = ("cpu", "float32", "varlen", None)
        else:
            whole = torch.cuda.mem_get_info()[1]
            expected = (torch.cuda.get_device_name(), "bfloat16", "varlen", whole)
        assert expected == (
            preparation.device,
            preparation.precision,
            preparation.attention,
            preparation.device_memory_bytes,
        )
        assert preparation.memory_bytes > 0
        assert [report.step for report in reports_of(lora_reports, Stepped)] == list(range(1, 15))
        assert (ended.outcome, ended.last_step, started.num_steps) == (Outcome.COMPLETED, 14, 14)
        assert lora_reports[-1] == ended

    def test_loss_goes_down(self, lora_reports):
        losses = [report.loss for report in reports_of(lora_reports, Stepped)]
        assert sum(losses[-3:]) < sum(losses[:3]) - 0.2

    def test_saves_periodically_and_at_the_end_with_validation_loss(self, lora_reports):
        saved = reports_of(lora_reports, Saved)
        assert [(s.step, s.bundle) for s in saved] == [
            *((step, BundleKind.PERIODIC) for step in (3, 6, 9, 12)),
            (14, BundleKind.FINAL),
        ]
        assert saved[-1].parts == saved[-1].all_parts
        assert saved[-1].metrics.full_valid_loss < saved[0].metrics.valid_loss
        *periodic, final = (each.metrics for each in saved)
        losses = [*(metrics.valid_loss for metrics in periodic), final.full_valid_loss]
        perplexities = [metrics.perplexity for metrics in (*periodic, final)]
        assert perplexities == pytest.approx([math.exp(loss) for loss in losses])

    def test_bundle_holds_safetensors_and_json_alone(self, lora_reports):
        saved = reports_of(lora_reports, Saved)[-1]
        assert {entry.path for entry in saved.all_parts} == {
            "model/adapter_model.safetensors",
            "model/adapter_config.json",
            "optimizer/rank-0.safetensors",
            "optimizer/rank-0.json",
            "rng/rank-0.safetensors",
            "state.json",
        }

    def test_the_adapter_names_its_base_by_sha(self, lora_reports):
        directory = reports_of(lora_reports, Saved)[-1].directory
        config = json.loads((directory / "model/adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == BASE_SHA
        assert config["inference_mode"] is True
        assert config["target_modules"] == sorted(config["target_modules"])

    def test_equal_orders_give_equal_bytes(self, inputs, lora_reports, tmp_path):
        again = carry_out(tmp_path / "work", an_order(inputs))
        finals = [reports_of(reports, Saved)[-1] for reports in (lora_reports, again)]
        files = [[entry for entry in s.parts if entry.path.startswith("model/")] for s in finals]
        assert files[0] == files[1]

    def test_gradient_checkpointing_changes_memory_but_not_the_result(self, inputs, lora_reports, tmp_path):
        recipe = a_recipe(gradient_checkpointing=True)
        reports = carry_out(tmp_path / "work", an_order(inputs, recipe))
        expected = [r.loss for r in reports_of(lora_reports, Stepped)]
        assert [r.loss for r in reports_of(reports, Stepped)] == pytest.approx(expected, abs=1e-5)


def test_an_adapter_loaded_by_peft_gives_the_loops_own_logits(inputs, tmp_path):
    recipe = a_recipe(lora=LoraSpec(rank=4), precision="float32")
    order = an_order(inputs, recipe)
    work_dir = a_work_dir(tmp_path / "loop", order)
    run, _ = prepare(order, work_dir, inputs.world, Reports(work_dir, inputs.world))
    while not run.is_complete:
        take_step(run, StopRequest(work_dir))
    saved = reports_of(carry_out(tmp_path / "work", order), Saved)[-1]

    base = AutoModelForCausalLM.from_pretrained(inputs.base_dir).to(run.device)
    tokens = torch.arange(40, device=run.device)[None]
    with torch.no_grad():
        untrained = base(tokens).logits
        served = PeftModel.from_pretrained(base, saved.directory / "model").eval()(tokens).logits
        trained = run.network.model.eval()(tokens).logits
    assert torch.equal(served, trained)
    assert (served - untrained).abs().max() > 0.1


class TestSft:
    def test_trains_all_weights_and_learns_more(self, sft_reports):
        [preflight] = reports_of(sft_reports, PreflightDone)
        losses = [report.loss for report in reports_of(sft_reports, Stepped)]
        assert preflight.preparation.num_trainable == preflight.preparation.num_parameters
        assert losses[-1] < losses[0] - 1.0

    def test_the_bundles_model_directory_can_be_served_as_it_is(self, inputs, sft_reports):
        saved = reports_of(sft_reports, Saved)[-1]
        directory = saved.directory / "model"
        weights = load_file(directory / "model.safetensors")
        model = AutoModelForCausalLM.from_pretrained(directory)
        assert torch.equal(model.lm_head.weight, weights["lm_head.weight"])
        assert not torch.equal(
            weights["lm_head.weight"], load_file(inputs.base_dir / "model.safetensors")["lm_head.weight"]
        )
        assert AutoTokenizer.from_pretrained(directory).chat_template
        assert model_sha256(saved)


class ByHand(torch.nn.Module):
    """A linear layer and its adapter, as the paper's formula has them."""

    def __init__(self, base, a, b, *, factor):
        super().__init__()
        self.base, self.factor = base.requires_grad_(requires_grad=False), factor
        self.a, self.b = (torch.nn.Parameter(each.detach().cpu().clone()) for each in (a, b))

    def forward(self, x):
        return self.base(x) + self.factor * (x @ self.a.T @ self.b.T)


def whole_model(run, model):
    """Of the model by hand, the weights that train, by the names that they have in a bundle."""
    return dict(model.named_parameters())


def with_adapters(run, model):
    """The same, once each layer that the run adapts is one by hand, with the run's own first weights."""
    model.requires_grad_(requires_grad=False)
    adapted = [
        (name, layer) for name, layer in run.network.causal_lm.named_modules() if hasattr(layer, "lora_A")
    ]
    assert len(adapted) == 2 * 7
    weights = {}
    for name, layer in adapted:
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        by_hand = ByHand(model.get_submodule(name), a, b, factor=2.0)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, by_hand)
        prefix = f"base_model.model.{name}"
        weights |= {f"{prefix}.lora_A.weight": by_hand.a, f"{prefix}.lora_B.weight": by_hand.b}
    return weights


@pytest.mark.parametrize(
    ("method", "trained_by_hand"), [(Method.SFT, whole_model), (Method.LORA, with_adapters)]
)
def test_steps_equal_those_of_a_loop_written_out_by_hand(inputs, tmp_path, method, trained_by_hand):
    """Each example alone, plain AdamW, the schedule as its definition has it."""
    changes = {"learning_rate": 1e-3, "warmup_ratio": 0.25, "max_grad_norm": 0.05, "precision": "float32"}
    recipe = a_recipe(method=method, lora=LoraSpec(rank=4), **changes)
    order = an_order(inputs, recipe)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, inputs.world, Reports(work_dir, inputs.world))
    model = AutoModelForCausalLM.from_pretrained(inputs.base_dir)
    trained = trained_by_hand(run, model)
    optimizer = torch.optim.AdamW(trained.values(), lr=1.0, weight_decay=0.0, foreach=False, fused=False)
    for step in range(6):
        rate = 1e-3 * (step + 1) / 4 if step < 4 else 5e-4 * (1 + math.cos(math.pi * (step - 4) / 10))
        examples = [example for window in run.next_plan().windows for example in window]
        count = sum(len(example.targets) for example in examples)
        total = 0.0
        for example in examples:
            tokens = torch.from_numpy(example.tokens).long()[None]
            labels = torch.where(torch.from_numpy(example.loss_mask)[None] == 1, tokens, -100)
            loss = model(tokens, labels=labels).loss * len(example.targets) / count
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), 0.05)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        stepped = take_step(run, StopRequest(work_dir))
        assert stepped.loss == pytest.approx(total, abs=1e-5)
        assert stepped.grad_norm == pytest.approx(norm.item(), rel=1e-3)
        assert stepped.grad_norm > 0.05
        assert stepped.learning_rate == pytest.approx(rate)
    weights = dict(run.sharding.whole_weights())
    assert weights.keys() == trained.keys()
    for name, parameter in trained.items():
        torch.testing.assert_close(weights[name].cpu(), parameter, atol=2e-5, rtol=0, msg=name)


class TestLayouts:
    def test_an_unpacked_run_takes_the_same_steps_with_the_same_losses(self, inputs, lora_reports, tmp_path):
        """Dropout is off, so that only the layout differs."""
        runs = []
        for packing in (True, False):
            recipe = a_recipe(packing=packing, lora=LoraSpec(rank=4), precision="float32")
            reports = carry_out(tmp_path / f"packing-{packing}", an_order(inputs, recipe))
            [verdict] = reports_of(reports, PreflightDone)
            assert verdict.preparation.packing is (PackingVerdict.PROVED if packing else PackingVerdict.OFF)
            runs.append([report.loss for report in reports_of(reports, Stepped)])
        assert runs[0] == pytest.approx(runs[1], abs=1e-4)

    def test_micro_batches_add_up_to_the_batch(self, inputs, tmp_path):
        runs = []
        for size in (1, 4):
            recipe = a_recipe(micro_batch_size=size, lora=LoraSpec(rank=4), precision="float32")
            reports = carry_out(tmp_path / f"micro-{size}", an_order(inputs, recipe))
            runs.append([report.loss for report in reports_of(reports, Stepped)])
        assert runs[0] == pytest.approx(runs[1], abs=1e-4)

    def test_bfloat16_stays_near_float32(self, inputs, tmp_path):
        runs = []
        for precision in ("float32", "bfloat16"):
            reports = carry_out(tmp_path / precision, an_order(inputs, a_recipe(precision=precision)))
            [verdict] = reports_of(reports, PreflightDone)
            assert verdict.preparation.packing is PackingVerdict.PROVED
            runs.append([report.loss for report in reports_of(reports, Stepped)])
        assert runs[1] == pytest.approx(runs[0], abs=0.05)
