"""All that a check may know about a stack, as plain values: what lies in Kafka, in Postgres and in S3.

Payloads of records are kept as digests but for the types that an invariant reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import groupby

from schemas.base import BundleRef, FileRef, Message
from schemas.rights import Right
from shared.messaging.administration import ClientQuotas

EventStream = tuple[str, str]
"""(topic, key)"""
EventId = tuple[str, str]
"""(topic, event id): a copy has the id of its original."""
Location = tuple[str, int, int]
"""(topic, partition, offset)"""


@dataclass(frozen=True)
class Limits:
    """What is normal on a live stack."""

    grace: timedelta = timedelta(seconds=30)
    """Time from a write to the moment at which every reader has applied it."""
    stalled_after: timedelta = timedelta(minutes=30)
    """Longer than any deadline of a job's state machine."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    key: str
    event_id: str
    type: str
    """Empty where the record could not be read."""
    sequence: int | None
    sha256: bytes
    """sha256 of the value."""
    writer: str
    """Who says that it wrote it."""
    time: datetime | None
    job_id: str = ""
    """Empty where it is about no job."""
    tenant: str = ""
    """Whom it is about; empty where nobody."""
    message: Message | None = None

    @property
    def location(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of an outbox."""

    event_id: str
    topic: str
    key: str
    sequence: int
    type: str
    sha256: bytes
    time: datetime
    """When its transaction began, as the message says."""
    causation_id: str
    created_at: datetime
    is_published: bool
    set_aside: str = ""
    """Why the relay does not send it; empty where it does."""


@dataclass(frozen=True, slots=True)
class Waiting:
    topic: str
    partition: int
    offset: int
    event_id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Parked:
    parked_id: int
    topic: str
    partition: int
    offset: int
    event_id: str
    reason: str
    detail: str
    is_open: bool


@dataclass(frozen=True)
class Kernel:
    """The kernel's tables in the schema of one service."""

    outbox: tuple[Row, ...] = ()
    sequences: Mapping[EventStream, int] = field(default_factory=dict)
    """Last number given to each event stream."""
    inbox: Mapping[EventId, bytes] = field(default_factory=dict)
    """Sha256 of the payload that was applied."""
    positions: Mapping[EventStream, int] = field(default_factory=dict)
    waiting: tuple[Waiting, ...] = ()
    parked: tuple[Parked, ...] = ()
    timers_due: tuple[tuple[str, datetime], ...] = ()
    """Type and time of those that should have fired."""
    tasks_set_aside: tuple[tuple[str, str, str], ...] = ()
    """Kind, key and error."""
    tasks_away: tuple[tuple[str, str, datetime, str], ...] = ()
    """Kind, key, since when something that it needs is away, and the last error."""

    @cached_property
    def by_id(self) -> Mapping[EventId, Row]:
        return {(row.topic, row.event_id): row for row in self.outbox}

    @cached_property
    def held(self) -> frozenset[Location]:
        """The records that wait or were parked."""
        messages: tuple[Waiting | Parked, ...] = (*self.waiting, *self.parked)
        return frozenset((each.topic, each.partition, each.offset) for each in messages)

    @cached_property
    def held_ids(self) -> frozenset[EventId]:
        messages: tuple[Waiting | Parked, ...] = (*self.waiting, *self.parked)
        return frozenset((each.topic, each.event_id) for each in messages)

    @cached_property
    def is_whole(self) -> bool:
        """Whether no row of the outbox was ever pruned."""
        return sum(self.sequences.values()) == len(self.outbox)


@dataclass(frozen=True)
class Job:
    job_id: str
    tenant: str
    state: str
    attempt: int
    config_hash: str | None


AttemptId = tuple[str, int]
"""(job id, attempt number)"""


@dataclass(frozen=True)
class Node:
    pool: str
    allocated_at: datetime
    machine: int
    is_drained: bool = False
    """Whether the machine takes no more work and is none of the pool's nodes."""


@dataclass(frozen=True)
class DeviceLease:
    """Devices that a service has leased, or waits for, as the provisioner has it."""

    lease_id: str
    holder: str
    pool: str
    until: datetime


@dataclass(frozen=True)
class Checkpoint:
    job_id: str
    bundle: BundleRef
    state: str


@dataclass(frozen=True)
class ModelVersion:
    model_id: str
    tenant: str
    job_id: str
    digest: str
    base_sha: str
    dataset_version: str
    config_hash: str
    bundle: BundleRef
    stage: str
    eval_id: str | None
    is_archived: bool


@dataclass(frozen=True)
class Evaluation:
    eval_id: str
    state: str
    digest: str | None
    base_sha: str | None


@dataclass(frozen=True)
class Generation:
    """A decision of the registry about a slot."""

    tenant: str
    slot: str
    number: int
    model_id: str | None
    digest: str | None
    outcome: str = "ready"


@dataclass(frozen=True)
class DesiredVersion:
    """What serving wants to be loaded for a slot."""

    tenant: str
    slot: str
    digest: str


@dataclass(frozen=True)
class KafkaUser:
    """A user as accounts has it."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    state: str


@dataclass(frozen=True)
class Access:
    """What the broker has of the users that are made while the platform runs."""

    users: frozenset[str] = frozenset()
    """Users with a password."""
    rights: frozenset[Right] = frozenset()
    quotas: Mapping[str, ClientQuotas] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """The version and the replicas to which serving sends the requests of a slot."""

    tenant: str
    slot: str
    generation: int
    model_id: str
    digest: str
    base_sha: str
    served_name: str
    is_adapter: bool
    replicas: tuple[tuple[str, str], ...]
    """(replica id, incarnation)"""


@dataclass(frozen=True)
class Replica:
    replica_id: str
    incarnation: str
    phase: str
    loaded: frozenset[str]


@dataclass(frozen=True)
class Snapshot:
    """What the services' own tables say, all at one moment."""

    jobs: Mapping[str, Job] = field(default_factory=dict)
    unapplied: Mapping[str, str] = field(default_factory=dict)
    """Job -> what it waits for although the scheduler's tables have it; written and applied in one transaction."""
    booked: frozenset[AttemptId] = frozenset()
    """Attempts for which the scheduler's ledger still counts nodes."""
    training: frozenset[AttemptId] = frozenset()
    """Attempts that trainer_agent has not closed."""
    held: frozenset[AttemptId] = frozenset()
    """Attempts that the provisioner has not seen the end of."""
    nodes: tuple[Node, ...] = ()
    """Not released."""
    pools: Mapping[str, int] = field(default_factory=dict)
    """Nodes of each pool."""
    device_leases: tuple[DeviceLease, ...] = ()
    """Not ended."""
    known_leases: frozenset[str] = frozenset()
    """Ids of the leases that their holders know."""
    checkpoints: tuple[Checkpoint, ...] = ()
    sweeps_due: frozenset[AttemptId] = frozenset()
    """Ended attempts whose leftovers the watcher will still delete."""
    watched: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    """Job -> its newest attempt that the watcher knows, and whether it is open."""
    datasets: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    """Version -> state and sha256 of its manifest."""
    base_models: Mapping[str, str] = field(default_factory=dict)
    """Base sha -> sha256 of its manifest."""
    models: tuple[ModelVersion, ...] = ()
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    files: tuple[FileRef, ...] = ()
    """Uploaded, and not deleted or still needed."""
    removed_bytes: frozenset[str] = frozenset()
    """sha256 of what deleted files were made of, where nothing else has or needs the same bytes."""
    generations: tuple[Generation, ...] = ()
    routes: tuple[Route, ...] = ()
    expected_loaded: frozenset[str] = frozenset()
    """Served names that serving should have loaded."""
    replicas: tuple[Replica, ...] = ()
    desired_versions: tuple[DesiredVersion, ...] = ()
    expiring: frozenset[str] = frozenset()
    """Ended jobs whose bundles the watcher will delete."""
    tenants: frozenset[str] = frozenset()
    """Tenants with topics of their own."""
    kafka_users: tuple[KafkaUser, ...] = ()


@dataclass(frozen=True)
class Part:
    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a manifest in S3 names."""

    sha256: str
    parts: tuple[Part, ...] = ()
    problem: str = ""
    """Why it could not be read."""


@dataclass(frozen=True)
class Store:
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Key -> bytes."""
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    corrupt: Mapping[str, str] = field(default_factory=dict)
    """Key -> what is wrong with its bytes, where they were read."""


@dataclass(frozen=True)
class History:
    began_at: datetime
    """The moment before anything was read; by the database's clock, like `read_at`."""
    read_at: datetime
    """The moment that the tables show."""
    entries: tuple[Entry, ...] = ()
    """Records in the order of topic, partition and offset."""
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    snapshot: Snapshot = Snapshot()
    store: Store = Store()
    audit: tuple[str, ...] = ()
    """What is wrong with the audit chain."""
    access: Access | None = None
    """What the broker has of users; None where the operator may not read it."""

    def of_topic(self, topic: str) -> tuple[Entry, ...]:
        return self._by_topic.get(topic, ())

    def of_type(self, *kinds: type[Message]) -> Iterator[Entry]:
        """Records of these types, each once, in the order of their topic."""
        for entry in self._with_message:
            if isinstance(entry.message, kinds):
                yield entry

    def streams(self, topic: str) -> Mapping[str, tuple[Entry, ...]]:
        """Key -> its records, each once, in the order of the log."""
        return _by_key(_once(self.of_topic(topic)))

    @cached_property
    def ids(self) -> Mapping[EventId, Entry]:
        """The first record of each event."""
        first: dict[EventId, Entry] = {}
        for entry in self.entries:
            first.setdefault((entry.topic, entry.event_id), entry)
        return first

    @cached_property
    def _with_message(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.ids.values() if entry.message is not None)

    @cached_property
    def _by_topic(self) -> Mapping[str, tuple[Entry, ...]]:
        return {
            topic: tuple(entries) for topic, entries in groupby(self.entries, key=lambda entry: entry.topic)
        }


def _once(entries: Iterable[Entry]) -> Iterator[Entry]:
    seen: set[str] = set()
    for entry in entries:
        if entry.event_id not in seen:
            seen.add(entry.event_id)
            yield entry


def _by_key(entries: Iterable[Entry]) -> Mapping[str, tuple[Entry, ...]]:
    by_key: dict[str, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    return {key: tuple(stream) for key, stream in by_key.items()}
