"""eval.events, model.events, deployment.events: one true verdict, and nothing served without it."""

from typing import TYPE_CHECKING, Any

from services.evaluator.decide.lifecycle import evaluation_id
from tests.simulation.gate import truth
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.world import World

Slot = tuple[str, str]


class ModelChecks:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.answers: dict[str, int] = {}
        """By job: verdicts on what JobEvaluating asked for, and refusals of artifacts."""
        self.promoted: set[str] = set()
        self.approved: dict[Slot, dict[int, str | None]] = {}
        """Digest by generation; None where the slot was emptied."""
        self.ready: dict[Slot, int] = {}
        self._verdicts: dict[str, str] = {}
        self._passed: set[tuple[str, str, str]] = set()
        self.on = dict.fromkeys(("EvalPassed", "EvalFailed", "EvalInconclusive"), self.judged) | {
            "PromotionRefused": self.refused,
            "ModelPromoted": self.was_promoted,
            "DeploymentApproved": self.was_approved,
            "DeploymentWithdrawn": self.withdrawn,
            "DeploymentReady": self.is_ready,
        }

    def judged(self, event: Any, unit: Unit) -> None:
        if event.eval_id in self._verdicts:
            before = self._verdicts[event.eval_id]
            self._world.alarm(
                "two verdicts", f"{event.eval_id} of {event.job_id}: {before}, then {event.type}"
            )
        self._verdicts[event.eval_id] = event.type
        asked = self._world.checker.jobs.evaluating.get(event.job_id)
        if asked is not None and event.eval_id == _id_of(asked):
            self._answered(event.job_id)
        if event.type == "EvalPassed":
            evaluation = self._world.kernels["evaluator"].tables.get("evaluation", event.eval_id)
            if truth(evaluation.artifact, evaluation.version) != "passed":
                self._world.alarm("false pass", f"{event.eval_id} of {event.job_id}")
            self._passed.add((event.model_id, event.digest, event.base_sha))

    def refused(self, event: Any, unit: Unit) -> None:
        if event.code == "artifact":
            self._answered(event.job_id)

    def was_promoted(self, event: Any, unit: Unit) -> None:
        self.promoted.add(event.model_id)
        self._must_be_gated(event.model_id, event.digest, f"{event.model_id} -> {event.stage}")

    def was_approved(self, event: Any, unit: Unit) -> None:
        self._must_be_gated(event.model_id, event.digest, f"slot {event.slot}")
        self._next_generation(event, event.digest)

    def withdrawn(self, event: Any, unit: Unit) -> None:
        self._next_generation(event, None)

    def is_ready(self, event: Any, unit: Unit) -> None:
        slot = (event.tenant, event.slot)
        if self.approved.get(slot, {}).get(event.generation) != event.digest:
            what = f"slot {event.slot} serves {event.digest[:8]} as generation {event.generation}"
            self._world.alarm("not approved", what)
        if event.generation < self.ready.get(slot, 0):
            self._world.alarm("generation", f"slot {event.slot} went back to {event.generation}")
        self.ready[slot] = event.generation
        tables = self._world.kernels["serving_controller"].tables
        servable = tables.get("slot", slot).route.servable
        if tables.get("stale_base", (servable.base_model, servable.base_sha)):
            self._world.alarm("stale base", f"slot {event.slot} serves what was trained on old files")

    def _answered(self, job_id: str) -> None:
        self.answers[job_id] = self.answers.get(job_id, 0) + 1

    def _must_be_gated(self, model_id: str, digest: str, what: str) -> None:
        tables = self._world.kernels["registry"].tables
        version = tables.get("version", model_id)
        if (model_id, digest, version.base_sha) not in self._passed:
            self._world.alarm("not gated", f"{what}: no pass for {digest[:8]} on {version.base_sha[:8]}")
        if version.verdict.outcome != "passed":
            self._world.alarm("not gated", f"{what}: the newest verdict is {version.verdict.outcome}")
        current = tables.get("base_model", version.base_model).base_sha
        if current != version.base_sha:
            detail = f"trained on {version.base_sha[:8]}, the base model's name points to {current[:8]}"
            self._world.alarm("stale base", f"{what}: {detail}")

    def _next_generation(self, event: Any, digest: str | None) -> None:
        known = self.approved.setdefault((event.tenant, event.slot), {})
        if event.generation != len(known) + 1:
            self._world.alarm("generation", f"slot {event.slot}: {event.generation} after {len(known)}")
        known[event.generation] = digest


def _id_of(asked: Any) -> str:
    return evaluation_id(asked.job_id, str(asked.attempt), asked.bundle.manifest_sha256)
