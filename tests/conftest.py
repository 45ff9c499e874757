"""How two processes share the tests out, if there are two: by file, and what needs many processes one by one."""

import pytest
from xdist.scheduler import LoadScopeScheduling

ONE_BY_ONE = ("tests/serving/", "tests/chaos/", "tests/e2e/")
"""Side by side these would need more memory and cores than a small machine has."""


class ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return "one by one" if file.startswith(ONE_BY_ONE) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)
