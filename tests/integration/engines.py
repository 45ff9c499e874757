"""Replicas without vLLM: the same API in this process, so that a test can break one of them."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from safetensors.numpy import load_file

from services.serving_controller.clients.backend import EngineFacts, ReplicaSpec, ReplicaStatus

HOST = "http://replica"
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} {}
"""


@dataclass
class Engine:
    """One start of one replica. An adapter adds the sum of its B to every log-probability."""

    spec: ReplicaSpec
    is_alive: bool = True
    adapters: dict[str, float] = field(default_factory=dict)
    running: int = 0
    """Requests that it computes."""
    waiting: int = 0


@dataclass
class Engines:
    """ReplicaBackend, and the HTTP of what it started."""

    root: Path
    max_adapters: int = 3
    running: dict[str, Engine] = field(default_factory=dict)
    refusing: dict[str, str] = field(default_factory=dict)
    """Replica id -> part of a name that it will not load."""
    idle: set[str] = field(default_factory=set)
    """Names whose adapter is loaded and ignored."""
    starts: list[str] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)
    """Names that are loaded and not listed."""
    extended: dict[str, float] = field(default_factory=dict)
    """Replica id -> seconds that its lease was last extended by."""

    has_nodes = False

    async def engine(self, replica_id: str) -> EngineFacts | None:
        return EngineFacts("stand-in 1, cpu", "cpu")

    @property
    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    async def start(self, spec: ReplicaSpec) -> None:
        assert (spec.model_dir / "config.json").is_file()
        self.folder(spec.replica_id).mkdir(parents=True, exist_ok=True)
        self.running[spec.replica_id] = Engine(spec)
        self.starts.append(spec.replica_id)

    def starts_of(self, pool: str) -> list[str]:
        """Replicas of this base model as they were started. Messages of other files' models may start theirs, too."""
        return [replica_id for replica_id in self.starts if replica_id.startswith(f"{pool}-")]

    async def extend(self, replica_id: str, seconds: float) -> None:
        self.extended[replica_id] = seconds

    async def inspect(self, replica_id: str) -> ReplicaStatus | None:
        engine = self.running.get(replica_id)
        if engine is None:
            return None
        return ReplicaStatus(replica_id, engine.spec.incarnation, f"{HOST}.{replica_id}", engine.is_alive)

    async def list_owned(self) -> list[str]:
        return sorted(self.running)

    async def end(self, replica_id: str) -> None:
        self.running.pop(replica_id, None)

    def key(self, replica_id: str) -> str:
        return f"key of {replica_id}"

    def management_key(self, replica_id: str) -> str:
        return f"management key of {replica_id}"

    def folder(self, replica_id: str) -> Path:
        return self.root / replica_id

    async def log_tail(self, replica_id: str) -> str:
        return "killed"

    def names(self, replica_id: str) -> set[str]:
        return set(self.running[replica_id].adapters)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        replica_id = request.url.host.removeprefix("replica.")
        engine = self.running.get(replica_id)
        if engine is None or not engine.is_alive:
            raise httpx.ConnectError("connection refused")
        assert request.headers["authorization"] == f"Bearer {self.management_key(replica_id)}"
        body = json.loads(request.content or b"{}")
        match request.url.path:
            case "/health":
                return httpx.Response(200)
            case "/v1/models":
                names = [engine.spec.served_name, *(engine.adapters.keys() - self.unlisted)]
                return httpx.Response(200, json={"data": [{"id": name} for name in names]})
            case "/metrics":
                return httpx.Response(200, text=METRICS.format(engine.running, engine.waiting))
            case "/v1/load_lora_adapter":
                return self._load(engine, body["lora_name"], Path(body["lora_path"]))
            case "/v1/unload_lora_adapter":
                existed = engine.adapters.pop(body["lora_name"], None) is not None
                return httpx.Response(200 if existed else 404, text="")
            case "/v1/completions":
                return self._complete(engine, body["model"])
        raise AssertionError(f"no such route: {request.url.path}")

    def _load(self, engine: Engine, name: str, path: Path) -> httpx.Response:
        if (refused := self.refusing.get(engine.spec.replica_id)) and refused in name:
            return httpx.Response(500, json={"error": {"message": "the disk is on fire"}})
        if name in engine.adapters:
            return httpx.Response(400, json={"error": {"message": f"{name} has already been loaded"}})
        tensors = load_file(path / "adapter_model.safetensors")
        effect = sum(float(tensor.sum()) for part, tensor in tensors.items() if "lora_B" in part)
        engine.adapters[name] = 0.0 if name in self.idle else effect
        return httpx.Response(200, text="")

    def _complete(self, engine: Engine, model: str) -> httpx.Response:
        if model == engine.spec.served_name:
            effect = 0.0
        elif model in engine.adapters:
            effect = engine.adapters[model]
        else:
            return httpx.Response(404, json={"error": {"message": f"the model {model} does not exist"}})
        likeliest = {"token_id:1": -1.0 + effect, "token_id:2": -2.0 + effect}
        logprobs = {"tokens": ["token_id:1"] * 4, "top_logprobs": [likeliest] * 4}
        return httpx.Response(200, json={"choices": [{"text": "a a a a", "logprobs": logprobs}]})
