"""The state folder of one stack: ports and passwords chosen once, logs, and what runs now."""

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from deploy.bootstrap.secret import new_secret
from deploy.local import files
from deploy.local.cache import cache_folder
from deploy.local.certificates import AUTHORITY, server_certificate
from deploy.local.errors import AlreadyRunning, MissingPart
from shared.clock import utc_now
from shared.ports import is_free
from shared.processes.identity import Identity

PARTS = ("kafka", "postgres", "s3")
LOOPBACK = "127.0.0.1"
CERTIFICATES = "tls"
"""Folder of the authority and of all certificates."""
PORTS = range(20000, 32000)
"""Below the ports that systems give to outgoing connections: one could sit on ours while a part is down."""


class State:
    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._lock: IO[str] | None = None
        self._writing = threading.Lock()

    def prepare(self) -> None:
        # Others may pass through, but not list: as root, Postgres may have to run as `nobody`.
        files.folder(self.root, mode=0o711)
        files.require_free_space(self.root, "RETUNE_STATE")
        for name in ("logs", "scratch", "nodes", "replicas", "replica-keys", "auditor"):
            files.folder(self.root / name)

    @property
    def mark(self) -> str:
        """Mark in the environment of every process of this stack and of all they start."""
        return f"RETUNE_STACK={self.secret('mark')}"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    @property
    def ca_file(self) -> Path | None:
        """The authority that signs the servers' certificates; None where everything is plain text."""
        path = self.root / CERTIFICATES / AUTHORITY
        return path if path.exists() else None

    @property
    def scheme(self) -> str:
        return "https" if self.ca_file else "http"

    def certificate(self, server: str) -> Path | None:
        """Return the file of a server's key and certificate, made if need be; None where everything is plain text."""
        folder = self.root / CERTIFICATES
        return server_certificate(folder, server, now=utc_now()) if self.ca_file else None

    def secret(self, name: str) -> str:
        """Random letters and digits, made at the first request and kept."""
        return str(self._remember("secrets.json", name, lambda known: new_secret()))

    def has_secret(self, name: str) -> bool:
        return name in files.read_json(self.root / "secrets.json")

    def port(self, name: str) -> int:
        """A free port, chosen at the first request and kept."""
        return int(self._remember("ports.json", name, lambda known: claim_port(self.root, known.values())))

    def _remember(self, file: str, name: str, choose: Callable[[dict[str, Any]], Any]) -> Any:
        path = self.root / file
        with self._writing:
            known = files.read_json(path)
            if name not in known:
                files.folder(self.root, mode=0o711)
                known[name] = choose(known)
                files.write_json(path, known)
        return known[name]

    def require_port(self, name: str) -> None:
        """Raise MissingPart if another program took the port that we remember."""
        port = self.port(name)
        if not is_free(LOOPBACK, port):
            raise MissingPart(
                f"port {port} of {name} is taken by another program: stop that program, "
                f"or delete {self.root / 'ports.json'} to choose new ports"
            )

    def acquire(self) -> None:
        """Be the one supervisor of this folder. Raises AlreadyRunning."""
        lock = (self.root / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            holder = self.supervisor()
            who = f" (supervisor pid {holder.pid})" if holder else ""
            raise AlreadyRunning(f"the stack in {self.root} is already running{who}") from None
        self._lock = lock

    def release(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def record(self, phase: str, children: dict[str, dict[str, Any]]) -> None:
        """Keep what runs where `status`, `down` and the next `up` find it, also after our own kill -9."""
        holder = Identity.of(os.getpid())
        files.write_json(
            self.root / "processes.json", {"phase": phase, "supervisor": str(holder), "children": children}
        )

    def phase(self) -> str:
        return str(files.read_json(self.root / "processes.json").get("phase", "down"))

    def supervisor(self) -> Identity | None:
        """The supervisor on record, if it lives."""
        known = files.read_json(self.root / "processes.json").get("supervisor")
        holder = Identity.parse(known) if known else None
        return holder if holder and holder.is_alive() else None

    def children(self) -> dict[str, dict[str, Any]]:
        """What the last supervisor recorded: name -> `process` (pid and start) and `restarts`."""
        recorded: dict[str, dict[str, Any]] = files.read_json(self.root / "processes.json").get(
            "children", {}
        )
        return recorded

    def left_behind(self) -> list[Identity]:
        """Recorded parts and services that still live."""
        known = [Identity.parse(child["process"]) for child in self.children().values() if child["process"]]
        return [process for process in known if process.is_alive()]


def claim_port(root: Path, taken: Iterable[int]) -> int:
    """A port that no program has and no other stack of this user, be it down or just starting."""
    register = cache_folder() / "ports.json"
    with files.locked(register.with_suffix(".lock")):
        claims = {port: owner for port, owner in files.read_json(register).items() if Path(owner).is_dir()}
        refused = {*map(int, claims), *taken}
        free = (port for port in shuffled(PORTS) if port not in refused and is_free(LOOPBACK, port))
        port = next(free, None)
        if port is None:
            raise MissingPart(
                f"no free port from {PORTS.start} to {PORTS.stop}: stop some of the programs there"
            )
        files.write_json(register, {**claims, str(port): str(root)})
    return port


def shuffled(ports: range) -> list[int]:
    return secrets.SystemRandom().sample(ports, len(ports))
