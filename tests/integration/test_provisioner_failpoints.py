"""A provisioner that dies before it creates nodes and after it released them: they are created and told of once."""

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from deploy.local.stack import Stack
from schemas.node import NodeLost, NodesProvisioned, NodesReleased, PoolCapacityChanged
from services.provisioner.node_keys import NodeKeys
from tests.integration.attempts import Attempts
from tests.integration.kills import alive, killed_at
from tests.integration.provisioning import provisioner_env_of
from tests.integration.test_provisioner import POOLS, name_of, processes_of, training

pytestmark = [pytest.mark.stack, pytest.mark.crash_matrix]


@pytest.fixture(scope="module")
def env(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return provisioner_env_of(stack, tmp_path_factory.mktemp("provisioner"), POOLS)


@pytest.fixture(scope="module")
async def attempts(stack: Stack) -> AsyncIterator[Attempts]:
    async with Attempts.on(stack, pool="test") as attempts:
        await stack.start("trainer_agent")
        await stack.wait_healthy("trainer_agent")
        yield attempts
        await stack.stop("trainer_agent")
        await stack.stop("provisioner")


async def test_nodes_are_created_and_released_once(stack, attempts, env):
    async with killed_at(stack, "provisioner", "provider.create.before", env=env):
        scheduled = await attempts.schedule()
    assert processes_of(scheduled) == []
    await alive(stack, "provisioner", env=env)
    await training(attempts, scheduled)
    async with killed_at(stack, "provisioner", "provider.delete.after", env=env):
        await attempts.stop(scheduled, seconds=1)
    assert processes_of(scheduled) == []
    assert attempts.heard(scheduled.job_id, NodesReleased) == []
    free = attempts.heard("test", PoolCapacityChanged)[-1].free
    await alive(stack, "provisioner", env=env)
    [node] = (await attempts.until(scheduled.job_id, NodesReleased)).nodes
    assert node.released_at > node.allocated_at
    await attempts.until("test", PoolCapacityChanged, free=free + 1)
    assert len(attempts.heard(scheduled.job_id, NodesProvisioned)) == 1
    assert len(attempts.heard(scheduled.job_id, NodesReleased)) == 1
    assert attempts.heard(scheduled.job_id, NodeLost) == []


async def test_one_that_was_started_again_announces_the_keys_that_its_nodes_have(stack, attempts, env):
    """What they report is signed with what the process before gave them, or no training would begin."""
    async with killed_at(stack, "provisioner", "provider.create.after", env=env):
        scheduled = await attempts.schedule()
    assert processes_of(scheduled)
    assert attempts.heard(scheduled.job_id, NodesProvisioned) == []
    await alive(stack, "provisioner", env=env)
    [node] = (await training(attempts, scheduled)).nodes
    keys = NodeKeys(SecretStr(stack.state.secret("node-keys")))
    assert node.public_key == keys.public(name_of(scheduled), 0)
    await attempts.stop(scheduled, seconds=1)
    [released] = (await attempts.until(scheduled.job_id, NodesReleased)).nodes
    assert released.public_key == node.public_key
