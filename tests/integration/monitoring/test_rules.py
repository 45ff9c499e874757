"""Prometheus' own checks of what it is given, and of each alert: it fires, and resolves."""

import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from deploy.local.errors import MissingPart
from deploy.prometheus.packages import PROMETHEUS
from deploy.prometheus.server import MONITORING

RULES = MONITORING / "alerts.yaml"
CASES = MONITORING / "alerts.test.yaml"


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return PROMETHEUS.paths()["promtool"]
    except MissingPart as missing:
        pytest.skip(str(missing))


def checked(promtool: Path, *arguments: str | Path) -> str:
    done = subprocess.run(
        [str(promtool), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_rules_and_the_example_of_a_configuration_are_valid(promtool: Path):
    assert "rules found" in checked(promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    checked(promtool, "check", "config", "--lint=all", "--lint-fatal", MONITORING / "prometheus.yaml")


def test_each_alert_fires_and_resolves(promtool: Path):
    assert "SUCCESS" in checked(promtool, "test", "rules", CASES)


def test_a_rule_that_fires_too_late_is_noticed(promtool: Path, tmp_path: Path):
    """The check above can fail."""
    (tmp_path / "alerts.yaml").write_text(RULES.read_text().replace("> 60", "> 600", 1))
    (tmp_path / CASES.name).write_text(CASES.read_text())
    with pytest.raises(AssertionError, match="EventsNotInKafka"):
        checked(promtool, "test", "rules", tmp_path / CASES.name)


def test_every_rule_has_a_case_in_which_it_fires_and_one_after_it_in_which_it_does_not():
    fires = defaultdict[str, list[tuple[float, bool]]](list)
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            minute = float(check["eval_time"].removesuffix("m"))
            fires[check["alertname"]].append((minute, bool(check["exp_alerts"])))
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == {*fires}
    for alert, cases in fires.items():
        order = [is_firing for _, is_firing in sorted(cases)]
        assert (order[0], order[-1]) == (False, False), alert
        assert True in order, alert
