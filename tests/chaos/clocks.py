"""Processes whose wall clock is wrong: a `sitecustomize` on their PYTHONPATH shifts it for all that is Python.

The times of records in Kafka come from elsewhere: `integration/kernel/test_consume.py` sets them outright.
"""

from pathlib import Path

from deploy.local.settings import REPOSITORY

SHIM = '''
"""The wall clock of this process is off by {seconds} s; clocks that count are not."""

import datetime
import time

OFF = {seconds}
real, real_time, real_time_ns = datetime.datetime, time.time, time.time_ns
time.time = lambda: real_time() + OFF
time.time_ns = lambda: real_time_ns() + OFF * 10**9


class IsReal(type):
    def __instancecheck__(cls, other):
        return isinstance(other, real)

    def __subclasscheck__(cls, other):
        return issubclass(other, real)


class datetime_(real, metaclass=IsReal):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + datetime.timedelta(seconds=OFF)

    @classmethod
    def utcnow(cls):
        return real.utcnow() + datetime.timedelta(seconds=OFF)

    @classmethod
    def today(cls):
        return cls.now()


datetime_.__name__ = datetime_.__qualname__ = "datetime"
datetime_.__module__ = "datetime"
datetime.datetime = datetime_
'''


def off_by(seconds: int, folder: Path) -> dict[str, str]:
    """Environment of a process whose clock is so far ahead; negative: behind."""
    directory = folder / f"clock-off-by-{seconds}"
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(SHIM.format(seconds=seconds))
    return {"PYTHONPATH": f"{directory}:{REPOSITORY}"}
