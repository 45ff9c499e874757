"""Continued pre-training: its loss as it is written out by hand, and a run of it from its start to its end."""

import json
import math
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from schemas.base import FailureClass
from schemas.specification import LoraSpec, Method
from services.trainer_agent.protocol import Ended, Outcome, ResumeChecked, Saved, Stepped
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopRequest
from tests.training.jobs import (
    WINDOW_TOKENS,
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    carry_out,
    model_sha256,
    reports_of,
)

pytestmark = pytest.mark.any_device

CPT = a_recipe(
    method=Method.CPT, weights="adapter", lora=LoraSpec(rank=4, dropout=0.1), num_epochs=2, batch_size=8
)
FULL = a_recipe(method=Method.CPT, lora=LoraSpec(), learning_rate=1e-3, num_epochs=1, precision="float32")


@pytest.fixture(scope="module")
def whole(texts, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("cpt") / "work", an_order(texts, CPT))


def prepared(directory, texts, recipe):
    order = an_order(texts, recipe)
    work_dir = a_work_dir(directory, order)
    run, _ = prepare(order, work_dir, texts.world, Reports(work_dir, texts.world))
    return run, StopRequest(work_dir)


def test_steps_equal_those_of_documents_that_are_read_one_by_one(texts, tmp_path):
    """Log-probabilities by hand: of every token of a piece but the first, each piece alone in front of the model."""
    run, stop = prepared(tmp_path / "work", texts, FULL)
    model = AutoModelForCausalLM.from_pretrained(texts.base_dir)
    for step in range(2):
        pieces = [torch.from_numpy(e.tokens).long() for w in run.next_plan().windows for e in w]
        count = sum(len(tokens) - 1 for tokens in pieces)
        losses = []
        for tokens in pieces:
            log_probs = torch.log_softmax(model(tokens[None]).logits[0].float(), dim=-1)
            losses += [-log_probs[index - 1, tokens[index]] for index in range(1, len(tokens))]
        assert len(losses) == count
        total = torch.stack(losses).sum() / count
        model.zero_grad()
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        stepped = take_step(run, stop)
        assert stepped.loss == pytest.approx(total.item(), abs=1e-5)
        assert stepped.grad_norm == pytest.approx(norm.item(), rel=1e-3)
        model.load_state_dict(run.network.model.state_dict())
        assert step == stepped.step - 1


def test_every_document_is_trained_on_to_its_end_and_none_of_its_tokens_twice(texts, tmp_path):
    run, _ = prepared(tmp_path / "work", texts, FULL)
    end = AutoTokenizer.from_pretrained(texts.base_dir).eos_token_id
    pieces = [example for window in run.dataset.training for example in window]
    targets = Counter(int(token) for piece in pieces for token in piece.tokens[piece.targets])
    longer = sum(len(piece.tokens) == WINDOW_TOKENS for piece in pieces)
    assert longer > 0
    assert all(len(piece.targets) == len(piece.tokens) - 1 for piece in pieces)
    ends = sum(int(piece.tokens[-1]) == end for piece in pieces)
    assert targets[end] == ends >= len(pieces) - longer


class TestRun:
    def test_tells_the_perplexity_of_the_validation_file_before_and_after(self, whole):
        [ended] = reports_of(whole, Ended)
        *periodic, final = reports_of(whole, Saved)
        assert ended.outcome is Outcome.COMPLETED
        assert periodic
        for metrics in (saved.metrics for saved in periodic):
            assert metrics.perplexity == pytest.approx(math.exp(metrics.valid_loss))
            assert metrics.start_perplexity is None
        metrics = final.metrics
        assert metrics.perplexity == pytest.approx(math.exp(metrics.full_valid_loss))
        assert metrics.start_perplexity > metrics.perplexity
        # A random model is about as unsure as a uniform guess.
        assert metrics.start_perplexity == pytest.approx(512, rel=0.3)

    def test_goes_on_from_a_bundle_to_the_same_bytes_and_still_knows_its_start(self, texts, whole, tmp_path):
        first = reports_of(whole, Saved)[0]
        bundle = as_bundle(an_order(texts, CPT), first, tmp_path / "bundle")
        reports = carry_out(tmp_path / "work", an_order(texts, CPT, attempt=2, resume_dir=bundle))
        [checked] = reports_of(reports, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        last, expected = reports_of(reports, Saved)[-1], reports_of(whole, Saved)[-1]
        assert model_sha256(last) == model_sha256(expected)
        assert last.metrics == expected.metrics
        states = [json.loads((saved.directory / "state.json").read_text()) for saved in (last, expected)]
        assert states[0] == states[1]
        tail = [step.loss for step in reports_of(whole, Stepped)][first.step :]
        assert [step.loss for step in reports_of(reports, Stepped)] == tail


def test_rows_of_another_method_are_refused_by_name(inputs, tmp_path):
    [ended] = reports_of(carry_out(tmp_path / "work", an_order(inputs, CPT)), Ended)
    assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.USER)
    assert "it has chat rows, method cpt trains on text rows" in ended.message
