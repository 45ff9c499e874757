"""Makes of `dashboards.yaml` what Grafana imports."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

WIDTH = 8
"""Columns of Grafana's 24 that a panel takes."""
IN_A_ROW = 24 // WIDTH
HEIGHT = 7
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLE = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}


class Panel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: str
    unit: str
    description: str = ""
    queries: Mapping[str, str]


class Dashboard(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    title: str
    panels: tuple[Panel, ...]

    @property
    def document(self) -> dict[str, Any]:
        """What Grafana imports."""
        return {
            "uid": f"retune-{self.name}",
            "title": self.title,
            "tags": ["retune"],
            "schemaVersion": 39,
            "timezone": "browser",
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [VARIABLE]},
            "panels": [_panel(number, panel) for number, panel in enumerate(self.panels)],
        }


def dashboards() -> list[Dashboard]:
    text = Path(__file__).with_name("dashboards.yaml").read_text()
    return TypeAdapter(list[Dashboard]).validate_python(yaml.safe_load(text))


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, IN_A_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": row * HEIGHT},
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": list(_targets(panel.queries)),
    }


def _targets(queries: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for place, (legend, expression) in enumerate(queries.items()):
        letter = chr(ord("A") + place)
        yield {"refId": letter, "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
