"""One real Kafka, Postgres and S3 for the whole test run; a test starts the services that it needs."""

from collections.abc import AsyncIterator, Iterator

import pytest

from deploy.kubernetes.cluster import KubernetesCluster
from deploy.local.errors import MissingPart
from deploy.local.stack import Stack
from deploy.slurm.cluster import SlurmCluster


@pytest.fixture(scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"), tenants=("demo", "other"))
    await stack.up(())
    yield stack
    await stack.down()


@pytest.fixture(autouse=True)
def process_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Where a service within the test's process would have ended it, and why; the test then fails instead."""
    ends: list[str] = []
    monkeypatch.setattr("shared.loops.exit_process", lambda where, error: ends.append(f"{where}: {error!r}"))
    yield ends
    assert ends == []


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm with four idle nodes; tests are skipped where the distribution's packages are not there."""
    try:
        cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    except MissingPart as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A Kubernetes with three ready nodes; tests are skipped where nobody has built its control plane."""
    try:
        cluster = KubernetesCluster(tmp_path_factory.mktemp("kubernetes"))
    except MissingPart as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster
