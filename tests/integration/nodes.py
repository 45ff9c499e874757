"""Runners of one test, as the provisioner's local backend starts them."""

import io
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.job import JobScheduled
from services.provisioner.backends.local import LocalBackend
from services.provisioner.backends.protocol import AttemptSpec, Member, MemberState
from services.trainer_agent.protocol import REPORTS, Stepped, parse_reports
from shared.processes.identity import marked
from tests.integration.attempts import FAKE_CHILD, REPOSITORY, Attempts
from tests.node_keys import NODE_KEYS
from tests.waiting import until

QUICK_TIMES = {
    "RUNNER_HEARTBEAT_EVERY": "PT0.5S",
    "RUNNER_METRICS_EVERY": "PT0.3S",
    "RUNNER_LOG_EVERY": "PT0.3S",
    "RUNNER_FLUSH_LIMIT": "PT5S",
}


class Nodes:
    def __init__(self, attempts: Attempts, folder: Path) -> None:
        self._attempts = attempts
        self.folder = folder / "nodes"
        env_file = attempts.stack.state.root / "runner.env"
        self.backend = LocalBackend(
            self.folder, runner_env_file=env_file, node_keys=NODE_KEYS, logs_retention=timedelta(days=30)
        )
        self._names: list[str] = []
        self._read: dict[Path, tuple[int, int]] = {}
        """By file of reports, the bytes that were read and the last step in them."""

    async def start(self, scheduled: JobScheduled, *, script: dict | None = None, **env: str) -> None:
        """With the scripted child; `env` is added to the runners' environment."""
        scripted = {
            "RUNNER_CHILD_ARGV": json.dumps([sys.executable, str(FAKE_CHILD), json.dumps(script or {})]),
            **QUICK_TIMES,
        }
        await self.start_real(scheduled, **scripted | env)

    async def start_real(self, scheduled: JobScheduled, **env: str) -> None:
        """With the real training processes, unless `env` says otherwise."""
        spec = AttemptSpec(
            name=layout.attempt_name(scheduled.job_id, scheduled.attempt),
            job_id=scheduled.job_id,
            tenant=scheduled.tenant,
            attempt=scheduled.attempt,
            pool=scheduled.pool,
            nodes=scheduled.nodes,
            devices_per_node=scheduled.devices_per_node,
            argv=(sys.executable, "-m", "services.trainer_agent.runner"),
            env=tuple({"PYTHONPATH": str(REPOSITORY), **env}.items()),
        )
        self._names.append(spec.name)
        await self.backend.start(spec)
        await self._attempts.provision(scheduled)

    async def restart(self, scheduled: JobScheduled, node: int = 0) -> None:
        """Start a dead node's runner again in its old folder, as an engine might that was told not to."""
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        for left in ("pid", "exit"):
            (self.folder / name / str(node) / left).unlink(missing_ok=True)
        spec = json.loads((self.folder / name / "spec.json").read_text())
        spec.pop("digest")
        spec |= {"argv": tuple(spec["argv"]), "env": tuple((key, value) for key, value in spec["env"])}
        await self.backend.start(AttemptSpec(**spec))

    async def until_ended(self, scheduled: JobScheduled, node: int = 0) -> Member:
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)

        async def member() -> Member:
            attempt = await self.backend.inspect(name)
            assert attempt is not None
            return attempt.members[node]

        async def has_ended() -> bool:
            return (await member()).state is MemberState.ENDED

        await until(has_ended)
        return await member()

    def runner_pid(self, scheduled: JobScheduled, node: int = 0) -> int:
        """Of the runner itself, which is neither what launched it nor a part of its child."""
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        children = set(self.child_pids(scheduled, node))
        return next(
            process.pid
            for process in marked(f"RUNNER_NODE_ID={name}-n{node}")
            if process.pid not in children
            and b"launch.py" not in Path("/proc", str(process.pid), "cmdline").read_bytes()
        )

    def child_pids(self, scheduled: JobScheduled, node: int = 0) -> list[int]:
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        return [process.pid for process in marked(f"RUNNER_CHILD_OF={name}-n{node}")]

    def pids(self, scheduled: JobScheduled, node: int = 0) -> list[int]:
        """Of all processes of the node."""
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        return [process.pid for process in marked(f"RUNNER_NODE_ID={name}-n{node}")]

    def grant_file(self, scheduled: JobScheduled, node: int = 0) -> Path:
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        return self.folder / name / str(node) / "grant"

    def steps(self, scheduled: JobScheduled, node: int = 0) -> int:
        """How many the child has done, as its own file says."""
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        path = self.folder / name / str(node) / "work" / REPORTS
        offset, last = self._read.get(path, (0, 0))
        with path.open("rb") if path.exists() else io.BytesIO() as file:
            file.seek(offset)
            reports, size = parse_reports(file.read())
        last = max([last, *(report.step for report in reports if isinstance(report, Stepped))])
        self._read[path] = (offset + size, last)
        return last

    async def clean_up(self) -> None:
        for name in self._names:
            await self.backend.stop(name, 0.0)


@pytest.fixture(scope="module")
async def attempts(stack: Stack) -> AsyncIterator[Attempts]:
    """With the trainer_agent up."""
    await stack.start("trainer_agent")
    await stack.wait_healthy("trainer_agent")
    async with Attempts.on(stack) as attempts:
        yield attempts
    await stack.stop("trainer_agent")


@pytest.fixture
async def nodes(attempts: Attempts, tmp_path: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(attempts, tmp_path)
    yield nodes
    await nodes.clean_up()
