"""Work for a tenant is a task of that tenant, so that it takes its turn."""

from typing import Any

from pydantic import BaseModel

from schemas.job import JobCancelled, JobEvaluating
from services.evaluator import store as evaluator_store
from services.evaluator.decide.lifecycle import Decision
from services.evaluator.handlers import evaluations
from services.registry import store as registry_store
from services.registry.handlers import versions
from shared.messaging.unit import Task
from tests.unit.evaluator.evaluations import an_artifact, an_evaluation


class Recording:
    """A unit that keeps the tasks, and tells nobody."""

    def __init__(self) -> None:
        self.conn = None
        self.tasks: list[Task] = []

    async def start_task(self, task: Task) -> None:
        self.tasks.append(task)

    async def emit(self, *messages: BaseModel) -> None:
        pass


async def nothing(*_: object) -> None:
    pass


async def test_gates(monkeypatch):
    monkeypatch.setattr(evaluator_store, "save_evaluation", nothing)
    unit: Any = Recording()
    await evaluations._save(unit, Decision(an_evaluation(), starts=True))
    assert [task.tenant for task in unit.tasks] == ["acme"]


async def test_copies_of_models(monkeypatch):
    monkeypatch.setattr(registry_store, "stop_auto_deploy", nothing)
    unit: Any = Recording()
    artifact = an_artifact()
    await versions.evaluating(JobEvaluating(**artifact.model_dump()), unit)
    cancelled = JobCancelled(
        job_id=artifact.job_id, tenant="acme", reason="user", artifact=artifact, last_step=1
    )
    await versions.cancelled(cancelled, unit)
    assert [task.tenant for task in unit.tasks] == ["acme", "acme"]
