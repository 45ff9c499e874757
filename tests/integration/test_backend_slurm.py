"""A real Slurm keeps the promises of every engine, and what it does beyond them is understood."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.slurm.cluster import NODES, SlurmCluster
from services.provisioner.backends.protocol import (
    Backend,
    BackendFailed,
    Cause,
    MemberState,
    NoCapacity,
)
from services.provisioner.backends.slurm import commands, slurm_backends
from services.provisioner.backends.slurm.jobs import comment_of
from services.provisioner.backends.slurm.script import batch_script
from services.provisioner.settings import SlurmPool
from shared.clock import utc_now
from shared.processes.identity import marked, signal_marked
from tests.integration.backend_suite import BackendSuite, a_spec
from tests.integration.slurm import blocked, idle, running_jobs
from tests.node_keys import NODE_KEYS
from tests.unit.shared.environments import SECRETS
from tests.waiting import until

FENCED_AFTER_SECONDS = 5.0


def a_backend(slurm: SlurmCluster, tmp_path: Path, **changes: object) -> Backend:
    env_file = tmp_path / "runner.env"
    env_file.write_text("RUNNER_KAFKA_PASSWORD='in the file'\nGLOO_SOCKET_IFNAME=wg0\n")
    pool = SlurmPool(
        folder=tmp_path / "nodes",
        partition="spot",
        conf=slurm.conf,
        flags=("--exclusive",),
        fenced_after_seconds=FENCED_AFTER_SECONDS,
    ).model_copy(update=changes)
    retention = timedelta(days=30)
    backends = slurm_backends(
        {"spot": pool}, env_file=env_file, node_keys=NODE_KEYS, logs_retention=retention
    )
    return backends["spot"]


class TestSlurmBackend(BackendSuite):
    ASKS_EVERY = 0.25

    @pytest.fixture
    def restarted(self, slurm: SlurmCluster, tmp_path: Path) -> Callable[[], Backend]:
        return lambda: a_backend(slurm, tmp_path)

    @pytest.fixture
    def backend(self, restarted):
        return restarted()

    @pytest.fixture
    def end_abruptly(self):
        async def kill(name: str, index: int) -> None:
            signal_marked(f"RUNNER_NODE_ID={name}-n{index}", signal.SIGKILL)

        return kill

    async def test_a_job_that_waits_is_queued_and_then_runs(self, backend, spec, slurm, tmp_path):
        with blocked(slurm, nodes=3):
            await backend.start(spec)
            await self.until_shown(backend, spec, lambda status: status.waiting_for == "Resources")
            status = await backend.inspect(spec.name)
            assert [member.state for member in status.members] == [MemberState.QUEUED] * 2
            assert (status.is_queued, status.refusal) == (True, "")
            assert self.words(tmp_path, 0) == []
        await until(lambda: "started" in self.words(tmp_path, 1))
        assert not (await backend.inspect(spec.name)).is_queued

    async def test_a_queued_attempt_is_stopped_before_it_runs(self, backend, spec, slurm, tmp_path):
        with blocked(slurm, nodes=3):
            await backend.start(spec)
            await backend.stop(spec.name, 30.0)
            assert running_jobs(slurm, spec.name) == []
        assert self.words(tmp_path, 0) == []

    async def test_what_is_larger_than_the_partition_is_refused_by_its_queue(self, backend, spec, tmp_path):
        big = replace(spec, nodes=NODES + 1)
        await backend.start(big)
        status = await self.until_shown(backend, big, lambda status: bool(status.refusal))
        assert status.refusal == "Slurm says PartitionNodeLimit"

    async def test_what_sbatch_refuses_is_named_with_its_words(self, slurm, tmp_path):
        backend = a_backend(slurm, tmp_path, partition="moon")
        with pytest.raises(BackendFailed, match=r"`sbatch .*--partition=moon.*invalid partition") as failed:
            await backend.start(a_spec(tmp_path))
        assert "digest" not in str(failed.value)

    async def test_no_room_for_another_job_is_no_capacity(self, slurm, tmp_path, monkeypatch):
        monkeypatch.setattr(commands, "FULL", ("invalid partition",))
        with pytest.raises(NoCapacity, match="sbatch"):
            await a_backend(slurm, tmp_path, partition="moon").start(a_spec(tmp_path))

    async def test_a_job_of_the_same_name_does_not_run_beside_it(self, backend, spec, slurm, tmp_path):
        """As when the provisioner dies between sbatch and its record, and squeue does not answer in time."""
        await self.started(backend, spec, tmp_path)
        root = tmp_path / "nodes" / spec.name
        script = root / "second.sh"
        script.write_text(batch_script(spec, root, ["false"], ()))
        comment = comment_of(str(tmp_path / "nodes"), spec.digest)
        slurm.run(
            *("sbatch", f"--job-name={spec.name}", f"--comment={comment}", "--nodes=2"),
            *(f"--output={root}/second.out", str(script)),
        )
        await until((root / "again").exists)
        assert [self.words(tmp_path, index).count("started") for index in range(2)] == [1, 1]
        status = await backend.inspect(spec.name)
        assert [member.state for member in status.members] == [MemberState.RUNNING] * 2
        await backend.stop(spec.name, 0.0)
        await until(lambda: running_jobs(slurm, spec.name) == [])

    async def test_a_preemption_is_a_notice_and_then_the_end(self, backend, spec, slurm, tmp_path):
        spec = replace(spec, argv=(*spec.argv[:3], "ignore", str(tmp_path)))
        await self.started(backend, spec, tmp_path)
        with blocked(slurm, nodes=NODES, partition="ondemand"):
            status = await self.until_shown(
                backend, spec, lambda status: status.members[0].notice_source == "preemption"
            )
            assert all(member.notice_deadline is not None for member in status.members)
            await until(lambda: "term" in self.words(tmp_path, 0) and "term" in self.words(tmp_path, 1))
            member = await self.until_ended(backend, spec, 1)
            assert (member.exit_code, member.cause) == (None, Cause.PREEMPTED)

    async def test_the_end_of_a_time_limit_is_a_notice(self, slurm, spec, tmp_path):
        """Slurm signals at the earliest half a minute after the start: before that, a runner would end at once."""
        backend = a_backend(slurm, tmp_path, flags=("--exclusive", "--time=2"))
        spec = replace(spec, grace_seconds=59.0, argv=(*spec.argv[:3], "ignore", str(tmp_path)))
        await self.started(backend, spec, tmp_path)
        status = await self.until_shown(backend, spec, lambda status: bool(status.members[0].notice_source))
        member = status.members[0]
        assert (member.state, member.notice_source) == (MemberState.RUNNING, "time limit")
        left = member.notice_deadline - utc_now()
        assert timedelta(seconds=spec.grace_seconds) < left <= timedelta(minutes=2)

    async def test_a_drained_machine_is_a_notice_that_ends_nothing(self, backend, spec, slurm, tmp_path):
        await self.started(backend, spec, tmp_path)
        machine = (await self.member(backend, spec, 1)).host
        slurm.run("scontrol", "update", f"NodeName={machine}", "State=DRAIN", "Reason=test")
        try:
            status = await backend.inspect(spec.name)
            assert [member.notice_source for member in status.members] == ["", "drain"]
            assert status.members[1].state is MemberState.RUNNING
            deadline = utc_now() + timedelta(seconds=30)
            await backend.notify(spec.name, 1, deadline)
            member = await self.member(backend, spec, 1)
            assert (member.notice_deadline, member.notice_source) == (deadline, "")
        finally:
            slurm.run("scontrol", "update", f"NodeName={machine}", "State=RESUME")

    async def test_a_drained_machine_takes_no_work(self, backend, slurm, tmp_path):
        assert await backend.machines("spot") == {*slurm.nodes}
        slurm.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
        try:
            assert await backend.machines("spot") == {*slurm.nodes} - {"n3"}
        finally:
            slurm.run("scontrol", "update", "NodeName=n3", "State=RESUME")
        assert await a_backend(slurm, tmp_path, partition="moon").machines("spot") == frozenset()

    async def test_an_excluded_machine_is_not_used(self, backend, spec, slurm, tmp_path):
        spec = replace(spec, excluded=("n1", "n3"))
        await self.started(backend, spec, tmp_path)
        status = await backend.inspect(spec.name)
        assert [member.host for member in status.members] == ["n2", "n4"]

    async def test_a_lost_machine_is_blamed_and_its_runner_is_fenced(self, backend, spec, slurm, tmp_path):
        await self.started(backend, spec, tmp_path)
        lost = (await self.member(backend, spec, 0)).host
        slurm.kill(lost)
        try:
            ended = await self.until_ended(backend, spec, 0, seconds=60)
            assert (ended.exit_code, ended.cause, ended.host) == (None, Cause.NODE_LOST, lost)
            assert ended.has_lost_machine
            peer = await self.until_ended(backend, spec, 1)
            assert peer.cause in {Cause.CANCELLED, Cause.EXITED}
            assert not peer.has_lost_machine
            assert list(marked(f"RUNNER_NODE_ID={spec.name}-n0"))
            await backend.stop(spec.name, 0.0)
            assert list(marked(f"RUNNER_NODE_ID={spec.name}-n0")) == []
        finally:
            slurm.start_node(lost)
            await until(lambda: idle(slurm) == set(slurm.nodes), every=self.ASKS_EVERY)

    async def test_a_controller_that_died_is_an_error_and_then_nothing_is_lost(
        self, backend, spec, slurm, tmp_path, monkeypatch
    ):
        """Of a controller that has saved the job: one that has not forgets it and kills it."""
        await self.started(backend, spec, tmp_path)
        await until(lambda: spec.name.encode() in (slurm.conf.parent / "state/job_state").read_bytes())
        slurm.kill("slurmctld")
        try:
            with monkeypatch.context() as patch:
                patch.setattr(commands, "COMMAND_SECONDS", 0.5)
                with pytest.raises(BackendFailed, match="squeue"):
                    await backend.inspect(spec.name)
        finally:
            slurm.start_controller()

        async def is_known() -> bool:
            try:
                status = await backend.inspect(spec.name)
            except BackendFailed:
                return False
            return [member.state for member in status.members] == [MemberState.RUNNING] * 2

        await until(is_known, every=self.ASKS_EVERY)
        await backend.stop(spec.name, 30.0)
        assert [self.words(tmp_path, index).count("started") for index in range(2)] == [1, 1]
        assert (await self.member(backend, spec, 0)).exit_code == 143

    async def test_a_job_that_nobody_remembers_is_unknown(self, backend, spec, slurm, tmp_path, monkeypatch):
        await self.started(backend, spec, tmp_path)
        monkeypatch.setattr("services.provisioner.backends.slurm.backend.folder_of", lambda comment: "")
        assert (await self.member(backend, spec, 0)).cause is Cause.UNKNOWN

    async def test_a_job_whose_folder_is_gone_is_an_orphan(self, backend, spec, slurm, tmp_path):
        await self.started(backend, spec, tmp_path)
        shutil.rmtree(tmp_path / "nodes" / spec.name)
        assert spec.name in [status.name for status in await backend.list_owned()]
        await backend.stop(spec.name, 0.0)
        await until(lambda: running_jobs(slurm, spec.name) == [], every=self.ASKS_EVERY)

    async def test_the_cluster_gets_no_secret(self, slurm, spec, tmp_path, monkeypatch):
        for name in SECRETS:
            monkeypatch.setenv(name, "canary")
        backend = a_backend(slurm, tmp_path)
        environment = tmp_path / "environment"
        script = f"env > {environment}.draft; mv {environment}.draft {environment}"
        await backend.start(replace(spec, nodes=1, argv=("/bin/sh", "-c", script)))
        await until(environment.exists)
        variables = dict(line.split("=", 1) for line in environment.read_text().splitlines() if "=" in line)
        assert "canary" not in variables.values()
        assert variables["RUNNER_KAFKA_PASSWORD"] == "in the file"
        assert variables["GLOO_SOCKET_IFNAME"] == "wg0"
        assert variables["RUNNER_HOST"] == "127.0.0.1"
        job_id = int((tmp_path / "nodes" / spec.name / "job").read_text())
        kept = list((slurm.conf.parent / "state").glob(f"hash.*/job.{job_id}/*"))
        assert {path.name for path in kept} == {"environment", "script"}
        content = b"".join(path.read_bytes() for path in kept)
        content += slurm.run("scontrol", "show", "job", str(job_id)).encode()
        assert b"canary" not in content
        assert b"in the file" not in content
        key = NODE_KEYS.private(spec.name, 0)
        assert key.encode() not in content
        assert key not in variables.values()
        assert Path(variables["RUNNER_NODE_KEY_FILE"]).read_text() == key
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        assert not any(key in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
