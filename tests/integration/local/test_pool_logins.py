"""Pools whose nodes have a login of their own to Kafka: it may do what the login of all may, and ends alone."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiokafka.errors import KafkaError

from deploy.bootstrap import kafka as bootstrap
from deploy.bootstrap.rights import RUNNER, kafka_rights, pool_user
from deploy.bootstrap.site import Site
from deploy.local.site import site as local_site
from deploy.local.stack import Stack
from schemas.rights import Right
from shared.messaging.administration import ClientQuotas, administrator, quotas_of, replace_rights
from tests.integration.local.test_matrices import kafka_rights_of

pytestmark = pytest.mark.stack

QUOTAS = ClientQuotas(producer_byte_rate=1_000_000, consumer_byte_rate=16_000_000)
GPU, SLURM = map(pool_user, ("gpu", "slurm"))

SetUp = Callable[..., Awaitable[Site]]


@pytest.fixture
async def set_up(stack: Stack) -> AsyncIterator[SetUp]:
    """Run bootstrap again, with logins for these pools. In the end there are none, as before."""

    async def run(*pools: str, **changes: object) -> Site:
        changed = replace(local_site(stack.state), runner_pools=pools, runner_quotas=QUOTAS, **changes)
        await bootstrap.set_up(changed, stack.tenants)
        return changed

    yield run
    await run(former_runners=False)


async def is_let_in(stack: Stack, user: str, password: str) -> bool:
    try:
        async with administrator(stack.kafka_bootstrap, user, password):
            return True
    except KafkaError:
        return False


async def rights_of(stack: Stack, user: str) -> set[tuple[str, str]]:
    return {(operation, what) for _, operation, what in await kafka_rights_of(stack, user)}


READS_DIRECTIVES = ("read", "agent.directives")


async def test_nobodys_login_reads_directives_but_one_that_an_older_release_gave_the_right_to(stack, set_up):
    await set_up("gpu", "slurm")
    assert READS_DIRECTIVES not in await rights_of(stack, RUNNER) | await rights_of(stack, GPU)
    async with bootstrap.administrator(local_site(stack.state)) as admin:
        pools = ("gpu", "slurm")
        former = {Right(user, "read", "topic", "agent.directives") for user in (RUNNER, GPU)}
        rights = {*kafka_rights(stack.tenants, pools), *former}
        await replace_rights(admin, rights, owns=bootstrap.owned_rights(stack.tenants, pools))
    await set_up("gpu", "slurm")
    for user in (RUNNER, GPU):
        assert READS_DIRECTIVES in await rights_of(stack, user), "its nodes of that release go on"
    assert READS_DIRECTIVES not in await rights_of(stack, SLURM), "a pool that is new has none of them"
    await set_up("gpu", "slurm", former_runners=False)
    for user in (RUNNER, GPU, SLURM):
        assert READS_DIRECTIVES not in await rights_of(stack, user)
    await set_up("gpu", "slurm")
    assert READS_DIRECTIVES not in await rights_of(stack, RUNNER), "what was taken does not come back"


async def test_may_do_what_the_login_of_all_may_and_no_more(stack, set_up):
    await set_up("gpu", "slurm")
    expected = await rights_of(stack, RUNNER)
    assert ("write", "agent.reports") in expected
    assert await rights_of(stack, GPU) == await rights_of(stack, SLURM) == expected


async def test_a_pool_that_leaves_the_list_is_out_and_the_others_stay(stack, set_up):
    await set_up("gpu", "slurm")
    await set_up("slurm")
    assert await rights_of(stack, GPU) == set()
    assert ("write", "agent.reports") in await rights_of(stack, SLURM) & await rights_of(stack, RUNNER)


async def test_the_password_of_one_changes_alone(stack, set_up):
    await set_up("gpu", "slurm")
    before = local_site(stack.state).secret
    assert await is_let_in(stack, GPU, before(f"kafka:{GPU}"))
    await set_up("gpu", "slurm", secret=lambda name: "another" if name == f"kafka:{GPU}" else before(name))
    assert not await is_let_in(stack, GPU, before(f"kafka:{GPU}"))
    assert await is_let_in(stack, GPU, "another")
    for user in (SLURM, RUNNER):
        assert await is_let_in(stack, user, before(f"kafka:{user}"))


async def test_has_quotas_of_its_own(stack, set_up):
    site = await set_up("gpu")
    async with bootstrap.administrator(site) as admin:
        assert await quotas_of(admin, [GPU, RUNNER]) == {GPU: QUOTAS, RUNNER: ClientQuotas()}
