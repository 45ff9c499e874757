"""Who has the runners' login to Kafka and not a node's key: nothing that it reports or measures counts anywhere."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import FailureClass, Message
from schemas.envelope import SIGNATURE
from schemas.job import JobFailed, JobScheduled
from schemas.training import (
    RunnerHeartbeat,
    RunnerStarted,
    RunnerStopped,
    StartTraining,
    StepMetrics,
    StepsRecorded,
    TrainingFailed,
    TrainingStarted,
)
from shared.clock import utc_now
from shared.record import Record
from shared.signatures import PrivateKey
from tests.integration.attempts import Attempts
from tests.node_keys import signer_of
from tests.waiting import until

pytestmark = pytest.mark.stack

SERVICES = ("trainer_agent", "tracker", "gateway")
STRANGER = PrivateKey("f" * 64)

Forge = Callable[["Forger", Message], Record]


class Forger:
    """Has the login, hears what nodes send, and makes records of it."""

    def __init__(self, attempts: Attempts, scheduled: JobScheduled) -> None:
        self.attempts = attempts
        self.scheduled = scheduled
        self.job_id = scheduled.job_id

    def record(self, message: Message, signer: PrivateKey | None) -> Record:
        return self.attempts.voices.record("runner", message, signer=signer)

    async def send(self, record: Record) -> str:
        await self.attempts.voices.send("runner", record)
        return dict(record.headers)["ce_id"].decode()

    async def say(self, message: Message, *, node: int = 0) -> str:
        """Send it as the node does."""
        return await self.send(self.record(message, signer_of(self.job_id, node=node)))


def unsigned(forger: Forger, message: Message) -> Record:
    return forger.record(message, None)


def signed_with_a_key_of_its_own(forger: Forger, message: Message) -> Record:
    return forger.record(message, STRANGER)


def signed_by_another_node(forger: Forger, message: Message) -> Record:
    return forger.record(message, signer_of(forger.job_id, node=1))


def signed_in_an_older_attempt(forger: Forger, message: Message) -> Record:
    """With the key that node 0 had then, and has given away since."""
    return forger.record(message, signer_of(forger.job_id, attempt=9))


def with_a_changed_header(forger: Forger, message: Message) -> Record:
    """A node's own record, as another event: the one that came before would be taken for a duplicate."""
    record = forger.record(message, signer_of(forger.job_id))
    other = dict(forger.record(message, None).headers)["ce_id"]
    return replace(record, headers=tuple((dict(record.headers) | {"ce_id": other}).items()))


def with_a_changed_payload(forger: Forger, message: Message) -> Record:
    """Equal as a message: other bytes."""
    record = forger.record(message, signer_of(forger.job_id))
    return replace(record, value=record.value + b" ")


def with_the_signature_of_another_record(forger: Forger, message: Message) -> Record:
    signature = dict(forger.record(message, signer_of(forger.job_id)).headers)[SIGNATURE]
    record = forger.record(message, None)
    return replace(record, headers=(*record.headers, (SIGNATURE, signature)))


FORGERIES: tuple[Forge, ...] = (
    unsigned,
    signed_with_a_key_of_its_own,
    signed_by_another_node,
    signed_in_an_older_attempt,
    with_a_changed_header,
    with_a_changed_payload,
    with_the_signature_of_another_record,
)
forgeries = pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)


@pytest.fixture(scope="module")
async def attempts(stack: Stack) -> AsyncIterator[Attempts]:
    for service in SERVICES:
        await stack.start(service)
    for service in SERVICES:
        await stack.wait_healthy(service)
    async with Attempts.on(stack) as attempts:
        yield attempts
    for service in SERVICES:
        await stack.stop(service)


@pytest.fixture(scope="module")
async def db(attempts: Attempts) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(attempts.stack.postgres_dsn("operator"))
    yield conn
    await conn.close()


@pytest.fixture
async def forger(attempts: Attempts) -> Forger:
    """Before the attempt of two nodes that it is after has them."""
    return Forger(attempts, await attempts.schedule(nodes=2))


def who(scheduled: JobScheduled, *, node: int = 0) -> dict[str, object]:
    of_job = {"job_id": scheduled.job_id, "tenant": scheduled.tenant, "attempt": scheduled.attempt}
    return of_job | {"node_index": node}


def a_start(scheduled: JobScheduled, *, node: int = 0, host: str = "10.0.0.1") -> RunnerStarted:
    node_id = f"a-{scheduled.job_id}-e{scheduled.attempt}-n{node}"
    return RunnerStarted(**who(scheduled, node=node), host=host, port=4000, node_id=node_id)


def a_failure(scheduled: JobScheduled) -> RunnerStopped:
    return RunnerStopped(**who(scheduled), outcome="failed", message="forged", last_step=1)


def a_beat(scheduled: JobScheduled, step: int) -> RunnerHeartbeat:
    return RunnerHeartbeat(**who(scheduled), step=step, state="training")


def recorded(scheduled: JobScheduled, *steps: int) -> StepsRecorded:
    of_job = {"job_id": scheduled.job_id, "tenant": scheduled.tenant, "attempt": scheduled.attempt}
    numbers = {
        "loss": 1.0,
        "learning_rate": 1e-4,
        "grad_norm": 1.0,
        "num_tokens": 1,
        "tokens_per_second": 1.0,
    }
    return StepsRecorded(
        **of_job,
        steps=tuple(
            StepMetrics(step=step, time=utc_now(), **numbers, memory_bytes=1, epoch=0.1) for step in steps
        ),
    )


async def until_dropped(db: asyncpg.Connection, event_id: str) -> str:
    query = "SELECT reason FROM trainer_agent.dropped_claim WHERE event_id = $1"
    reason: str = await until(lambda: db.fetchval(query, event_id), f"{event_id} is dropped and recorded")
    return reason


async def begin(forger: Forger) -> None:
    """Give the attempt its nodes, which begin to train."""
    await forger.attempts.provision(forger.scheduled)
    for node in range(2):
        await forger.say(a_start(forger.scheduled, node=node), node=node)
    await forger.attempts.until(forger.job_id, TrainingStarted)


class TestReports:
    @forgeries
    async def test_a_forged_start_gives_no_address_to_meet_at(self, forger, db, forge):
        """Also before the nodes are known: it is kept with its signature, and judged when they are."""
        early = await forger.send(forge(forger, a_start(forger.scheduled, host="evil-early")))
        await until(
            lambda: db.fetchval("SELECT true FROM trainer_agent.kept_claim WHERE event_id = $1", early),
            "the claim is kept",
        )
        own = await forger.say(a_start(forger.scheduled, node=1), node=1)
        await until(
            lambda: db.fetchval("SELECT true FROM trainer_agent.kept_claim WHERE event_id = $1", own),
            "the node's own claim is kept",
        )
        await forger.attempts.provision(forger.scheduled)
        assert await until_dropped(db, early) == "not signed by node 0 of the attempt"
        late = await forger.send(forge(forger, a_start(forger.scheduled, host="evil-late")))
        assert await until_dropped(db, late) == "not signed by node 0 of the attempt"
        await forger.say(a_start(forger.scheduled))
        started = await forger.attempts.until(forger.job_id, TrainingStarted)
        order = await forger.attempts.until(forger.job_id, StartTraining)
        assert [member.host for member in started.members] == ["10.0.0.1"] * 2
        assert order.members == started.members

    @forgeries
    async def test_a_forged_failure_ends_nothing(self, forger, db, forge):
        await begin(forger)
        forged = await forger.send(forge(forger, a_failure(forger.scheduled)))
        assert await until_dropped(db, forged) == "not signed by node 0 of the attempt"
        assert forger.attempts.heard(forger.job_id, TrainingFailed) == []
        await forger.say(a_failure(forger.scheduled))
        failed = await forger.attempts.until(forger.job_id, TrainingFailed)
        assert failed.attempt == forger.scheduled.attempt

    async def test_a_forged_heartbeat_shows_no_life(self, forger, db):
        await begin(forger)
        step = "SELECT step FROM trainer_agent.runner WHERE job_id = $1 AND node_index = 0"
        seen = "SELECT seen_at FROM trainer_agent.runner WHERE job_id = $1 AND node_index = 0"
        before = await db.fetchval(seen, forger.job_id)
        for forge in FORGERIES:
            event_id = await forger.send(forge(forger, a_beat(forger.scheduled, 99)))
            await until_dropped(db, event_id)
        assert (await db.fetchval(step, forger.job_id), await db.fetchval(seen, forger.job_id)) == (0, before)
        await forger.say(a_beat(forger.scheduled, 5))

        async def is_heard() -> bool:
            return await db.fetchval(step, forger.job_id) == 5

        await until(is_heard, "the node's own heartbeat")

    async def test_what_a_node_sent_before_is_heard_once(self, forger, db):
        """A replay is the same event, whose id is signed."""
        await begin(forger)
        own = forger.record(a_failure(forger.scheduled), signer_of(forger.job_id))
        event_id = await forger.send(own)
        await forger.attempts.until(forger.job_id, TrainingFailed)
        for _ in range(2):
            await forger.send(own)
        last = await forger.send(unsigned(forger, a_beat(forger.scheduled, 1)))
        await until_dropped(db, last)
        query = "SELECT count(*) FROM trainer_agent.dropped_claim WHERE event_id = $1"
        assert await db.fetchval(query, event_id) == 0
        assert len(forger.attempts.heard(forger.job_id, TrainingFailed)) == 1


class TestSteps:
    SAVED = "SELECT array_agg(step ORDER BY step) FROM {service}.step WHERE job_id = $1"
    PARKED = "SELECT reason || ': ' || detail FROM {service}.parked WHERE event_id = $1"

    @forgeries
    async def test_forged_steps_are_parked_and_not_shown(self, forger, db, forge):
        await forger.attempts.provision(forger.scheduled)
        event_id = await forger.send(forge(forger, recorded(forger.scheduled, 7, 8)))
        await forger.say(recorded(forger.scheduled, 1))
        for service in ("tracker", "gateway"):
            reason = await until(
                lambda service=service: db.fetchval(self.PARKED.format(service=service), event_id),
                f"the steps are parked by {service}",
            )
            assert reason.startswith("rejected: it is not signed by the node")

            async def are_saved(service: str = service) -> bool:
                return await db.fetchval(self.SAVED.format(service=service), forger.job_id) == [1]

            await until(are_saved, f"the node's own steps, and no others, in {service}")

    async def test_steps_that_come_before_the_nodes_are_known_are_judged_then(self, forger, db):
        forged = await forger.send(unsigned(forger, recorded(forger.scheduled, 7)))
        own = await forger.say(recorded(forger.scheduled, 1))
        waiting = "SELECT count(*) = 2 FROM {service}.waiting WHERE event_id = ANY($1)"
        for service in ("tracker", "gateway"):
            await until(
                lambda service=service: db.fetchval(waiting.format(service=service), [forged, own]),
                f"both wait in {service}",
            )
        await forger.attempts.provision(forger.scheduled)
        for service in ("tracker", "gateway"):
            await until(
                lambda service=service: db.fetchval(self.PARKED.format(service=service), forged),
                f"the forged ones are parked by {service}",
            )

            async def are_saved(service: str = service) -> bool:
                return await db.fetchval(self.SAVED.format(service=service), forger.job_id) == [1]

            await until(are_saved, f"the node's own in {service}")

    async def test_steps_of_an_attempt_that_has_ended_wait_for_its_nodes_too(self, forger, db):
        """Its end and its nodes come on two topics, in any order."""
        of_attempt = {"job_id": forger.job_id, "tenant": forger.scheduled.tenant, "attempt": 1}
        ended = JobFailed(**of_attempt, failure_class=FailureClass.INFRA, code="x", message="")
        await forger.attempts.write("scheduler", ended)
        known = "SELECT is_ended FROM tracker.cost WHERE job_id = $1"
        await until(lambda: db.fetchval(known, forger.job_id), "the tracker knows the end")
        forged = await forger.send(unsigned(forger, recorded(forger.scheduled, 7)))
        waiting = "SELECT true FROM tracker.waiting WHERE event_id = $1"
        await until(lambda: db.fetchval(waiting, forged), "the steps wait")
        await forger.attempts.provision(forger.scheduled)
        parked = self.PARKED.format(service="tracker")
        await until(lambda: db.fetchval(parked, forged), "the steps are parked")
        assert await db.fetchval(self.SAVED.format(service="tracker"), forger.job_id) is None

    async def test_of_nodes_without_keys_they_count_unsigned(self, forger, db):
        """An older provisioner gave them none."""
        await forger.attempts.provision(forger.scheduled, has_keys=False)
        await forger.send(unsigned(forger, recorded(forger.scheduled, 1)))
        for node in range(2):
            await forger.send(unsigned(forger, a_start(forger.scheduled, node=node)))
        await forger.attempts.until(forger.job_id, TrainingStarted)
        for service in ("tracker", "gateway"):

            async def are_saved(service: str = service) -> bool:
                return await db.fetchval(self.SAVED.format(service=service), forger.job_id) == [1]

            await until(are_saved, f"the steps in {service}")
