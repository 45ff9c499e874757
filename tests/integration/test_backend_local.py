"""The engine of one machine keeps the promises of every engine."""

import os
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from schemas.base import DeviceKind
from services.provisioner.backends import local
from services.provisioner.backends.folders import key_env
from services.provisioner.backends.local import LocalBackend
from services.provisioner.backends.protocol import BackendFailed, SpecConflict
from shared.clock import utc_now
from shared.processes.identity import Identity, marked, signal_marked
from tests.chaos.scale import note
from tests.integration.backend_suite import BackendSuite, a_spec
from tests.node_keys import NODE_KEYS
from tests.unit.shared.environments import SECRETS
from tests.waiting import until


class TestLocalBackend(BackendSuite):
    @pytest.fixture
    def restarted(self, tmp_path: Path):
        (tmp_path / "runner.env").write_text(
            "RUNNER_KAFKA_BOOTSTRAP='127.0.0.1:9'\nRUNNER_HOST='elsewhere'\n"
        )
        return lambda: LocalBackend(
            tmp_path / "nodes",
            runner_env_file=tmp_path / "runner.env",
            node_keys=NODE_KEYS,
            logs_retention=DAYS_KEPT,
        )

    @pytest.fixture
    def backend(self, restarted):
        return restarted()

    @pytest.fixture
    def end_abruptly(self):
        async def kill(name: str, index: int) -> None:
            signal_marked(f"RUNNER_NODE_ID={name}-n{index}", signal.SIGKILL)

        return kill

    async def test_a_killed_runner_leaves_its_exit_code(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        runner = next(
            process for process in marked(f"RUNNER_NODE_ID={spec.name}-n0") if _is_runner(process.pid)
        )
        runner.signal_alone(signal.SIGKILL)
        assert (await self.until_ended(backend, spec, 0)).exit_code == 137

    @pytest.mark.parametrize(
        ("device", "visible"), [(DeviceKind.CPU, None), (DeviceKind.CUDA, "3,5")], ids=["CPU", "GPU"]
    )
    async def test_a_runner_gets_its_place_and_devices_and_not_our_secrets(
        self, backend, tmp_path, monkeypatch, device, visible
    ):
        for name in SECRETS:
            monkeypatch.setenv(name, "canary")
        environment = tmp_path / "environment"
        spec = a_spec(
            tmp_path,
            nodes=1,
            devices=((3, 5),),
            device=device,
            argv=("/bin/sh", "-c", f"env > {environment}.draft; sync; mv {environment}.draft {environment}"),
        )
        await backend.start(spec)
        await until(environment.exists)
        variables = dict(line.split("=", 1) for line in environment.read_text().splitlines() if "=" in line)
        assert variables["RUNNER_JOB_ID"] == spec.job_id
        assert (variables["RUNNER_ATTEMPT"], variables["RUNNER_NODE_INDEX"], variables["RUNNER_DEVICES"]) == (
            "1",
            "0",
            "3,5",
        )
        assert variables.get("CUDA_VISIBLE_DEVICES") == visible
        assert variables["RUNNER_KAFKA_BOOTSTRAP"] == "127.0.0.1:9"
        assert variables["RUNNER_WORK_DIR"] == str(tmp_path / "nodes" / spec.name / "0" / "work")
        assert "canary" not in variables.values()
        await backend.stop(spec.name, 0.0)

    async def test_the_pid_file_names_the_leader_of_the_nodes_group(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        pid, start = (tmp_path / "nodes" / spec.name / "0" / "pid").read_text().split()
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
        assert (fields[2], fields[19]) == (pid, start)

    async def test_forgetting_frees_the_work_and_keeps_the_log_out_of_the_way(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        (tmp_path / "nodes" / spec.name / "0" / "work").mkdir()
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        assert not (tmp_path / "nodes" / spec.name).exists()
        [node] = (tmp_path / "nodes" / "forgotten").glob(f"*/{spec.name}/0")
        assert (node / "runner.log").exists()
        assert not (node / "work").exists()
        assert not (node / "key").exists()

    async def test_nodes_that_an_older_release_made_have_no_keys(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        node = tmp_path / "nodes" / spec.name / "1"
        assert key_env(node) == {"RUNNER_NODE_KEY_FILE": str(node / "key")}
        (node / "key").unlink()
        assert key_env(node) == {}
        assert not (await backend.inspect(spec.name)).has_keys

    async def test_a_stop_of_what_is_forgotten_brings_nothing_back(self, backend, spec, tmp_path):
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        await backend.stop(spec.name, 0.0)
        assert await backend.inspect(spec.name) is None
        assert not (tmp_path / "nodes" / spec.name).exists()

    async def test_what_is_forgotten_while_it_is_being_created_does_not_start(
        self, backend, spec, tmp_path, monkeypatch
    ):
        link = os.link

        def forgotten_meanwhile(draft: Path, path: Path) -> None:
            (_day(tmp_path, "2026-11-23") / spec.name).mkdir()
            link(draft, path)

        monkeypatch.setattr(os, "link", forgotten_meanwhile)
        with pytest.raises(SpecConflict, match="was stopped"):
            await backend.start(spec)
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        assert not (tmp_path / "nodes" / spec.name).exists()

    async def test_folders_of_ended_attempts_are_kept_for_their_time(self, backend, spec, tmp_path):
        today = utc_now().date()
        kept, over = (_day(tmp_path, (today - each).isoformat()) for each in (DAYS_KEPT, DAYS_KEPT + DAY))
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        assert (kept.exists(), over.exists()) == (True, False)

    async def test_a_nodes_session_is_ended_before_all_processes_are_searched(
        self, backend, spec, tmp_path, monkeypatch
    ):
        await self.started(backend, spec, tmp_path)
        looks = []
        monkeypatch.setattr(
            "services.provisioner.backends.local.kill_marked",
            lambda mark, *, timeout_seconds: looks.append(list(marked(mark))) or [],
        )
        await backend.end(spec.name, 0)
        [outside] = looks
        leader = int((tmp_path / "nodes" / spec.name / "0" / "pid").read_text().split()[0])
        assert leader not in [process.pid for process in outside]
        monkeypatch.undo()

    async def test_a_node_has_its_grant_until_right_before_it_is_ended(
        self, backend, spec, tmp_path, monkeypatch
    ):
        await self.started(backend, spec, tmp_path)
        grants = [tmp_path / "nodes" / spec.name / str(index) / "grant" for index in range(2)]
        assert [grant.read_text() for grant in grants] == [f"{spec.name}-n0", f"{spec.name}-n1"]
        granted_at_the_end = []

        def survive(identity: Identity, mark: str) -> list[int]:
            granted_at_the_end.append([grant.exists() for grant in grants])
            return [identity.pid]

        monkeypatch.setattr(local, "_kill", survive)
        for call in (backend.end(spec.name, 0), backend.stop(spec.name, 0.0)):
            with pytest.raises(BackendFailed, match="survive SIGKILL"):
                await call
        monkeypatch.undo()
        assert granted_at_the_end == [[False, True], [False, False]]
        note("grants withdrawn before the end of a node", nodes=len(grants))

    async def test_a_runner_that_is_asked_to_end_has_its_grant(self, backend, spec, tmp_path):
        seen = tmp_path / "seen"
        script = f"""trap 'cat "$RUNNER_GRANT_FILE" > {seen}; exit 143' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"""
        spec = replace(spec, nodes=1, argv=("/bin/sh", "-c", script))
        await backend.start(spec)
        await until((tmp_path / "up").exists)
        await backend.stop(spec.name, 30.0)
        assert seen.read_text() == f"{spec.name}-n0"


DAY = timedelta(days=1)
DAYS_KEPT = 30 * DAY


def _day(tmp_path: Path, name: str) -> Path:
    day = tmp_path / "nodes" / "forgotten" / name
    day.mkdir(parents=True, exist_ok=True)
    return day


def _is_runner(pid: int) -> bool:
    command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    parent = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1]
    return b"python" in command[0] and b"launch.py" in Path("/proc", parent, "cmdline").read_bytes()
