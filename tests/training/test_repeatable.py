"""Whether a device's sums have one order is tried before the first step, and in the certificate."""

from dataclasses import replace

import pytest
import torch

from services.trainer_agent.training.network import trainable
from services.trainer_agent.training.repeatable import (
    allow_what_the_model_needs,
    is_repeatable,
    make_repeatable,
)
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.snapshot import rng_state
from tests.training.jobs import ONE_PROCESS, a_work_dir, an_order

ONE_GPU = replace(ONE_PROCESS, device=torch.device("cuda", 0))


@pytest.fixture
def run(inputs, tmp_path):
    order = an_order(inputs)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, inputs.world, Reports(work_dir, inputs.world))
    return run


@pytest.fixture(autouse=True)
def _as_before():
    yield
    make_repeatable(ONE_PROCESS, None)


@pytest.fixture
def strict():
    """As on one GPU."""
    torch.use_deterministic_algorithms(True)


def failing(run, monkeypatch, error):
    def terms(_):
        raise error

    monkeypatch.setattr(type(run.network), "forward", lambda *_: terms(_))


def test_a_model_that_needs_nothing_else_stays_strict_and_is_as_it_was(run, strict):
    before = rng_state(run.device)
    allow_what_the_model_needs(run)
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert all(parameter.grad is None for parameter in trainable(run.network).values())
    assert torch.equal(rng_state(run.device)["cpu"], before["cpu"])


def test_an_operation_without_one_order_is_allowed_and_named(run, strict, monkeypatch, caplog):
    refusal = "put_ with accumulate=False does not have a deterministic implementation, but you set\nmore"
    failing(run, monkeypatch, RuntimeError(refusal))
    allow_what_the_model_needs(run)
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert refusal.partition("\n")[0] in caplog.text


def test_any_other_error_is_the_runs(run, strict, monkeypatch):
    failing(run, monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        allow_what_the_model_needs(run)


def test_one_gpu_promises_what_it_refuses_to_break(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    make_repeatable(ONE_GPU, None)
    assert is_repeatable(ONE_GPU)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    assert not is_repeatable(ONE_GPU)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert not is_repeatable(ONE_GPU)


def test_several_gpus_promise_nothing(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    gang = replace(ONE_GPU, size=2, local_size=2)
    make_repeatable(gang, None)
    assert not is_repeatable(gang)


def test_a_cpu_keeps_its_promise_without_refusals():
    make_repeatable(ONE_PROCESS, None)
    assert is_repeatable(ONE_PROCESS)
    torch.use_deterministic_algorithms(False)
    assert not is_repeatable(ONE_PROCESS)
