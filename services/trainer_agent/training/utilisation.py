"""How busy a process's device is: a GPU by the driver's own count, a CPU by the processor time of the process."""

import ctypes
import logging
import resource
import time
from typing import Any, Protocol

import torch

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
"""Name of NVML's library, which comes with the driver."""


class Meter(Protocol):
    def read(self) -> float | None:
        """Return the share of the time, 0 to 1, in which the device computed; None where nobody knows it."""


class UtilisationUnknown(Exception):
    """The driver does not report utilisation: there is none, or the device is a part of one."""


def meter_of(device: torch.device) -> Meter:
    if device.type != "cuda":
        return ProcessorMeter()
    try:
        return DeviceMeter(str(torch.cuda.get_device_properties(device).uuid))
    except UtilisationUnknown as error:
        log.warning("device utilisation is not known: %s", error)
        return NoMeter()


class NoMeter:
    def read(self) -> None:
        return None


class ProcessorMeter:
    """Measures processor time since the last look, as a share of the time that torch's threads have."""

    def __init__(self) -> None:
        self._at, self._seconds = time.perf_counter(), _processor_seconds()

    def read(self) -> float:
        at, seconds = time.perf_counter(), _processor_seconds()
        available = (at - self._at) * torch.get_num_threads()
        share = (seconds - self._seconds) / max(available, 1e-9)
        self._at, self._seconds = at, seconds
        # The process has other threads too, for what it writes and reports.
        return min(1.0, share)


class DeviceMeter:
    """Measures the share of the driver's newest sampling period, a sixth of a second to one, in which the device
    computed.

    Raises: UtilisationUnknown, when it is made.
    """

    def __init__(self, uuid: str) -> None:
        try:
            self._library: Any = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise UtilisationUnknown(str(error)) from error
        self._handle = ctypes.c_void_p()
        self._require("nvmlInit_v2")
        self._require("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._handle))
        self._require_rates()

    def read(self) -> float | None:
        try:
            return self._require_rates()
        except UtilisationUnknown:
            return None

    def _require_rates(self) -> float:
        rates = _Rates()
        self._require("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(rates))
        return float(rates.gpu / 100)

    def _require(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise UtilisationUnknown(f"{function} answered {code}, expected 0")


class _Rates(ctypes.Structure):
    """Structure nvmlUtilization_t, in per cent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
