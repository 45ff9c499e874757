"""A Prometheus on 127.0.0.1 with the rules and the scrape configuration of `deploy/monitoring`, addresses adapted.

<folder>/prometheus.yaml alerts.yaml   its configuration
         data/ prometheus.out          what it keeps and says
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from deploy.daemons import Daemons, Running
from deploy.local.errors import StackError
from deploy.local.state import LOOPBACK, State
from deploy.prometheus.packages import PROMETHEUS
from shared.ports import free_port
from shared.processes.environment import inherited

MONITORING = Path(__file__).parents[1] / "monitoring"
NAME = "prometheus"
MARK = "RETUNE_PROMETHEUS"
QUERY_SECONDS = 30.0


def targets_of(state: State, processes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the addresses of a local stack's processes, by service."""
    return {
        service: [f"{LOOPBACK}:{state.port(name)}" for name in names] for service, names in processes.items()
    }


class Prometheus(Running):
    """`with Prometheus(folder, targets) as prometheus`: it runs until the block ends."""

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, Sequence[str]],
        *,
        ca_file: Path | None = None,
        every_seconds: int | None = None,
    ) -> None:
        """`targets`: addresses by service. `every_seconds`: between scrapes, else as in `deploy/monitoring`."""
        self._folder = folder.absolute()
        self._targets = targets
        self._ca_file = ca_file
        self._every_seconds = every_seconds
        self._program = PROMETHEUS.paths()["prometheus"]
        self._daemons = Daemons(self._folder, mark=MARK)
        self.url = f"http://{LOOPBACK}:{free_port(LOOPBACK)}"
        self._http = httpx.Client(base_url=self.url, timeout=QUERY_SECONDS, trust_env=False)

    @property
    def config(self) -> Path:
        return self._folder / "prometheus.yaml"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(yaml.safe_dump(self._adapted()))
        shutil.copy(MONITORING / "alerts.yaml", self._folder)
        options = {
            "config.file": self.config,
            "storage.tsdb.path": self._folder / "data",
            "web.listen-address": self.url.removeprefix("http://"),
        }
        command = [str(self._program), *(f"--{name}={value}" for name, value in options.items())]
        self._daemons.start(NAME, command, environment=inherited())
        self._daemons.until(self._is_ready, NAME, self._daemons.output(NAME))

    def stop(self) -> None:
        self._daemons.kill_all()
        self._http.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression as of now. Raises StackError where it has none for it."""
        result = self._get("/api/v1/query", query=expression)["result"]
        return list(result)

    def targets(self) -> list[dict[str, Any]]:
        """Return what is scraped: `labels`, `health` (up, down or unknown) and `lastError` of each."""
        return list(self._get("/api/v1/targets", state="active")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules as evaluated: `name`, `health` (ok, err or unknown), `state` and `alerts` of each."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _adapted(self) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
        (job,) = config["scrape_configs"]
        job["static_configs"] = [
            each | {"targets": [*self._targets[each["labels"]["service"]]]} for each in job["static_configs"]
        ]
        if self._ca_file:
            job |= {"scheme": "https", "tls_config": {"ca_file": str(self._ca_file.absolute())}}
        if self._every_seconds:
            every = f"{self._every_seconds}s"
            config["global"] |= {
                "scrape_interval": every,
                "scrape_timeout": every,
                "evaluation_interval": every,
            }
        return config

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def _get(self, path: str, **params: str) -> dict[str, Any]:
        answer = self._http.get(path, params=params)
        body = answer.json()
        if body["status"] != "success":
            raise StackError(f"Prometheus answers {answer.status_code} to {params}: {body.get('error')}")
        data: dict[str, Any] = body["data"]
        return data
