"""OpenTelemetry's collector on 127.0.0.1: OTLP over HTTP in, one JSON line a request out.

<folder>/otelcol.yaml                its configuration
         traces.jsonl metrics.jsonl  what services sent, in OTLP's JSON
         otelcol.out                 its log
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.collector.programs import program
from deploy.daemons import Daemons, Running
from deploy.local.state import LOOPBACK
from shared.ports import free_port
from shared.processes.environment import inherited

NAME = "otelcol"
MARK = "RETUNE_COLLECTOR"
SIGNALS = ("traces", "metrics")
FLUSH = "200ms"


class Collector(Running):
    """`with Collector(folder) as collector`: it runs until the block ends; services send to its `url`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._program = program()
        self._daemons = Daemons(self._folder, mark=MARK)
        self._port = free_port(LOOPBACK)
        self.url = f"http://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / f"{NAME}.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        self._daemons.start(NAME, [str(self._program), f"--config={config}"], environment=inherited())
        self._daemons.until(self._accepts, NAME, self.log)

    def stop(self) -> None:
        self._daemons.kill_all()

    @property
    def log(self) -> Path:
        return self._daemons.output(NAME)

    def spans(self) -> Iterator[dict[str, Any]]:
        """Yield the spans received, in OTLP's JSON, each with its `service` beside."""
        for resource, scope in self._received("traces", "resourceSpans", "scopeSpans"):
            yield from (span | {"service": _service(resource)} for span in scope["spans"])

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics received, in OTLP's JSON, each with its `service` beside."""
        for resource, scope in self._received("metrics", "resourceMetrics", "scopeMetrics"):
            yield from (metric | {"service": _service(resource)} for metric in scope["metrics"])

    def _received(self, signal: str, of: str, scopes: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        file = self._output(signal)
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        for line in lines:
            if line.endswith(b"\n"):  # the last may be half written
                for each in json.loads(line)[of]:
                    yield from ((each["resource"], scope) for scope in each[scopes])

    def _output(self, signal: str) -> Path:
        return self._folder / f"{signal}.jsonl"

    def _config(self) -> dict[str, Any]:
        protocols = {"http": {"endpoint": f"{LOOPBACK}:{self._port}"}}
        exporters = {
            f"file/{each}": {"path": str(self._output(each)), "flush_interval": FLUSH} for each in SIGNALS
        }
        pipelines = {each: {"receivers": ["otlp"], "exporters": [f"file/{each}"]} for each in SIGNALS}
        telemetry = {"metrics": {"level": "none"}}
        return {
            "receivers": {"otlp": {"protocols": protocols}},
            "exporters": exporters,
            "service": {"pipelines": pipelines, "telemetry": telemetry},
        }

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self._port)) == 0


def _service(resource: dict[str, Any]) -> str:
    named = {each["key"]: each["value"].get("stringValue", "") for each in resource["attributes"]}
    return str(named["service.name"])
