"""Preference optimisation: losses and rewards as trl has them and as they are written out by hand, and whole runs."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from schemas.base import FailureClass
from schemas.layout import REFERENCE
from schemas.specification import DpoSpec, LoraSpec, Method
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
from services.trainer_agent.training.child import run_child
from services.trainer_agent.training.methods import OBJECTIVES
from services.trainer_agent.training.methods.preference import NUMBERS
from services.trainer_agent.training.plan import examples_of
from services.trainer_agent.training.reference import read_reference
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import compare, prepare
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
    reports_in,
    reports_of,
)
from tests.training.ranks import run_gang

ADAPTER = a_recipe(method=Method.DPO, num_epochs=2)
FULL = a_recipe(
    method=Method.DPO,
    weights="full",
    lora=LoraSpec(),
    learning_rate=1e-3,
    num_epochs=1,
    precision="float32",
)


def prepared(directory, inputs, recipe, **changes):
    order = an_order(inputs, recipe, **changes)
    work_dir = a_work_dir(directory, order)
    run, bundle = prepare(order, work_dir, inputs.world, Reports(work_dir, inputs.world))
    stop = StopRequest(work_dir)
    compare(run, bundle, stop)
    return run, stop


def with_dpo(recipe=FULL, **dpo):
    return recipe.model_copy(update={"dpo": DpoSpec(**dpo)})


def log_probabilities(model, examples):
    """By hand: each example alone in front of the model, the log-probabilities of its targets added up."""
    sums = []
    for example in examples:
        tokens = torch.from_numpy(example.tokens).long()
        log_probs = torch.log_softmax(model(tokens[None]).logits[0].float(), dim=-1)
        sums.append(sum(log_probs[index - 1, tokens[index]] for index in example.targets.tolist()))
    return torch.stack(sums)


def terms_by_hand(dpo, policy, reference, lengths):
    """Losses, rewards of the chosen and of the rejected answers. Shapes (pairs,)."""
    values = policy if dpo.loss == "simpo" else policy - reference
    if dpo.loss != "dpo":
        values = values / lengths
    chosen, rejected = dpo.beta_value * values[0::2], dpo.beta_value * values[1::2]
    compared = chosen - rejected - (dpo.target_margin if dpo.loss == "simpo" else 0)
    losses = (1 - dpo.label_smoothing) * torch.log1p(
        torch.exp(-compared)
    ) + dpo.label_smoothing * torch.log1p(torch.exp(compared))
    return losses, chosen, rejected


@pytest.mark.any_device
@pytest.mark.parametrize(
    "dpo",
    [
        {},
        {"beta": 0.5, "label_smoothing": 0.2},
        {"loss": "length_normalised"},
        {"loss": "simpo"},
        {"loss": "simpo", "beta": 3.0, "gamma": 0.4, "label_smoothing": 0.1},
    ],
    ids=str,
)
def test_steps_equal_those_written_out_by_hand(preferences, tmp_path, dpo):
    run, stop = prepared(tmp_path / "work", preferences, with_dpo(**dpo))
    spec = run.order.recipe.dpo
    base, model = (AutoModelForCausalLM.from_pretrained(preferences.base_dir) for _ in range(2))
    for _ in range(2):
        examples = [example for window in run.next_plan().windows for example in window]
        lengths = torch.tensor([len(example.targets) for example in examples])
        with torch.no_grad():
            reference = log_probabilities(base, examples)
        losses, chosen, rejected = terms_by_hand(spec, log_probabilities(model, examples), reference, lengths)
        model.zero_grad()
        losses.mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        stepped = take_step(run, stop)
        assert stepped.loss == pytest.approx(losses.mean().item(), abs=1e-5)
        assert stepped.grad_norm == pytest.approx(norm.item(), rel=1e-3)
        assert stepped.chosen_reward == pytest.approx(chosen.mean().item(), abs=1e-5)
        assert stepped.rejected_reward == pytest.approx(rejected.mean().item(), abs=1e-5)
        assert stepped.reward_margin == pytest.approx((chosen - rejected).mean().item(), abs=1e-5)
        if stepped.step == 2:  # before, rounding alone decides between equal rewards
            accuracy = (chosen > rejected).double().mean().item()
            assert stepped.reward_accuracy == pytest.approx(accuracy)
        model.load_state_dict(run.network.model.state_dict())


@pytest.fixture(scope="module")
def trained(preferences, tmp_path_factory):
    """A run whose weights are no longer those of the base model."""
    run, stop = prepared(tmp_path_factory.mktemp("trl") / "work", preferences, FULL)
    take_step(run, stop)
    take_step(run, stop)
    return run


class TestAgainstTrl:
    def ours(self, run, **dpo):
        recipe = with_dpo(**dpo)
        micro_batch = run.share_of(run.next_plan())[0]
        with torch.no_grad():
            terms = OBJECTIVES[Method.DPO](recipe).terms(run.network, micro_batch, run.device)
        return examples_of(micro_batch), terms

    def batch(self, tokenizer, examples):
        from trl.trainer.dpo_trainer import DataCollatorForPreference

        def parts(example):
            prompt = int(example.targets[0])
            tokens = example.tokens.tolist()
            return tokens[:prompt], tokens[prompt:]

        rows = []
        for chosen, rejected in zip(examples[0::2], examples[1::2], strict=True):
            (prompt, preferred), (_, other) = parts(chosen), parts(rejected)
            rows.append({"prompt_ids": prompt, "chosen_ids": preferred, "rejected_ids": other})
        return DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id or 0)(rows)

    @pytest.mark.parametrize("loss_type", ["sigmoid", "sigmoid_norm"])
    def test_losses_rewards_margins_and_accuracies_are_those_of_its_trainer(
        self, trained, preferences, tmp_path, loss_type
    ):
        """Without label smoothing, which TRL's trainer ignores with these losses."""
        from datasets import Dataset
        from trl import DPOConfig, DPOTrainer

        tokenizer = AutoTokenizer.from_pretrained(preferences.base_dir)
        ours = {"loss": "dpo" if loss_type == "sigmoid" else "length_normalised", "beta": 0.7}
        examples, terms = self.ours(trained, **ours)
        model = AutoModelForCausalLM.from_pretrained(preferences.base_dir)
        model.load_state_dict(trained.network.model.state_dict())
        trainer = DPOTrainer(
            model,
            ref_model=AutoModelForCausalLM.from_pretrained(preferences.base_dir),
            args=DPOConfig(
                output_dir=str(tmp_path),
                use_cpu=True,
                beta=0.7,
                loss_type=loss_type,
                report_to="none",
                bf16=False,
            ),
            train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),
            processing_class=tokenizer,
        )
        with torch.no_grad():
            loss = trainer._compute_loss(trainer.model, self.batch(tokenizer, examples), False)
        assert terms.losses.mean().item() == pytest.approx(loss.item(), abs=1e-5)
        theirs = {name: values[-1] for name, values in trainer._metrics["eval"].items()}
        if loss_type == "sigmoid":  # of the other loss, its rewards are not what it compares
            for name, key in zip(NUMBERS, ("chosen", "rejected", "margins", "accuracies"), strict=True):
                assert terms.numbers[name].mean().item() == pytest.approx(theirs[f"rewards/{key}"], abs=1e-5)

    def test_simpo_is_that_of_its_trainer_of_cpo(self, trained):
        from types import SimpleNamespace

        from trl.experimental.cpo import CPOTrainer

        examples, terms = self.ours(trained, loss="simpo", beta=1.5, gamma=0.6, label_smoothing=0.1)
        with torch.no_grad():
            sums = log_probabilities(trained.network.model, examples)
        means = sums / torch.tensor([len(example.targets) for example in examples])
        settings = SimpleNamespace(
            beta=1.5,
            simpo_gamma=0.6,
            label_smoothing=0.1,
            loss_type="simpo",
            alpha=0.0,
            accelerator=SimpleNamespace(device="cpu"),
        )
        losses, chosen, rejected = CPOTrainer.cpo_loss(settings, means[0::2], means[1::2])
        torch.testing.assert_close(terms.losses, losses, atol=1e-5, rtol=0)
        torch.testing.assert_close(terms.numbers["chosen_reward"], chosen, atol=1e-5, rtol=0)
        torch.testing.assert_close(terms.numbers["rejected_reward"], rejected, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def whole(preferences, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("dpo") / "work", an_order(preferences, ADAPTER))


def the_reference(reports):
    [computed] = reports_of(reports, ReferenceComputed)
    return computed


def resumed(directory, preferences, recipe, reports, **changes):
    """From the first bundle on. Its reports, and the bundle's step."""
    first = reports_of(reports, Saved)[0]
    bundle = as_bundle(an_order(preferences, recipe), first, directory / "bundle")
    order = an_order(preferences, recipe, attempt=2, resume_dir=bundle, **changes)
    return carry_out(directory / "work", order), first.step


def losses_of(reports):
    return [step.loss for step in reports_of(reports, Stepped)]


@pytest.mark.any_device
class TestRun:
    def test_learns_what_is_preferred_and_tells_it(self, whole):
        [ended], [preflight] = reports_of(whole, Ended), reports_of(whole, PreflightDone)
        assert (ended.outcome, preflight.preparation.packing) == (Outcome.COMPLETED, PackingVerdict.PROVED)
        steps = reports_of(whole, Stepped)
        # The model is its base before the first step, but for dropout.
        assert steps[0].loss == pytest.approx(math.log(2), abs=0.01)
        assert steps[0].chosen_reward == pytest.approx(0, abs=0.02)
        assert steps[-1].reward_margin > steps[0].reward_margin + 0.02
        assert steps[-1].reward_accuracy > 0.9
        assert all(
            step.reward_margin == pytest.approx(step.chosen_reward - step.rejected_reward) for step in steps
        )
        metrics = reports_of(whole, Saved)[-1].metrics
        assert metrics.full_valid_loss < math.log(2)
        assert metrics.perplexity is None
        assert metrics.reward_margin > 0
        assert metrics.reward_accuracy * 9 == pytest.approx(round(metrics.reward_accuracy * 9))

    def test_continues_to_the_same_bytes_with_the_reference_that_was_stored(
        self, preferences, whole, tmp_path
    ):
        reference = the_reference(whole).path
        reports, step = resumed(tmp_path, preferences, ADAPTER, whole, reference=reference)
        [checked] = reports_of(reports, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert losses_of(reports) == losses_of(whole)[step:]
        assert model_sha256(reports_of(reports, Saved)[-1]) == model_sha256(reports_of(whole, Saved)[-1])
        assert not reports_of(reports, ReferenceComputed)

    def test_examples_side_by_side_learn_as_those_that_share_windows(self, preferences, tmp_path):
        packed, alone = (
            losses_of(
                carry_out(
                    tmp_path / str(packing),
                    an_order(preferences, FULL.model_copy(update={"packing": packing})),
                )
            )
            for packing in (True, False)
        )
        assert packed == pytest.approx(alone, abs=1e-4)


def test_two_processes_learn_as_one_does(preferences, tmp_path):
    recipe = ADAPTER.model_copy(update={"lora": LoraSpec(rank=4), "num_epochs": 1})
    alone = carry_out(tmp_path / "alone", an_order(preferences, recipe))
    gang = run_gang(tmp_path / "gang", an_order(preferences, recipe, devices_per_node=2))
    for one, other in zip(reports_of(alone, Stepped), reports_of(gang, Stepped), strict=True):
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
        for name in ("loss", "chosen_reward", "rejected_reward", "reward_margin"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-4)
    references = [load_file(the_reference(reports).path) for reports in (alone, gang)]
    for name in ("training", "validation"):
        np.testing.assert_allclose(references[1][name], references[0][name], atol=1e-4)


class TestReference:
    def test_is_what_the_base_model_says_of_each_answer(self, preferences, whole):
        computed = the_reference(whole)
        references = load_file(computed.path)
        base = AutoModelForCausalLM.from_pretrained(preferences.base_dir)
        run_examples = [load_file(path) for path in sorted((preferences.dataset_dir / "parts").iterdir())]
        lengths = {len(part["example_lines"]) for part in run_examples}
        assert {len(array) for array in references.values()} == lengths
        for part in run_examples:
            [array] = [array for array in references.values() if len(array) == len(part["example_lines"])]
            offsets = part["example_offsets"]
            for index in range(0, len(array), 7):
                tokens = torch.from_numpy(part["tokens"][offsets[index] : offsets[index + 1]]).long()
                mask = part["loss_mask"][offsets[index] : offsets[index + 1]]
                with torch.no_grad():
                    log_probs = torch.log_softmax(base(tokens[None]).logits[0], dim=-1)
                expected = sum(log_probs[i - 1, tokens[i]] for i in np.flatnonzero(mask[1:]) + 1)
                assert array[index] == pytest.approx(expected.item(), abs=1e-4)

    @pytest.mark.any_device
    @pytest.mark.parametrize(
        "recipe", [FULL.model_copy(update={"num_epochs": 2}), ADAPTER], ids=["full", "adapter"]
    )
    def test_is_never_that_of_trained_weights(self, preferences, tmp_path, recipe):
        """After a resume the weights at hand are trained. Without the file the adapter is switched off, or the base
        model is loaded again."""
        reports = carry_out(tmp_path / "whole", an_order(preferences, recipe))
        again, step = resumed(tmp_path / "again", preferences, recipe, reports)
        assert the_reference(again).sha256 == the_reference(reports).sha256
        [checked] = reports_of(again, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert losses_of(again) == losses_of(reports)[step:]
        assert model_sha256(reports_of(again, Saved)[-1]) == model_sha256(reports_of(reports, Saved)[-1])

    @pytest.mark.any_device
    def test_is_that_of_what_the_job_starts_from(self, preferences, whole, tmp_path):
        """Also after a resume, when the adapter at hand is another one."""
        start = {"start_dir": reports_of(whole, Saved)[-1].directory / "model", "started_from": "a" * 64}
        reports = carry_out(tmp_path / "whole", an_order(preferences, ADAPTER, **start))
        assert reports_of(reports, Stepped)[0].loss == pytest.approx(math.log(2), abs=0.02)
        assert the_reference(reports).sha256 != the_reference(whole).sha256
        again, step = resumed(tmp_path / "again", preferences, ADAPTER, reports, **start)
        assert the_reference(again).sha256 == the_reference(reports).sha256
        assert losses_of(again) == losses_of(reports)[step:]
        assert model_sha256(reports_of(again, Saved)[-1]) == model_sha256(reports_of(reports, Saved)[-1])
        without = start | {"start_dir": None}
        [ended] = reports_of(resumed(tmp_path / "no", preferences, ADAPTER, reports, **without)[0], Ended)
        assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.INFRA)

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            ({"array": np.zeros(3, np.float32)}, "expected 126 finite numbers of float32"),
            ({"array": np.full(126, np.nan, np.float32)}, "expected 126 finite numbers of float32"),
            ({"identity": {"precision": "bfloat16"}}, "it is of"),
            ({"bytes": b"nothing"}, "it cannot be read"),
        ],
        ids=["length", "not a number", "identity", "bytes"],
    )
    def test_that_does_not_fit_is_computed_again(self, preferences, whole, tmp_path, caplog, damage, words):
        path = the_reference(whole).path
        bad = tmp_path / REFERENCE
        identity = json.loads(the_reference(whole).identity.model_dump_json()) | damage.get("identity", {})
        arrays = load_file(path)
        if "array" in damage:
            arrays["training"] = damage["array"]
        save_file(arrays, bad, metadata={"identity": json.dumps(identity, sort_keys=True)})
        if "bytes" in damage:
            bad.write_bytes(damage["bytes"])
        recipe = ADAPTER.model_copy(update={"num_epochs": 1})
        run, _ = prepared(tmp_path / "work", preferences, recipe, reference=bad)
        assert words in caplog.text
        assert run.dataset.training.reference.tolist() == load_file(path)["training"].tolist()

    def test_that_was_stored_before_bases_were_quantised_is_read(self, whole, tmp_path):
        computed = the_reference(whole)
        identity = computed.identity.model_dump(mode="json", exclude={"quantized_sha256"})
        older, arrays = tmp_path / REFERENCE, load_file(computed.path)
        save_file(arrays, older, metadata={"identity": json.dumps(identity, sort_keys=True)})
        lengths = {name: len(array) for name, array in arrays.items()}
        read = read_reference(older, computed.identity, lengths)
        assert read["training"].tolist() == arrays["training"].tolist()

    def test_is_not_computed_where_nothing_is_compared_with_it(self, preferences, tmp_path):
        run, stop = prepared(tmp_path / "work", preferences, with_dpo(ADAPTER, loss="simpo"))
        assert run.dataset.training.reference is None
        assert math.isfinite(take_step(run, stop).loss)

    def test_is_left_where_a_stop_is_asked_for_meanwhile(self, preferences, tmp_path):
        order = an_order(preferences, ADAPTER)
        work_dir = a_work_dir(tmp_path / "work", order)
        (work_dir / "stop").write_text("preempt")
        run_child(work_dir, ONE_PROCESS, StopRequest(work_dir))
        reports = reports_in(work_dir)
        [ended] = reports_of(reports, Ended)
        assert (ended.outcome, ended.last_step) == (Outcome.STOPPED, 0)
        assert not reports_of(reports, ReferenceComputed)


def test_rows_without_pairs_are_refused_by_name(inputs, tmp_path):
    [ended] = reports_of(carry_out(tmp_path / "work", an_order(inputs, ADAPTER)), Ended)
    assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.USER)
    assert "it has chat rows, method dpo trains on preference rows" in ended.message
