"""The simulation's stores in memory answer as those on Postgres do: what simulated worlds asked is asked again here.

Each transaction is repeated in its place, with the same arguments and the same end. A violation or a difference is
repeated by CHAOS_SEED.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from deploy.local.stack import Stack
from services.scheduler.decide.queue import Ledger
from services.serving_controller.model import ReplicaSetServables
from services.serving_controller.store import View
from shared.postgres.database import Connection, Database
from shared.postgres.migrate import migrate
from tests.builders import NOON
from tests.chaos.scale import note, scaled, seed
from tests.integration.scratch import empty_schema
from tests.simulation.differing import differences
from tests.simulation.test_stores import asked_by_handlers, questions_of
from tests.simulation.transcript import Call, Transaction, Transcript, record
from tests.simulation.wiring import SERVICES
from tests.simulation.world import suites

pytestmark = pytest.mark.stack

WORLDS = scaled(4, 24, 200)


def _in_any_order(answer: Any) -> Any:
    return sorted(answer, key=repr)


def _ledger(ledger: Ledger) -> Ledger:
    pools = [replace(pool, bookings=tuple(_in_any_order(pool.bookings))) for pool in ledger.pools]
    return replace(ledger, pools=tuple(_in_any_order(pools)))


def _servables(servables: ReplicaSetServables | None) -> Any:
    """Return those of a set by name, without the version: slots may serve equal files of two versions as one."""
    return servables and {name: replace(each, model_id="") for name, each in servables.servables.items()}


FREE: Mapping[str, Callable[[Any], Any]] = {
    "open_jobs": _in_any_order,
    "candidates": _in_any_order,
    "everyone_queued": _in_any_order,
    "list_checkpoints": _in_any_order,
    "get_ledger": _ledger,
    "servables_of_replica_set": _servables,
}
"""Functions whose statements leave something open, as an order, and their answers without it."""
SELDOM: Mapping[str, str] = {
    "scheduler": "everyone_queued find_deployment find_jobs find_running_job jobs_waiting_for lock_slot record_ignored"
    " save_deployment save_device_limit typical_run_time",
    "provisioner": "add_cordon add_failure find_last_failure_of_holder list_failures_of_machine remove_cordon",
    "trainer_agent": "keep_claim record_dropped",
    "evaluator": "add_baseline archive_version find_artifact find_evaluation find_pool find_version is_archived"
    " is_running list_replicas",
    "registry": "base_model_names find_refused_artifact find_slot find_version_of save_refused_artifact save_slot"
    " servable_versions slots_on_base slots_serving stop_auto_deploy versions_of_job",
    "serving_controller": "find_candidate find_model_name forget_candidate forget_candidates forget_replica"
    " forget_retired get_slot has_ready_replica is_stale save_candidate save_retired save_slot save_stale save_used"
    " servables_of_replica_set slots_on_base slots_serving stale_bases",
}
"""Functions that a quarter of the worlds or more never call; those that none calls have their own tests alone."""


class _RolledBack(Exception):
    """The simulated transaction was, too."""


@pytest.fixture(scope="module")
def transcripts() -> list[Transcript]:
    return [record(1000 * seed() + number) for number in range(WORLDS)]


@asynccontextmanager
async def empty_database(stack: Stack, service: str) -> AsyncIterator[Database]:
    async with empty_schema(stack) as dsn:
        await migrate(service, dsn)
        database = Database(f"{dsn}&synchronous_commit=off", application="simulated-stores")
        await database.open()
        if service == "evaluator":
            async with database.transaction() as conn:
                for suite in suites():
                    await questions_of(service)["add_suite"](conn, suite, at=NOON)
        yield database
        await database.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_postgres_answers_what_memory_answered(
    stack: Stack, transcripts: list[Transcript], service: str
) -> None:
    calls = Counter[str]()
    for number, transcript in enumerate(transcripts):
        async with empty_database(stack, service) as database:
            replay = Replay(database, questions_of(service))
            for transaction in transcript.by_service[service]:
                await replay.repeat(transaction)
        assert replay.differing == [], f"world {1000 * seed() + number}: {len(replay.differing)} differ"
        calls += replay.calls
    note("stores in memory and on Postgres", calls=calls.total(), functions=len(calls), worlds=WORLDS)
    assert asked_by_handlers(service) - calls.keys() <= set(SELDOM.get(service, "").split())


class Replay:
    """Asks Postgres what one service of a world asked its store in memory."""

    def __init__(self, database: Database, store: Mapping[str, Any]) -> None:
        self.calls = Counter[str]()
        self.differing: list[str] = []
        self._database = database
        self._store = store
        self._versions = {"memory": Versions(), "postgres": Versions()}

    async def repeat(self, transaction: Transaction) -> None:
        with suppress(_RolledBack):
            async with self._database.transaction() as conn:
                for call in transaction.calls:
                    await self._ask(conn, call)
                if not transaction.is_committed:
                    raise _RolledBack

    async def _ask(self, conn: Connection, call: Call) -> None:
        self.calls[call.name] += 1
        answer, error = None, None
        try:
            answer = await self._store[call.name](conn, *call.args, **call.kwargs)
        except Exception as raised:
            error = type(raised)
            if error is not call.error:
                raise AssertionError(
                    f"{call.name}{call.args}: {call.error or call.answer} in memory"
                ) from raised
        before = self._comparable("memory", call, call.answer), call.error
        after = self._comparable("postgres", call, answer), error
        self.differing += [f"{call.name}{call.args} {each}" for each in differences(before, after)]

    def _comparable(self, side: str, call: Call, answer: Any) -> Any:
        if isinstance(answer, View):
            return self._versions[side].counted(answer)
        return FREE[call.name](answer) if call.name in FREE else answer


class Versions:
    """Numbers whose change alone counts, as how often they have changed: Postgres draws them from a sequence."""

    def __init__(self) -> None:
        self._seen: dict[str, list[Any]] = {}

    def counted(self, view: View) -> View:
        return replace(
            view,
            versions={name: self._count(f"set {name}", number) for name, number in view.versions.items()},
            replica_versions={
                name: self._count(f"replica {name}", number) for name, number in view.replica_versions.items()
            },
            retired=tuple(_in_any_order(view.retired)),
            candidates=tuple(_in_any_order(view.candidates)),
        )

    def _count(self, name: str, number: int) -> int:
        seen = self._seen.setdefault(name, [])
        if not seen or seen[-1] != number:
            seen.append(number)
        return len(seen)
