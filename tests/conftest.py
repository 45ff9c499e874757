"""How several processes share the tests out, how often those of the crash matrix come, what examples properties get."""

import gc
import logging
from collections.abc import Generator

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.chaos.scale import Scale, scale, scaled, seed

ONE_BY_ONE = {
    "tests/serving/": "models",
    "tests/e2e/": "models",
    "tests/chaos/": "chaos",
    "tests/integration/gateway/": "gateway",
}
"""Groups of folders. Side by side, tests of one group would need more memory and cores than a small machine has; those of
the gateway would each start one."""


class ByFile(LoadScopeScheduling):
    """By file, and what needs many processes one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return next((group for folder, group in ONE_BY_ONE.items() if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


def pytest_configure() -> None:
    gc.disable()
    # A slow machine breaks no property; CI gives a change the same examples each time, the night others.
    hypothesis.settings.register_profile(
        "retune",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        derandomize=scale() is Scale.CHANGE,
    )
    hypothesis.settings.load_profile("retune")


def pytest_collection_finish() -> None:
    """Leave all tests, and what they import, out of garbage collection: it would go through them again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the tests into the order of the command line, which parameters of the session (devices.py) changed."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    last = len(paths)
    items.sort(
        key=lambda item: next((i for i, path in enumerate(paths) if item.path.is_relative_to(path)), last)
    )


def pytest_report_header() -> str:
    return f"CHAOS_SEED={seed()}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = scaled(1, 1, 100)
    if times > 1 and metafunc.definition.get_closest_marker("crash_matrix"):
        metafunc.fixturenames.append("time")
        metafunc.parametrize("time", range(times))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Keep the level of all loggers: vLLM sets it when it is imported, and no warning would be seen any more."""
    level = logging.root.level
    try:
        return (yield)
    finally:
        logging.root.setLevel(level)
