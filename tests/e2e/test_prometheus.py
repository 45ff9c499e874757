"""A real Prometheus scrapes every service, and evaluates all that the rules and dashboards ask."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deploy.local.errors import MissingPart
from deploy.local.stack import Stack
from deploy.monitoring.__main__ import FOLDER
from deploy.prometheus.server import MONITORING, Prometheus, targets_of
from schemas.topics import SERVICES
from shared.processes.ending import until
from tests.e2e.conftest import Platform
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.stack, pytest.mark.torch]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield what each is of, and the expression."""
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])
    for path in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            yield from ((panel["title"], target["expr"]) for target in panel["targets"])


@contextmanager
def watching(stack: Stack, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the processes of a stack every second; skips where there is none to run."""
    processes = defaultdict[str, list[str]](list)
    for name in stack.processes:
        processes[name.partition("-")[0]].append(name)
    try:
        prometheus = Prometheus(
            folder, targets_of(stack.state, processes), ca_file=stack.state.ca_file, every_seconds=1
        )
    except MissingPart as missing:
        pytest.skip(str(missing))
    with prometheus:
        yield prometheus


async def until_all_are_scraped(prometheus: Prometheus) -> None:
    def are_known() -> bool:
        health = {each["health"] for each in prometheus.targets()}
        return health != set() and "unknown" not in health

    assert await until(are_known, PATIENCE_SECONDS)


async def test_every_service_is_scraped_and_every_expression_evaluates(platform: Platform, tmp_path: Path):
    with watching(platform.stack, tmp_path) as prometheus:
        await until_all_are_scraped(prometheus)
        assert {
            each["labels"]["service"]: each["lastError"] for each in prometheus.targets()
        } == dict.fromkeys(SERVICES, "")
        assert len(prometheus.query("up == 1")) == len(prometheus.targets())
        for title, expression in expressions():
            for series in prometheus.query(expression):
                assert len(series["value"]) == 2, title

        def are_evaluated() -> bool:
            return all(rule["health"] != "unknown" for rule in prometheus.rules())

        assert await until(are_evaluated, PATIENCE_SECONDS)
        assert {rule["name"]: rule["health"] for rule in prometheus.rules()} == {
            rule["name"]: "ok" for rule in prometheus.rules()
        }
