"""Replicas as processes of this machine; what runs in them is a script in place of vLLM."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from services.serving_controller.clients import guard
from services.serving_controller.clients.backend import ReplicaSpec
from services.serving_controller.clients.local import Engine, LocalBackend
from shared.processes.identity import Identity
from tests.landlock import landlock
from tests.waiting import until

# Like vLLM: a leader, and an engine process that overwrites its environment and outlives the leader.
SCRIPT = """
import ctypes, json, os, subprocess, sys, time
from shared.device_leases.fence import end_with_lease
end_with_lease()
json.dump(dict(os.environ), open("environment.json.draft", "w"))

def is_read(path):
    try:
        return bool(open(path).read(1))
    except OSError:
        return False

paths = ("management-key", "../../keys/neighbour", "../../keys/" + os.path.basename(os.getcwd()))
json.dump({path: is_read(path) for path in paths}, open("reads.json", "w"))
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
json.dump({"leader": os.getpid(), "engine": engine.pid}, open("processes.json.draft", "w"))
for name in ("environment.json", "processes.json"):
    os.rename(name + ".draft", name)
print("RuntimeError: out of memory", flush=True)
time.sleep(600)
"""
ID = "serve-0123456789ab-0"


@dataclass(frozen=True)
class Script(Engine):
    def argv(self, spec: ReplicaSpec, port: int, *, certificate: Path | None = None) -> list[str]:
        return [sys.executable, "-c", SCRIPT]


def a_spec(incarnation: str = "first") -> ReplicaSpec:
    return ReplicaSpec(ID, incarnation, Path("/model"), "tiny", 8)


def a_backend(root: Path) -> LocalBackend:
    return LocalBackend(root / "replicas", root / "keys", engine=Script())


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    backend = a_backend(tmp_path)
    yield backend
    await backend.end(ID)


async def started(backend: LocalBackend, incarnation: str = "first", **changes: Any) -> dict[str, int]:
    """Start it; the pids of its leader and its engine."""
    record = backend.folder(ID) / "processes.json"
    record.unlink(missing_ok=True)
    await backend.start(replace(a_spec(incarnation), **changes))
    await until(record.exists, "the script to be up")
    return json.loads(record.read_text())


def is_alive(pid: int) -> bool:
    return Identity.of(pid) is not None


async def test_a_replica_is_known_by_its_incarnation_also_to_the_next_controller(backend, tmp_path):
    pids = await started(backend)
    for anyone in (backend, a_backend(tmp_path)):
        seen = await anyone.inspect(ID)
        assert (seen.incarnation, seen.is_alive) == ("first", True)
        assert seen.url == f"http://127.0.0.1:{(backend.folder(ID) / 'port').read_text().strip()}"
        assert await anyone.list_owned() == [ID]
    assert Identity.parse((backend.folder(ID) / "pid").read_text()) == Identity.of(pids["leader"])


async def test_it_gets_its_keys_digests_and_none_of_our_secrets(backend, monkeypatch):
    monkeypatch.setenv("SERVING_CONTROLLER_S3_SECRET_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("RETUNE_STACK", "mark")
    await started(backend)
    environment = json.loads((backend.folder(ID) / "environment.json").read_text())
    assert "secret" not in environment.values()
    assert environment[guard.INFERENCE_DIGEST] == guard.digest_of(backend.key(ID))
    assert environment[guard.MANAGEMENT_DIGEST] == guard.digest_of(backend.management_key(ID))
    assert environment["RETUNE_STACK"] == "mark"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in environment


@pytest.mark.skipif(landlock() == 0, reason="the kernel has no Landlock")
async def test_it_reads_no_neighbours_key(backend, tmp_path):
    """Nor its own inference key: of both keys it needs the digests."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/neighbour").write_text("key")
    await started(backend)
    reads = json.loads((backend.folder(ID) / "reads.json").read_text())
    assert reads == {"management-key": True, "../../keys/neighbour": False, f"../../keys/{ID}": False}


async def test_each_start_has_a_key_of_its_own_that_only_we_can_read(backend, tmp_path):
    await started(backend)
    first = {backend.key(ID), backend.management_key(ID)}
    await started(backend, "second")
    assert len(first | {backend.key(ID), backend.management_key(ID)}) == 4
    assert min(map(len, first)) >= 43
    for path in (tmp_path / "keys" / ID, backend.folder(ID) / "management-key"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert (await backend.inspect(ID)).incarnation == "second"


async def test_ending_it_takes_its_engine_too_when_the_leader_is_dead(backend):
    pids = await started(backend)
    os.kill(pids["leader"], signal.SIGKILL)
    await until(lambda: not is_alive(pids["leader"]), "the leader to die")
    assert not (await backend.inspect(ID)).is_alive
    assert is_alive(pids["engine"])
    await backend.end(ID)
    assert not is_alive(pids["engine"])
    assert await backend.inspect(ID) is None


async def test_it_sees_its_own_devices_and_ends_with_their_lease_whoever_is_left(backend):
    pids = await started(backend, devices={"CUDA_VISIBLE_DEVICES": "1,3"}, lease_seconds=3600.0)
    environment = json.loads((backend.folder(ID) / "environment.json").read_text())
    assert environment["CUDA_VISIBLE_DEVICES"] == "1,3"
    await backend.extend(ID, 7200.0)
    await asyncio.sleep(1.5)
    assert (await backend.inspect(ID)).is_alive
    await backend.extend(ID, 0.0)
    await until(lambda: not any(map(is_alive, pids.values())), "its processes to end")


async def test_a_new_start_leaves_nothing_of_the_one_before(backend):
    pids = await started(backend)
    (backend.folder(ID) / "adapters" / "old").mkdir(parents=True)
    await started(backend, "second")
    assert not is_alive(pids["leader"])
    assert not is_alive(pids["engine"])
    assert not (backend.folder(ID) / "adapters").exists()


async def test_a_process_that_has_no_pid_file_yet_is_found_by_its_mark(backend):
    pids = await started(backend)
    (backend.folder(ID) / "pid").unlink()
    assert (await backend.inspect(ID)).is_alive
    await backend.end(ID)
    assert not is_alive(pids["leader"])


async def test_a_recycled_pid_is_not_taken_for_the_replica(backend):
    await started(backend)
    await backend.end(ID)
    own = os.getpid()
    (backend.folder(ID) / "replica.json").write_text(json.dumps({"incarnation": "first", "url": ""}))
    (backend.folder(ID) / "pid").write_text(f"{own} 1\n")
    assert not (await backend.inspect(ID)).is_alive
    await backend.end(ID)
    assert is_alive(own)


async def test_its_log_tail_is_an_error_where_there_is_one(backend):
    await started(backend)
    log = backend.folder(ID) / "log"
    await until(lambda: "memory" in log.read_text(), "the script's word")
    assert await backend.log_tail(ID) == "RuntimeError: out of memory"
    assert await backend.log_tail("never-started") == "it wrote no log"
