"""A run that cannot continue says which of the closed classes it is, and never leaves a false end behind."""

import errno
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.base import FailureClass
from services.trainer_agent.protocol import Ended, Outcome, Saved, Stepped
from services.trainer_agent.training import saver
from services.trainer_agent.training.loss import TokenLosses
from tests.training.jobs import Inputs, a_recipe, an_order, carry_out, reports_of


def the_end(reports) -> Ended:
    [ended] = reports_of(reports, Ended)
    assert reports[-1] == ended
    assert ended.outcome is Outcome.FAILED
    return ended


@pytest.fixture
def copied_base(inputs, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    for path in inputs.base_dir.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    return base


def test_weights_that_make_no_number_are_numeric_before_the_first_step(inputs, copied_base, tmp_path):
    weights = load_file(copied_base / "model.safetensors")
    weights["model.norm.weight"][:] = torch.nan
    save_file(weights, copied_base / "model.safetensors", metadata={"format": "pt"})
    reports = carry_out(tmp_path / "work", an_order(Inputs(copied_base, inputs.dataset_dir)))
    ended = the_end(reports)
    assert ended.failure_class is FailureClass.NUMERIC
    assert "not a finite number before the first step" in ended.message
    assert not reports_of(reports, Stepped)


def test_a_loss_that_is_no_number_is_numeric_and_names_the_step(inputs, tmp_path, monkeypatch):
    forward = TokenLosses.forward

    def no_number(network, batch):
        return forward(network, batch) * (torch.nan if torch.is_grad_enabled() else 1.0)

    monkeypatch.setattr(TokenLosses, "forward", no_number)
    ended = the_end(carry_out(tmp_path / "work", an_order(inputs)))
    assert ended.failure_class is FailureClass.NUMERIC
    assert "step 1: loss nan" in ended.message


def test_a_loss_that_is_a_number_the_second_time_is_a_bad_machine(inputs, tmp_path, monkeypatch):
    forward, calls = TokenLosses.forward, []

    def flips_once(network, batch):
        losses = forward(network, batch)
        calls.append(network.training and torch.is_grad_enabled())
        return losses * torch.inf if calls.count(True) == 5 and calls[-1] else losses

    monkeypatch.setattr(TokenLosses, "forward", flips_once)
    reports = carry_out(tmp_path / "work", an_order(inputs))
    ended = the_end(reports)
    assert ended.failure_class is FailureClass.INFRA
    assert "computed again" in ended.message
    assert ended.last_step == reports_of(reports, Stepped)[-1].step == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_sha": "0" * 64}, "base model is baba"),
        ({"dataset_version": "0" * 64}, "version is dada"),
    ],
)
def test_a_dataset_of_another_model_or_version_is_the_users(inputs, tmp_path, change, words):
    ended = the_end(carry_out(tmp_path / "work", an_order(inputs, **change)))
    assert ended.failure_class is FailureClass.USER
    assert words in ended.message


def test_tokens_that_the_model_does_not_know_are_the_users(inputs, copied_base, tmp_path):
    config = json.loads((copied_base / "config.json").read_text())
    (copied_base / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    weights = load_file(copied_base / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:300].clone()
    save_file(weights, copied_base / "model.safetensors", metadata={"format": "pt"})
    ended = the_end(carry_out(tmp_path / "work", an_order(Inputs(copied_base, inputs.dataset_dir))))
    assert ended.failure_class is FailureClass.USER
    assert "the base model knows 0 to 299" in ended.message


def test_another_number_of_processes_than_ordered_is_internal(inputs, tmp_path):
    ended = the_end(carry_out(tmp_path / "work", an_order(inputs, nodes=2)))
    assert ended.failure_class is FailureClass.INTERNAL
    assert "1 processes were started, the order names 2" in ended.message


def test_a_full_disk_is_infra_and_no_bundle_is_reported(inputs, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saver, "write_shared_files", full)
    reports = carry_out(tmp_path / "work", an_order(inputs))
    assert the_end(reports).failure_class is FailureClass.INFRA
    assert not reports_of(reports, Saved)


def test_no_memory_is_oom(inputs, tmp_path, monkeypatch):
    def too_much(_network, _batch):
        return torch.empty(2**60)

    order = an_order(inputs, a_recipe(packing=False))
    monkeypatch.setattr(TokenLosses, "forward", too_much)
    assert the_end(carry_out(tmp_path / "work", order)).failure_class is FailureClass.OOM
