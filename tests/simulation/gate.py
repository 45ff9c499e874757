"""The evaluator's gate and the registry's clients, with what they would measure decided by the world."""

from typing import TYPE_CHECKING, Any

from schemas.artifacts import BaseModelManifest
from schemas.evaluation import CheckResult, Criterion, ReevaluateModel
from schemas.job import Artifact, JobCancelled, JobEvaluating
from schemas.model import DirectorySource, ModelArchived, ModelRegistered, PromotionRefused
from schemas.specification import canonical_sha256
from services.evaluator.decide.plan import Harness
from services.evaluator.gates.checks import CHECKS, not_requested
from services.evaluator.handlers import evaluations
from services.evaluator.handlers.evaluations import RunGate
from services.evaluator.handlers.gate import Gate, Plan
from services.evaluator.model import GateResult
from services.registry.clients import Mirrored
from shared.errors import StorageUnavailable
from tests.builders import a_sha, capabilities
from tests.simulation.clock import pause

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel
    from tests.simulation.world import World

REQUIRED = frozenset({"benchmark", "safety"})


def truth(artifact: Artifact, version: ModelRegistered) -> str:
    """What a gate that measures would find: a property of model, base and rules."""
    rules = canonical_sha256(artifact.gate.model_dump(mode="json"))
    number = int(a_sha(f"{version.digest} {version.base_sha} {rules}")[:4], 16) % 10
    return "passed" if number < 6 else "failed" if number < 9 else "inconclusive"


class ScoringDied(Exception):
    """As a crashed child would show."""


class PartMissing(KeyError):
    """As the store says it."""


class _Archive:
    """`evals/<id>/results.json`."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def find_result(self, eval_id: str) -> GateResult | None:
        return self._world.results.get(eval_id)

    async def put_result(self, result: GateResult, lines: list[str]) -> None:
        self._world.results[result.eval_id] = result


class _Settings:
    required_checks = REQUIRED
    replica_keys_dir = None


class SimGate(Gate):
    """Production's gate; only fetching, scoring and grading are made up."""

    def __init__(self, kernel: "Kernel") -> None:
        self._world = kernel.world
        self._service: Any = kernel
        self._settings: Any = _Settings()
        self._archive: Any = _Archive(kernel.world)
        self._harness = Harness("harness", "classifier")

    async def _measure(self, plan: Plan) -> GateResult:
        await pause(self._world.rng.uniform(1.0, 60.0))
        if self._world.faults.strikes("gate crashes"):
            raise ScoringDied
        outcome = truth(plan.evaluation.artifact, plan.version)
        result = self._result(plan, _checks(outcome), (), {})
        await self._archive.put_result(result, [])
        return result


def _checks(outcome: Any) -> tuple[CheckResult, ...]:
    criterion = Criterion(
        name="c", metric="m", value=1.0, baseline=1.0, threshold=1.0, count=60, passed=outcome == "passed"
    )
    asked = {
        check: CheckResult(check=check, outcome=outcome, criteria=(criterion,))
        for check in ("benchmark", "safety")
    }
    return tuple(asked.get(check) or not_requested(check, "") for check in CHECKS)


def register(kernel: "Kernel") -> None:
    """As `services/evaluator/handlers/__init__.py` does, without the desk of suites."""
    kernel.on(JobEvaluating, evaluations.job_evaluating)
    kernel.on(JobCancelled, evaluations.job_cancelled)
    kernel.on(ModelRegistered, evaluations.model_registered)
    kernel.on(ModelArchived, evaluations.model_archived)
    kernel.on(PromotionRefused, evaluations.promotion_refused)
    kernel.on(ReevaluateModel, evaluations.reevaluate)
    gate = SimGate(kernel)
    kernel.on_task(RunGate, work=gate.run, done=gate.ended, failed=gate.given_up, attempts=3)


class Copies:
    """In place of `ArtifactCopies`: equal training has equal weights."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def copy(self, artifact: Artifact, shapes: Any) -> str:
        await pause(self._world.rng.uniform(0.5, 20.0))
        if self._world.faults.strikes("copy fails"):
            raise StorageUnavailable("storage is away")
        stored = self._world.storage.find(artifact.job_id, artifact.bundle)
        if stored is None:
            raise PartMissing(
                f"checkpoints/{artifact.job_id}/{artifact.bundle.attempt}/{artifact.bundle.step}"
            )
        return a_sha(f"weights {artifact.config_hash} {artifact.bundle.step}")


class Mirror:
    """In place of `BaseModelMirror`: the directory's path names the files."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def mirror(self, name: str, source: Any, training_template: str | None = None) -> Mirrored:
        await pause(self._world.rng.uniform(0.5, 5.0))
        assert isinstance(source, DirectorySource)
        manifest = BaseModelManifest(
            name=name,
            source="directory",
            files=(),
            template_sha256=a_sha("template"),
            context_tokens=1024,
            num_parameters=1,
        )
        manifest_sha256 = a_sha(f"manifest {source.path}")
        return Mirrored(a_sha(source.path), manifest_sha256, manifest, "directory", (), capabilities())
