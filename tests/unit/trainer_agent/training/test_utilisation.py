"""How busy a device was: what the driver says, and on a CPU what the process used of its threads' time."""

import ctypes
import time

import pytest

from services.trainer_agent.training import utilisation
from services.trainer_agent.training.utilisation import (
    DeviceMeter,
    ProcessorMeter,
    UtilisationUnknown,
)

pytestmark = pytest.mark.torch


class Driver:
    """NVML as it is called: answers 0 where all is well, and writes what was asked for to where it was told."""

    def __init__(self, per_cent: int = 42, answers: dict[str, int] | None = None) -> None:
        self.per_cent = per_cent
        self.answers = answers or {}
        self.asked: list[bytes] = []

    def nvmlInit_v2(self) -> int:
        return self.answers.get("init", 0)

    def nvmlDeviceGetHandleByUUID(self, uuid, handle) -> int:
        self.asked.append(uuid)
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = 7
        return self.answers.get("handle", 0)

    def nvmlDeviceGetUtilizationRates(self, handle, rates) -> int:
        assert handle.value == 7
        numbers = ctypes.cast(rates, ctypes.POINTER(ctypes.c_uint))
        numbers[0], numbers[1] = self.per_cent, 99
        return self.answers.get("rates", 0)


@pytest.fixture
def driver(monkeypatch):
    def installed(driver: Driver) -> Driver:
        monkeypatch.setattr(utilisation.ctypes, "CDLL", lambda name: driver)
        return driver

    return installed


def test_a_gpu_is_as_busy_as_its_driver_says(driver):
    nvml = driver(Driver(per_cent=97))
    assert DeviceMeter("3d5b").read() == 0.97
    assert nvml.asked == [b"GPU-3d5b"]


@pytest.mark.parametrize("call", ["init", "handle", "rates"])
def test_a_driver_that_does_not_tell_is_named_once_when_the_meter_is_made(driver, call):
    driver(Driver(answers={call: 3}))
    with pytest.raises(UtilisationUnknown, match="answered 3, expected 0"):
        DeviceMeter("3d5b")


def test_a_driver_that_stops_telling_leaves_a_gap(driver):
    nvml = driver(Driver())
    meter = DeviceMeter("3d5b")
    nvml.answers["rates"] = 15
    assert meter.read() is None


def test_without_a_driver_there_is_no_meter(monkeypatch):
    monkeypatch.setattr(utilisation, "LIBRARY", "libnothing-of-this-name.so")
    with pytest.raises(UtilisationUnknown, match="libnothing"):
        DeviceMeter("3d5b")


def test_a_cpu_is_as_busy_as_the_process_keeps_its_threads(monkeypatch):
    monkeypatch.setattr(utilisation.torch, "get_num_threads", lambda: 2)
    clock = iter([(0.0, 0.0), (10.0, 5.0), (20.0, 35.0)])
    now = [next(clock)]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0][0])
    monkeypatch.setattr(utilisation, "_processor_seconds", lambda: now[0][1])
    meter = ProcessorMeter()
    now[0] = next(clock)
    assert meter.read() == 0.25
    now[0] = next(clock)
    assert meter.read() == 1.0
