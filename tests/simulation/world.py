"""Everything together: services, log, engine, store, users; one seed decides all that happens."""

import random
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from schemas.base import Message
from schemas.evaluation import BenchmarkKind
from schemas.topics import AGENT_REPORTS, Topic, topic_of
from schemas.training import RunnerReport, StartTraining
from services.evaluator.model import Suite
from services.provisioner.backends.protocol import BackendFailed
from shared.errors import CorruptObject, ParentUnknown, Refused, Rejected, StorageUnavailable
from tests.builders import a_file_ref, a_sha
from tests.simulation import wiring
from tests.simulation.checks import Checker
from tests.simulation.clock import Clock
from tests.simulation.engine import Engine
from tests.simulation.faults import Faults
from tests.simulation.gang import Gang
from tests.simulation.gate import PartMissing, ScoringDied
from tests.simulation.kernel import Kernel, Switches
from tests.simulation.log import Log, Record
from tests.simulation.serving import Replicas
from tests.simulation.storage import Storage
from tests.simulation.tables import GAVE_WAY
from tests.simulation.violation import Violation

TAIL = 120
LONGEST_TURN_SECONDS = 3.0
EXPECTED = (
    BackendFailed, StorageUnavailable, CorruptObject, Rejected, Refused, ParentUnknown, PartMissing, ScoringDied,
)  # fmt: skip
"""Raised by what the world does to a service; anything else is a bug."""
POOLS = """
[pools.spot]
capacity_type = "spot"
device = "cpu"
nodes = 3
devices_per_node = 2
price_per_device_hour = 1
[pools.steady]
capacity_type = "on-demand"
device = "cpu"
nodes = 3
devices_per_node = 2
price_per_device_hour = 3
"""
BASE_MODEL = "tiny"


@dataclass(frozen=True)
class Setting:
    """What differs between worlds beside their seed."""

    switches: Switches = field(default_factory=Switches)
    max_lag: float = 1.0
    is_traced: bool = False
    num_steps: int = 24
    processes: int = 1
    """Of each service."""


class World:
    def __init__(self, seed: int, faults: Faults | None = None, setting: Setting | None = None) -> None:
        setting = setting or Setting()
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.log = Log()
        self.switches = setting.switches
        self.num_steps = setting.num_steps
        self.is_traced = setting.is_traced
        self.messages = 0
        self.faults = faults or Faults(self.rng)
        self.pools = POOLS
        self.history: deque[str] = deque(maxlen=TAIL)
        self.results: dict[str, object] = {}
        self.max_lag = setting.max_lag
        self.processes = setting.processes
        self._last = 0
        self._gangs: dict[tuple[str, int], Gang] = {}
        self._sequences: dict[tuple[str, str], int] = {}
        self.checker = Checker(self)
        self.storage = Storage(self)
        self.engine = Engine(self)
        self.replicas = Replicas()
        self.kernels = {name: Kernel(self, name, wire) for name, wire in wiring.SERVICES.items()}
        wiring.enter(self)
        self._register_suites()
        for kernel in self.kernels.values():
            kernel.start()

    def lag(self) -> float:
        """Seconds; most are short."""
        return 0.002 + self.max_lag * self.rng.random() ** 6

    def hop(self) -> float:
        """Seconds from one machine to the next; late enough to worry nobody."""
        return 0.002 + self.rng.random() ** 6

    def turn(self) -> float | None:
        """Seconds for others, at some statements; most are short."""
        return LONGEST_TURN_SECONDS * self.rng.random() ** 2 if self.rng.random() < 0.5 else None

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def next_uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def run(self, seconds: float) -> None:
        """Until so much later."""
        until = self.clock.now + seconds
        self.clock.at(until, _nothing)
        while self.clock.now < until:
            self.clock.step()

    # Who speaks beside the services.

    def send(self, message: Message, *, writer: str, skip: int = 0) -> str:
        """A command, or a fact of a service that is not simulated; `skip`: numbers left out of its story."""
        topic = topic_of(type(message), writer=writer)
        event_id = f"{writer}-says-{self.next_number()}"
        sequence = self._next_sequence(topic, message.key) + skip if topic.is_event_stream else None
        if self.is_traced:
            self.note(f"{writer}: {message.type} {message.key if topic.is_event_stream else message!r}")
        self.log.append(Record(event_id, topic, message.key, message.type, message, sequence, writer=writer))
        return event_id

    def claim(self, report: RunnerReport, report_id: str, runner: str) -> None:
        self.log.append(
            Record(report_id, AGENT_REPORTS, report.key, report.type, report, None, writer=runner)
        )

    def _next_sequence(self, topic: Topic, key: str) -> int:
        number = self._sequences.get((topic.name, key), 0) + 1
        self._sequences[topic.name, key] = number
        return number

    # What the nodes need.

    def gang_of(self, start: StartTraining) -> Gang:
        """One for each attempt that trains."""
        name = (start.job_id, start.attempt)
        if name not in self._gangs:
            self._gangs[name] = Gang(
                self,
                nodes=start.nodes,
                start_step=start.resume.step if start.resume else start.steps_before,
                num_steps=start.steps_before + self.num_steps,
                every=self.rng.choice((4, 8, 15)),
            )
        return self._gangs[name]

    def can_resume(self, job_id: str, start: StartTraining) -> bool:
        begun = start.start_from.bundle if start.start_from else None
        needed = start.resume or begun
        if needed is None:
            return True
        stored = self.storage.find(job_id, needed)
        if stored is None or stored.is_corrupt:
            self.checker.training.resume_missing(job_id, start.attempt, needed)
            return False
        return True

    # What is told to people.

    def note(self, line: str) -> None:
        if self.is_traced:
            self.history.append(f"{self.clock.now:9.2f} {line}")

    def trace(self, service: str, record: Record, outcome: str) -> None:
        if record.type == "RunnerHeartbeat":
            return
        attempt = getattr(record.message, "attempt", "")
        seq = f" #{record.sequence}" if record.sequence else ""
        self.history.append(
            f"{self.clock.now:9.2f} {service} <- {record.type}{seq} {record.key} {attempt} [{outcome}]"
        )

    def is_expected(self, error: Exception) -> bool:
        return isinstance(error, EXPECTED) or (self.processes > 1 and isinstance(error, GAVE_WAY))

    def alarm(self, invariant: str, detail: str, cause: BaseException | None = None) -> None:
        tail = "\n".join(self.history)
        raise Violation(
            f"{invariant}: {detail} (at {self.clock.now:.2f} s, seed {self.seed})\n{tail}"
        ) from cause

    def _register_suites(self) -> None:
        tables = self.kernels["evaluator"].tables
        for suite in suites():
            tables.put("suite", suite.name, suite)
        tables.commit()


def suites() -> tuple[Suite, ...]:
    """Those that are registered in every world."""
    return tuple(
        Suite(name=name, digest=a_sha(name), file=a_file_ref(name), kind=kind)
        for name, kind in (("bench", BenchmarkKind.TEXT), ("safety", None))
    )


def _nothing() -> None:
    """The clock has come to here."""
