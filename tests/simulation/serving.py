"""The serving controller's rounds and steps, with replicas that are entries of a table and may die."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from services.serving_controller import handlers
from services.serving_controller.clients.backend import EngineFacts, ReplicaSpec, ReplicaStatus
from services.serving_controller.clients.vllm import LoadRefused, NoAnswer
from services.serving_controller.decide.pools import Policy
from services.serving_controller.handlers.rounds import PAUSE_SECONDS, ReconcileLoop
from services.serving_controller.handlers.steps import Steps
from services.serving_controller.model import Replica, ReplicaSet, Servable
from shared.errors import StorageUnavailable
from tests.simulation.clock import Process, pause
from tests.simulation.tables import GAVE_WAY

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel
    from tests.simulation.world import World

LOOK_SECONDS = 10.0


class Replicas:
    """The processes of vLLM, which outlive the controller."""

    def __init__(self) -> None:
        self.specs: dict[str, ReplicaSpec] = {}
        self.dead: set[str] = set()
        self.loaded: dict[str, set[str]] = {}

    has_nodes = False

    async def engine(self, replica_id: str) -> EngineFacts | None:
        return EngineFacts("simulated", "cpu")

    async def start(self, spec: ReplicaSpec) -> None:
        self.specs[spec.replica_id] = spec
        self.loaded[spec.replica_id] = {spec.served_name}
        self.dead.discard(spec.replica_id)
        await pause(0.1)

    async def extend(self, replica_id: str, seconds: float) -> None:
        """No replica of the simulation leases its devices."""

    async def inspect(self, replica_id: str) -> ReplicaStatus | None:
        spec = self.specs.get(replica_id)
        if spec is None:
            return None
        return ReplicaStatus(replica_id, spec.incarnation, "http://r", is_alive=replica_id not in self.dead)

    async def list_owned(self) -> list[str]:
        return list(self.specs)

    async def end(self, replica_id: str) -> None:
        self.specs.pop(replica_id, None)
        self.loaded.pop(replica_id, None)

    def key(self, replica_id: str) -> str:
        return replica_id

    async def log_tail(self, replica_id: str) -> str:
        return "died"


class _Files:
    async def model(self, replica_id: str, base_sha: str, full: Servable | None) -> PurePosixPath:
        return PurePosixPath(full.digest if full else base_sha)

    async def keep_only(self, *, bases: Any, models: Any) -> None:
        """There is no disk to fill."""

    async def adapter(self, replica_id: str, servable: Servable) -> PurePosixPath:
        return PurePosixPath(servable.digest)

    async def remove_adapter(self, replica_id: str, served_name: str) -> None:
        """There is no disk to free."""


class _Client:
    def __init__(self, world: "World", replica_id: str) -> None:
        self._world = world
        self._id = replica_id

    @property
    def _names(self) -> set[str]:
        names = self._world.replicas.loaded.get(self._id)
        if names is None or self._id in self._world.replicas.dead:
            raise NoAnswer(f"{self._id} does not answer")
        return names

    async def models(self) -> list[str]:
        return sorted(self._names)

    async def load(self, name: str, path: Any) -> None:
        await pause(self._world.rng.uniform(0.05, 1.0))
        if self._world.faults.strikes("load fails"):
            raise LoadRefused("the adapter was not taken")
        self._names.add(name)

    async def require_listed(self, name: str) -> None:
        if name not in self._names:
            raise LoadRefused(f"{name} is not listed")

    async def unload(self, name: str) -> None:
        self._names.discard(name)


class Probe:
    """In place of the module `probe`: whoever answers, answers right."""

    ProbeFailed = LoadRefused

    @staticmethod
    async def prove_active(client: Any, base: str, name: str) -> None:
        await client.require_listed(name)

    @staticmethod
    async def prove_answers(client: Any, name: str) -> None:
        await client.require_listed(name)


class SimSteps(Steps):
    def __init__(self, kernel: "Kernel", policy: Policy) -> None:
        backend: Any = kernel.world.replicas
        nothing: Any = None
        files: Any = _Files()
        super().__init__(backend, files, nothing, policy=policy, clock=kernel.clock)
        self._world = kernel.world

    def _client(self, replica: Replica) -> Any:
        return _Client(self._world, replica.replica_id)


class SimReconcileLoop(ReconcileLoop):
    """Production's rounds; each runs as a process in virtual time, in an order that no hash decides."""

    def __init__(self, kernel: "Kernel", steps: SimSteps, policy: Policy) -> None:
        service: Any = kernel
        super().__init__(service, steps, policy=policy, unanswered=timedelta(seconds=60))
        self._kernel = kernel
        self._begun: dict[str, Callable[[], Process]] = {}
        self.processes: dict[str, Process] = {}

    async def look(self) -> None:
        self._running = {name: None for name, process in self.processes.items() if process.alive}  # type: ignore[misc]
        self._begun = {}
        await super().look()
        for name in sorted(self._begun):
            self.processes[name] = self._begun[name]()
            self._running[name] = None  # type: ignore[assignment]

    def _begin(self, replica_set: ReplicaSet, replicas: tuple[Replica, ...]) -> None:
        self._quiet.pop(replica_set.name, None)
        self._begun[replica_set.name] = lambda: Process(
            self._kernel.clock, self._while_up(replica_set, replicas)
        )

    async def _while_up(self, replica_set: ReplicaSet, replicas: tuple[Replica, ...]) -> None:
        try:
            await self.round(replica_set, replicas)
        except (StorageUnavailable, NoAnswer, *GAVE_WAY):
            self._paused_until[replica_set.name] = self._kernel.clock.now + PAUSE_SECONDS


def register(kernel: "Kernel") -> None:
    policy = Policy()
    rounds = SimReconcileLoop(kernel, SimSteps(kernel, policy), policy)
    kernel.at_crash(lambda: [process.kill() for process in rounds.processes.values()])
    handlers.register(  # type: ignore[arg-type]
        kernel, rounds, keep=policy.keep, look_every=timedelta(seconds=LOOK_SECONDS)
    )
