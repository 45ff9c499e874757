"""GPUs are counted where the driver's library is, and nowhere else."""

from pathlib import Path

import pytest

from services.provisioner.backends import gpus

HAS_DRIVER = Path("/proc/driver/nvidia").exists()


@pytest.mark.skipif(HAS_DRIVER, reason="has the driver's library")
def test_without_the_library_it_is_said_and_nothing_is_counted(monkeypatch):
    lines = []
    monkeypatch.setattr(gpus.log, "warning", lambda event, **fields: lines.append((event, fields)))
    assert gpus.count_gpus() is None
    [(event, fields)] = lines
    assert event == gpus.NOT_COUNTED
    assert gpus.LIBRARY in fields["error"]


class Library:
    def __init__(self, count, *, code=0):
        self._count, self._code = count, code

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = self._count
        return self._code


@pytest.mark.parametrize(
    ("library", "count"), [(Library(8), 8), (Library(0), 0), (Library(8, code=999), None)]
)
def test_the_library_counts(monkeypatch, library, count):
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: library)
    assert gpus.count_gpus() == count
