"""What Prometheus and Grafana ask for is there: every expression parses and names metrics and labels of ours."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from deploy.monitoring.__main__ import FOLDER
from deploy.monitoring.metrics import Metric, metrics
from schemas.topics import SERVICES, TOPICS

MONITORING = FOLDER.parent
ROOT = MONITORING.parents[1]
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")
PROMETHEUS = Metric("up", "gauge", ("job", "service", "instance"), "Prometheus sets it for what it scrapes")
TYPES = {message.__name__ for topic in TOPICS for message in topic.messages}

RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARDS = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
TARGETS = [target["expr"] for board in DASHBOARDS for panel in board["panels"] for target in panel["targets"]]
EXPRESSIONS = [rule["expr"] for rule in RULES] + TARGETS


@pytest.fixture(scope="module")
def series() -> dict[str, Metric]:
    """Metrics by the names that Prometheus stores."""
    known = [*metrics(), PROMETHEUS]
    return {
        f"{metric.name}{ending}": metric
        for metric in known
        for ending in (OF_A_HISTOGRAM if metric.kind == "histogram" else ("",))
    }


def selectors(node: Any) -> Iterator[Any]:
    """Selectors of series within an expression, whatever holds them."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    children = (getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param", "vector_selector"))
    for child in (*children, *getattr(node, "args", ())):
        if child is not None:
            yield from selectors(child)


def groupings(node: Any) -> Iterator[str]:
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        yield from node.modifier.labels
    for child in (
        *(getattr(node, name, None) for name in ("expr", "lhs", "rhs")),
        *getattr(node, "args", ()),
    ):
        if child is not None:
            yield from groupings(child)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_series_and_labels_that_there_are(expression: str, series: dict[str, Metric]):
    tree = promql_parser.parse(expression)
    asked = list(selectors(tree))
    assert asked
    labels = set[str]()
    for selector in asked:
        assert selector.name in series, f"{selector.name} is shown by no service"
        of_it = {*series[selector.name].labels, *(["le"] if selector.name.endswith("_bucket") else [])}
        labels |= of_it
        for matcher in selector.matchers.matchers:
            assert matcher.name in of_it, f"{selector.name} has no label {matcher.name}"
            if matcher.name == "type":
                assert set(matcher.value.split("|")) <= TYPES
    assert set(groupings(tree)) <= labels


def test_every_metric_is_on_a_dashboard(series: dict[str, Metric]):
    on_dashboards = {
        series[selector.name].name
        for target in TARGETS
        for selector in selectors(promql_parser.parse(target))
    }
    assert {metric.name for metric in series.values()} - on_dashboards == set()


def test_a_rule_says_how_urgent_it_is_and_what_to_do():
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert Path(ROOT, rule["annotations"]["runbook"]).is_file(), rule["alert"]
        labels = set(groupings(promql_parser.parse(rule["expr"])))
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels, rule["alert"]


def test_a_legend_names_labels_that_its_lines_have():
    for board in DASHBOARDS:
        for panel in board["panels"]:
            for target in panel["targets"]:
                named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                assert named <= set(groupings(promql_parser.parse(target["expr"]))), panel["title"]


def test_every_service_is_scraped():
    (job,) = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["honor_labels"]
    assert [each["labels"]["service"] for each in job["static_configs"]] == list(SERVICES)


def test_dashboards_and_panels_have_names_of_their_own():
    assert len({board["uid"] for board in DASHBOARDS}) == len(DASHBOARDS) == 3
    for board in DASHBOARDS:
        titles = [panel["title"] for panel in board["panels"]]
        assert len(set(titles)) == len(titles)
