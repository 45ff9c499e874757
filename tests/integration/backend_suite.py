"""What every engine must do, as tests. An engine's own file gives a subclass with three fixtures:

backend          a Backend with nothing in it
restarted        a function that gives a new Backend on the same engine, as after a restart of the provisioner
end_abruptly     a function (name, index) that ends the node's runner as kill -9 or a power cut would
"""

import asyncio
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    Backend,
    Cause,
    Member,
    MemberState,
    SpecConflict,
)
from tests.node_keys import NODE_KEYS
from tests.waiting import PATIENCE_SECONDS, until

FAKE_RUNNER = """
import os, signal, sys, time
from pathlib import Path

on_term, state = sys.argv[1], Path(sys.argv[2])

def note(word):
    with (state / f"node-{os.environ['RUNNER_NODE_INDEX']}").open("a") as file:
        print(word, file=file)

def ended(*_):
    note("term")
    if on_term != "ignore":
        sys.exit(int(on_term))

signal.signal(signal.SIGTERM, ended)
if os.fork() == 0:
    os.setsid()  # as torchrun's workers do
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(f"child {os.getpid()}")
    time.sleep(600)
    os._exit(0)
key = Path(os.environ["RUNNER_NODE_KEY_FILE"])
note(f"key {key} {key.read_text()}")
note(f"host {os.environ['RUNNER_HOST']}")
note("started")
while True:
    time.sleep(600)
"""


def a_spec(folder: Path, *, on_term: str = "143", **changes: object) -> AttemptSpec:
    """A gang of two whose runners do on SIGTERM what is said: exit with a code, or `ignore`."""
    job_id = f"ftjob-{uuid4().hex[:8]}"
    spec = AttemptSpec(
        name=f"a-{job_id}-e1",
        job_id=job_id,
        tenant="demo",
        attempt=1,
        pool="spot",
        nodes=2,
        devices_per_node=1,
        argv=(sys.executable, "-c", FAKE_RUNNER, on_term, str(folder)),
    )
    return replace(spec, **changes)


def files_near(folder: Path) -> list[Path]:
    """Beside the folder too, but not within its neighbours: servers of the test run work there."""
    return sorted((*folder.rglob("*"), *folder.parent.iterdir()))


class BackendSuite:
    ASKS_EVERY = 0.02
    """Seconds between two questions to the backend."""

    @pytest.fixture
    async def spec(self, backend: Backend, tmp_path: Path):
        """Of a gang whose end is cleaned up; its runners write words to files in `tmp_path`."""
        spec = a_spec(tmp_path)
        yield spec
        await backend.stop(spec.name, 0.0)

    def words(self, tmp_path: Path, index: int) -> list[str]:
        file = tmp_path / f"node-{index}"
        return file.read_text().split("\n") if file.exists() else []

    async def started(self, backend: Backend, spec: AttemptSpec, tmp_path: Path) -> None:
        await backend.start(spec)
        for index in range(spec.nodes):
            await until(lambda index=index: "started" in self.words(tmp_path, index))

    async def member(self, backend: Backend, spec: AttemptSpec, index: int) -> Member:
        attempt = await backend.inspect(spec.name)
        assert attempt is not None
        return attempt.members[index]

    async def until_ended(
        self, backend: Backend, spec: AttemptSpec, index: int, *, seconds: float = PATIENCE_SECONDS
    ) -> Member:
        async def has_ended() -> bool:
            return (await self.member(backend, spec, index)).state is MemberState.ENDED

        await until(has_ended, seconds=seconds, every=self.ASKS_EVERY)
        return await self.member(backend, spec, index)

    async def until_shown(
        self, backend: Backend, spec: AttemptSpec, condition: Callable[[AttemptStatus], bool]
    ) -> AttemptStatus:
        seen: list[AttemptStatus] = []

        async def is_shown() -> bool:
            status = await backend.inspect(spec.name)
            if status is not None and condition(status):
                seen.append(status)
            return bool(seen)

        await until(is_shown, every=self.ASKS_EVERY)
        return seen[0]

    async def test_creates_the_whole_gang(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        attempt = await backend.inspect(spec.name)
        assert [member.state for member in attempt.members] == [MemberState.RUNNING] * 2
        assert all(member.host for member in attempt.members)
        assert not attempt.is_queued
        assert spec.name in [status.name for status in await backend.list_owned()]

    async def test_nodes_run_on_machines_that_take_work(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        hosts = {member.host for member in (await backend.inspect(spec.name)).members}
        assert hosts <= await backend.machines(spec.pool)

    async def test_each_node_has_its_own_key_which_no_other_user_can_read(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        assert (await backend.inspect(spec.name)).has_keys
        for index in range(2):
            [word] = [word for word in self.words(tmp_path, index) if word.startswith("key ")]
            _, file, key = word.split()
            assert key == NODE_KEYS.private(spec.name, index)
            assert stat.S_IMODE(Path(file).stat().st_mode) & 0o077 == 0
            assert stat.S_IMODE(Path(file).parent.stat().st_mode) & 0o077 == 0

    async def test_each_node_is_where_the_backend_has_it(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        status = await self.until_shown(backend, spec, lambda status: bool(status.addresses))
        for index, address in enumerate(status.addresses):
            assert f"host {address}" in self.words(tmp_path, index)

    async def test_creating_often_is_creating_once(self, backend, spec, tmp_path):
        await asyncio.gather(*(backend.start(spec) for _ in range(8)))
        await self.started(backend, spec, tmp_path)
        assert [self.words(tmp_path, index).count("started") for index in range(2)] == [1, 1]

    async def test_a_name_has_one_specification(self, backend, spec):
        await backend.start(spec)
        with pytest.raises(SpecConflict):
            await backend.start(replace(spec, nodes=3))

    @pytest.mark.parametrize(
        "name", ["..", "../evil", "a/../../evil", "/proc/evil", "a-é-e1", "A-X-E1", "a-\0", "", "a" * 53]
    )
    async def test_a_name_that_is_no_label_is_refused(self, backend, tmp_path, name):
        before = files_near(tmp_path)
        for call in (
            backend.start(a_spec(tmp_path, name=name)),
            backend.inspect(name),
            backend.notify(name, 0, datetime.now(UTC)),
            backend.stop(name, 0.0),
            backend.forget(name),
        ):
            with pytest.raises(SpecConflict, match="expected a DNS label"):
                await call
        assert files_near(tmp_path) == before

    @pytest.mark.parametrize("exit_code", [0, 143])
    async def test_a_stop_asks_first_and_the_runner_says_how_it_ended(
        self, backend, spec, tmp_path, exit_code
    ):
        spec = replace(spec, argv=(*spec.argv[:3], str(exit_code), str(tmp_path)))
        await self.started(backend, spec, tmp_path)
        await backend.stop(spec.name, 30.0)
        ended = await self.until_ended(backend, spec, 0)
        assert (ended.exit_code, ended.cause) == (exit_code, Cause.EXITED)
        assert "term" in self.words(tmp_path, 0)

    async def test_a_stop_that_is_ignored_ends_the_node(self, backend, spec, tmp_path):
        spec = replace(spec, argv=(*spec.argv[:3], "ignore", str(tmp_path)))
        await self.started(backend, spec, tmp_path)
        await backend.stop(spec.name, 0.5)
        ended = await self.until_ended(backend, spec, 0)
        assert ended.exit_code is None
        assert ended.cause is not None
        assert "term" in self.words(tmp_path, 0)

    async def test_a_stop_ends_what_a_runner_left_behind(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)

        def children() -> list[str]:
            return [word.split()[1] for word in self.words(tmp_path, 0) if word.startswith("child")]

        await until(lambda: bool(children()))
        await backend.stop(spec.name, 30.0)
        assert not Path("/proc", children()[0], "exe").exists()

    async def test_stopping_twice_is_stopping_once(self, backend, spec):
        await backend.start(spec)
        await backend.stop(spec.name, 0.0)
        await backend.stop(spec.name, 0.0)

    async def test_nothing_is_created_after_a_stop(self, backend, spec, tmp_path):
        await backend.stop(spec.name, 0.0)
        with pytest.raises(SpecConflict):
            await backend.start(spec)
        assert self.words(tmp_path, 0) == []

    async def test_a_notice_reaches_the_runner_and_ends_nothing(self, backend, spec, tmp_path):
        spec = replace(spec, argv=(*spec.argv[:3], "ignore", str(tmp_path)))
        await self.started(backend, spec, tmp_path)
        deadline = datetime.now(UTC) + timedelta(seconds=30)
        await backend.notify(spec.name, 1, deadline)
        await until(lambda: "term" in self.words(tmp_path, 1))
        member = await self.member(backend, spec, 1)
        assert (member.state, member.notice_deadline) == (MemberState.RUNNING, deadline)
        assert "term" not in self.words(tmp_path, 0)

    async def test_ending_one_node_leaves_the_other(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        await backend.end(spec.name, 1)
        await self.until_ended(backend, spec, 1)
        assert (await self.member(backend, spec, 0)).state is MemberState.RUNNING

    async def test_a_node_that_died_is_seen_as_lost(self, backend, end_abruptly, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        await end_abruptly(spec.name, 0)
        assert (await self.until_ended(backend, spec, 0)).exit_code not in {0, 143}

    async def test_a_restarted_provisioner_sees_its_nodes_again(
        self, backend, restarted, end_abruptly, spec, tmp_path
    ):
        await self.started(backend, spec, tmp_path)
        again = restarted()
        assert await again.inspect(spec.name) == await backend.inspect(spec.name)
        await again.start(spec)
        assert self.words(tmp_path, 0).count("started") == 1
        await end_abruptly(spec.name, 0)
        assert (await self.until_ended(again, spec, 0)).exit_code not in {0, 143}

    async def test_the_watch_begins_with_all_and_continues_with_changes(self, backend, spec, tmp_path):
        await self.started(backend, spec, tmp_path)
        seen: list[AttemptStatus] = []

        async def watch() -> None:
            async for status in backend.watch():
                seen.append(status)  # noqa: PERF401 - the watch has no end

        watching = asyncio.create_task(watch())
        await until(lambda: any(status.name == spec.name for status in seen))
        await backend.end(spec.name, 0)
        await until(lambda: any(member.state is MemberState.ENDED for one in seen for member in one.members))
        watching.cancel()

    async def test_what_is_forgotten_is_not_listed_and_not_created_again(self, backend, spec):
        await backend.start(spec)
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        await backend.forget(spec.name)
        assert spec.name not in [status.name for status in await backend.list_owned()]
        with pytest.raises(SpecConflict):
            await backend.start(spec)

    async def test_an_unknown_name_is_not_observed(self, backend):
        assert await backend.inspect("a-ftjob-nobody-e1") is None
