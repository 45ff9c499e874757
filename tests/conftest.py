"""How two processes share the tests out, if there are two, and how often those of the crash matrix come."""

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.chaos.scale import scaled

ONE_BY_ONE = ("tests/serving/", "tests/chaos/", "tests/e2e/")
"""Side by side these would need more memory and cores than a small machine has."""


class ByFile(LoadScopeScheduling):
    """By file, and what needs many processes one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return "one by one" if file.startswith(ONE_BY_ONE) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = scaled(1, 1, 100)
    if times > 1 and metafunc.definition.get_closest_marker("crash_matrix"):
        metafunc.fixturenames.append("time")
        metafunc.parametrize("time", range(times))
