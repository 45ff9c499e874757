"""A device that is not there, or computes wrongly, ends the run before its first step, as infra."""

from dataclasses import replace

import pytest
import torch

from schemas.base import DeviceKind, FailureClass
from services.trainer_agent.protocol import Ended, Outcome, PreflightDone, Started
from services.trainer_agent.training import device
from services.trainer_agent.training.device import check_device, on_ordered_device
from services.trainer_agent.training.failures import TrainingFailed
from tests.training.jobs import ONE_PROCESS, a_recipe, an_order, carry_out, reports_of


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens where no GPU is usable")
def test_a_gpu_that_is_gone_is_infra_and_the_cpu_never_takes_its_place(inputs, tmp_path):
    reports = carry_out(tmp_path / "work", an_order(inputs, device=DeviceKind.CUDA))
    [ended] = reports_of(reports, Ended)
    assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.INFRA)
    assert "found 0 that CUDA can use, expected 1" in ended.message
    assert not reports_of(reports, Started)


def test_one_gpu_of_several_that_is_gone_is_noticed_by_its_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    world = replace(ONE_PROCESS, rank=7, size=8, local_rank=7, local_size=8)
    with pytest.raises(TrainingFailed, match="found 7 that CUDA can use, expected 8") as failed:
        on_ordered_device(world, DeviceKind.CUDA)
    assert failed.value.failure_class is FailureClass.INFRA
    assert on_ordered_device(replace(world, local_rank=6), DeviceKind.CUDA).device == torch.device("cuda", 6)


def test_an_order_for_the_cpu_is_carried_out_there_also_beside_a_gpu():
    on_gpu = replace(ONE_PROCESS, device=torch.device("cuda", 0))
    assert on_ordered_device(on_gpu, DeviceKind.CPU).device == torch.device("cpu")
    assert on_ordered_device(on_gpu, None) == on_gpu


def test_an_order_for_the_cpu_trains_there(inputs, tmp_path):
    order = an_order(inputs, a_recipe(num_epochs=1), device=DeviceKind.CPU)
    [preflight] = reports_of(carry_out(tmp_path / "work", order), PreflightDone)
    assert preflight.preparation.device == "cpu"


def test_a_device_that_computes_wrongly_is_infra(monkeypatch):
    honest = torch.Tensor.__matmul__

    def flips_one(left, right):
        product = honest(left, right)
        if product.is_floating_point():
            product[3, 5] += 1.0
        return product

    assert check_device(ONE_PROCESS) is None
    monkeypatch.setattr(torch.Tensor, "__matmul__", flips_one)
    with pytest.raises(
        TrainingFailed, match="1 of 262144 sums of a known matrix product are wrong"
    ) as failed:
        check_device(ONE_PROCESS)
    assert failed.value.failure_class is FailureClass.INFRA


def test_memory_that_forgets_is_infra(monkeypatch):
    def forgets(size, value, **kwargs):
        block = honest(size, value, **kwargs)
        block[17] = 0
        return block

    honest = torch.full
    monkeypatch.setattr(device.torch, "full", forgets)
    with pytest.raises(TrainingFailed, match="bytes of memory are not what was written"):
        check_device(ONE_PROCESS)
