"""The engine of one machine keeps the promises of every engine."""

import signal
from pathlib import Path

import pytest

from services.provisioner.backends.local import LocalBackend
from shared.processes import marked, signal_marked
from tests.integration.backend_suite import BackendSuite, a_spec, until
from tests.unit.shared.environments import SECRETS


class TestLocalBackend(BackendSuite):
    @pytest.fixture
    def restarted(self, tmp_path: Path):
        (tmp_path / "runner.env").write_text("RUNNER_KAFKA_BOOTSTRAP='127.0.0.1:9'\n")
        return lambda: LocalBackend(tmp_path / "nodes", runner_env_file=tmp_path / "runner.env")

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
        runner = next(found for found in marked(f"RUNNER_NODE_ID={spec.name}-n0") if _is_runner(found.pid))
        runner.signal_alone(signal.SIGKILL)
        assert (await self.until_ended(backend, spec, 0)).exit_code == 137

    async def test_a_runner_gets_its_place_and_not_our_secrets(self, backend, tmp_path, monkeypatch):
        for name in SECRETS:
            monkeypatch.setenv(name, "canary")
        environment = tmp_path / "environment"
        spec = a_spec(
            tmp_path,
            nodes=1,
            argv=("/bin/sh", "-c", f"env > {environment}.draft; sync; mv {environment}.draft {environment}"),
        )
        await backend.create(spec)
        await until(environment.exists)
        found = dict(line.split("=", 1) for line in environment.read_text().splitlines() if "=" in line)
        assert found["RUNNER_JOB_ID"] == spec.job_id
        assert (found["RUNNER_ATTEMPT"], found["RUNNER_NODE_INDEX"], found["RUNNER_DEVICES"]) == (
            "1",
            "0",
            "1",
        )
        assert found["RUNNER_KAFKA_BOOTSTRAP"] == "127.0.0.1:9"
        assert found["RUNNER_WORK_DIR"] == str(tmp_path / "nodes" / spec.name / "0" / "work")
        assert "canary" not in found.values()
        await backend.stop(spec.name, 0.0)

    async def test_the_pid_file_names_the_leader_of_the_nodes_group(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        pid, start = (tmp_path / "nodes" / spec.name / "0" / "pid").read_text().split()
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
        assert (fields[2], fields[19]) == (pid, start)

    async def test_forgetting_frees_the_work_and_keeps_the_log(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        node = tmp_path / "nodes" / spec.name / "0"
        (node / "work").mkdir()
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        assert not (node / "work").exists()
        assert (node / "runner.log").exists()


def _is_runner(pid: int) -> bool:
    command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    parent = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1]
    return b"python" in command[0] and b"sh" in Path("/proc", parent, "cmdline").read_bytes()
