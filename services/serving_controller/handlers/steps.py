"""Execute one step outside the database; what came of it is an Outcome to keep and to emit."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import uuid4

import httpx

from schemas.base import Message
from schemas.deployment import AdapterLoaded, DeploymentStep, ReplicaLost, ReplicaReady
from services.serving_controller.clients import probe
from services.serving_controller.clients.backend import ReplicaBackend, ReplicaFiles, ReplicaSpec
from services.serving_controller.clients.probe import ProbeFailed
from services.serving_controller.clients.vllm import LoadRefused, NoAnswer, VllmClient
from services.serving_controller.decide import pools
from services.serving_controller.decide.pools import Policy, Step
from services.serving_controller.decide.slots import replica_address
from services.serving_controller.model import (
    Address,
    Failure,
    LoadTimes,
    Phase,
    Replica,
    ReplicaSet,
    Requests,
    Servable,
    is_candidate,
    pool_of,
)
from shared.device_leases.lease import HeldLease, LeaseState
from shared.errors import CorruptObject
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.model_files.tensors import BadModel

log = get_logger(__name__)

MAX_DEATHS = 2


@dataclass(frozen=True)
class Outcome:
    replica: Replica
    events: tuple[Message, ...] = ()
    failures: dict[str, Failure] = field(default_factory=dict)
    """Failures by served name."""
    forgotten: bool = False
    times: LoadTimes | None = None
    """How long the steps of a load took."""


class Course:
    """The step of a load that is under way, and how long those before it took."""

    def __init__(self, *, load_seconds: float = 0.0) -> None:
        """load_seconds: what was spent on loading before."""
        self.step = DeploymentStep.LOAD
        self._seconds: defaultdict[DeploymentStep, float] = defaultdict(float, {self.step: load_seconds})
        self._since = time.monotonic()

    def restart(self) -> None:
        """Count the step under way from now on."""
        self._since = time.monotonic()

    def begin(self, step: DeploymentStep) -> None:
        """End the step under way, and begin the next one."""
        self._end()
        self.step = step

    def times(
        self, replica: Replica, servable: Servable, *, fetch_seconds: float | None, now: datetime
    ) -> LoadTimes:
        """End the last step, and return how long each took."""
        self._end()
        return LoadTimes(
            served_name=servable.served_name,
            replica_id=replica.replica_id,
            incarnation=replica.address.incarnation,
            fetch_seconds=fetch_seconds,
            load_seconds=self._seconds[DeploymentStep.LOAD],
            read_back_seconds=self._seconds[DeploymentStep.READ_BACK],
            probe_seconds=self._seconds[DeploymentStep.PROBE],
            loaded_at=now,
        )

    def _end(self) -> None:
        now = time.monotonic()
        self._seconds[self.step] += now - self._since
        self._since = now


class Steps:
    def __init__(
        self,
        backend: ReplicaBackend,
        files: ReplicaFiles,
        http: httpx.AsyncClient,
        *,
        policy: Policy,
        clock: Callable[[], datetime],
    ) -> None:
        self._backend = backend
        self._files = files
        self._http = http
        self._policy = policy
        self._clock = clock
        """Postgres': what is noted of a replica is compared by whichever process leads then."""
        self._deaths: Counter[str] = Counter()
        self._awaited_since: dict[str, datetime] = {}
        """When the node of a lease was first asked for, which has reported nothing."""
        self._fetched_since: dict[tuple[str, str], float] = {}
        """When the files of a load were first asked for that are not there, by incarnation and served name."""

    def forget_all_but(self, names: set[str]) -> None:
        for gone in self._deaths.keys() - names:
            del self._deaths[gone]
        self._fetched_since = {each: at for each, at in self._fetched_since.items() if each[1] in names}

    async def end_unknown(self, known: set[str]) -> None:
        for replica_id in await self._backend.list_owned():
            if replica_id not in known:
                await self._backend.end(replica_id)

    async def keep_files(self, *, bases: Container[str], models: Container[str]) -> None:
        """Keep the files of these base models and full models (by digest); those of all others are deleted."""
        await self._files.keep_only(bases=bases, models=models)

    async def is_running(self, replica: Replica) -> bool:
        """Whether the process of this very start is there; it is not asked anything."""
        status = await self._backend.inspect(replica.replica_id)
        return status is not None and status.is_alive and status.incarnation == replica.address.incarnation

    async def inspect(self, replica: Replica) -> Replica:
        """The replica as it is now: whether this very start of it lives and answers, and what it has loaded."""
        if replica.phase is Phase.LOST:
            return replica
        status = await self._backend.inspect(replica.replica_id)
        if status is None or not status.is_alive or status.incarnation != replica.address.incarnation:
            log_tail = await self._backend.log_tail(replica.replica_id)
            reason = f"the process is gone; it said: {log_tail}"
            return replace(replica, is_alive=False, answers=False, reason=reason)
        replica = replace(replica, address=replace(replica.address, url=status.url))
        try:
            models = await self._client(replica).models()
        except NoAnswer:
            return replace(replica, answers=False)
        loaded = replica.loaded & frozenset(models)
        strays = frozenset(name for name in models if name not in loaded and is_candidate(name))
        replica = replace(replica, is_alive=True, answers=True, loaded=loaded, strays=strays)
        if replica.phase is Phase.LEAVING:
            requests = await self.requests(replica)
            return replace(replica, is_busy=requests is None or requests.total > 0)
        return replica

    async def requests(self, replica: Replica) -> Requests | None:
        """What it has to answer; None where that is not known."""
        try:
            return await self._client(replica).requests()
        except (NoAnswer, ValueError) as error:
            log.warning(
                "requests of a replica are not known", replica_id=replica.replica_id, error=str(error)
            )
            return None

    async def execute(
        self, action: Step, replica_set: ReplicaSet, known: dict[str, Replica]
    ) -> Outcome | None:
        """Return what came of it; None: something is on its way, and the step is planned again."""
        match action:
            case pools.Start():
                return await self._start(action, replica_set)
            case pools.End(replica, reason):
                return await self._end(known[replica.replica_id], replica, reason)
            case pools.Drain(replica):
                return self._drain(replica)
            case pools.Forget(replica):
                return Outcome(replica, forgotten=True)
            case pools.Admit(replica):
                return await self._admit(replica, replica_set)
            case pools.Announce(replica, base_names):
                return await self._announce(replica, base_names)
            case pools.Load(replica_id, servable) if is_candidate(servable.served_name):
                return await self._load_candidate(known[replica_id], servable)
            case pools.Load(replica_id, servable):
                return await self._load(known[replica_id], servable)
            case pools.Unload(replica_id, served_name):
                return await self._unload(known[replica_id], served_name)

    async def _start(self, start: pools.Start, replica_set: ReplicaSet) -> Outcome | None:
        replica = Replica(
            replica_id=start.replica_id,
            replica_set=replica_set.name,
            base_sha=replica_set.base_sha,
            phase=Phase.STARTING,
            address=Address(start.replica_id, uuid4().hex, ""),
            started_at=self._clock(),
            max_rank=start.max_rank,
            failures=start.failures,
        )
        if start.lease is not None and (problem := self._problem_of(start.lease)):
            return Outcome(self._given_up(replica, f"devices: {problem}"))
        engine = await self._backend.engine(replica.replica_id)
        if engine is None:
            return self._awaited(replica, start.lease)
        if start.lease is not None:
            self._awaited_since.pop(start.lease.lease_id, None)
        if start.lease is not None and start.lease.device not in (None, engine.device):
            problem = f"the pool has {start.lease.device}, vLLM is for {engine.device}"
            return Outcome(self._given_up(replica, f"devices: {problem}"))
        try:
            spec = await self._spec(replica, replica_set, start.lease)
        except (CorruptObject, KeyError) as error:
            return Outcome(self._given_up(replica, f"model files: {error}"))
        if spec is None:
            return None
        await self._backend.start(spec)
        log.info("replica started", replica_id=replica.replica_id, incarnation=spec.incarnation)
        return Outcome(replica)

    def _awaited(self, replica: Replica, lease: HeldLease | None) -> Outcome | None:
        """Wait for a node that has not reported yet, but not for ever."""
        assert lease is not None, "a replica of this machine has no node"
        now = self._clock()
        since = self._awaited_since.setdefault(lease.lease_id, now)
        if now - since <= self._policy.start_within:
            return None
        del self._awaited_since[lease.lease_id]
        reason = f"its node has not reported within {self._policy.start_within.total_seconds():g} s"
        return Outcome(self._given_up(replica, reason))

    def _problem_of(self, lease: HeldLease) -> str:
        """Say why no replica can run on what was leased; empty where one can."""
        if lease.state is not LeaseState.HELD:
            return lease.reason
        if (lease.node is not None) == self._backend.has_nodes:
            return ""
        where = "on a node of another backend" if lease.node else "on the provisioner's machine"
        return f"they are {where}, expected otherwise: see SERVING_CONTROLLER_ON_NODES"

    async def extend(self, lease: HeldLease) -> None:
        """Let the replica of a lease run until it ends, as the provisioner has confirmed."""
        if (seconds := self._seconds_left(lease)) is not None:
            await self._backend.extend(lease.subject, seconds)

    def _seconds_left(self, lease: HeldLease | None) -> float | None:
        return None if lease is None or lease.until is None else (lease.until - self._clock()).total_seconds()

    async def _spec(
        self, replica: Replica, replica_set: ReplicaSet, lease: HeldLease | None
    ) -> ReplicaSpec | None:
        model_dir = await self._files.model(replica.replica_id, replica_set.base_sha, replica_set.full)
        if model_dir is None:
            return None
        return ReplicaSpec(
            replica_id=replica.replica_id,
            incarnation=replica.address.incarnation,
            model_dir=model_dir,
            served_name=replica_set.full.served_name if replica_set.full else base_name(replica_set),
            max_lora_rank=replica.max_rank,
            adapter_layers=replica_set.adapter_layers or (),
            devices=lease.environment if lease else {},
            lease_seconds=self._seconds_left(lease),
        )

    async def _end(self, was: Replica, kept: Replica, reason: str) -> Outcome:
        """Kill first, then emit: what was called lost can not answer any more."""
        await self._backend.end(was.replica_id)
        log.warning("replica ended", replica_id=was.replica_id, reason=reason, failures=kept.failures)
        return Outcome(kept, (_lost(was, reason),) if was.phase is Phase.READY else ())

    def _drain(self, kept: Replica) -> Outcome:
        """Emit first: nobody shall ask it any more, and it answers what it was asked."""
        log.info("replica leaves", replica_id=kept.replica_id, reason=kept.reason)
        return Outcome(kept, (_lost(kept, kept.reason),))

    def _given_up(self, replica: Replica, reason: str) -> Replica:
        return pools.end(replica, reason, now=self._clock(), policy=self._policy).replica

    async def _admit(self, replica: Replica, replica_set: ReplicaSet) -> Outcome:
        try:
            if replica_set.full is not None:
                return await self._admit_full(replica, replica_set.full)
            return await self._admit_base(replica, replica_set)
        except (ProbeFailed, LoadRefused) as error:
            reason = f"{type(error).__name__}: {error}"
            return await self._end(replica, self._given_up(replica, reason), reason)

    async def _admit_base(self, replica: Replica, replica_set: ReplicaSet) -> Outcome:
        name = base_name(replica_set)
        await probe.prove_answers(self._client(replica), name)
        ready = replace(replica, phase=Phase.READY, served_base=name)
        return await self._announce(ready, replica_set.base_names)

    async def _admit_full(self, replica: Replica, full: Servable) -> Outcome:
        name, client = full.served_name, self._client(replica)
        course = Course(load_seconds=(self._clock() - replica.started_at).total_seconds())
        course.begin(DeploymentStep.READ_BACK)
        await client.require_listed(name)
        course.begin(DeploymentStep.PROBE)
        await probe.prove_answers(client, name)
        ready = replace(replica, phase=Phase.READY, served_base=name, loaded=frozenset({name}))
        times = course.times(ready, full, fetch_seconds=None, now=self._clock())
        # Under its own name: whoever asks for the base model must not be sent here.
        announced = await self._announce(ready, (full.full_name,))
        return replace(announced, events=(*announced.events, _loaded(ready, full, times)), times=times)

    async def _announce(self, replica: Replica, base_names: tuple[str, ...]) -> Outcome:
        engine = await self._backend.engine(replica.replica_id)
        assert engine is not None, "it is known since the start"
        facts = tuple(
            ReplicaReady(
                pool=pool_of(replica.base_sha),
                base_sha=replica.base_sha,
                replica=replica_address(replica.address),
                base_model=name,
                served_base=replica.served_base,
                engine=engine.name,
                device=engine.device,
            )
            for name in base_names
        )
        return Outcome(replace(replica, announced=replica.announced | set(base_names)), facts)

    async def _load(self, replica: Replica, servable: Servable) -> Outcome | None:
        name, client, course = servable.served_name, self._client(replica), Course()
        fetched = (replica.address.incarnation, name)
        since = self._fetched_since.setdefault(fetched, time.monotonic())
        try:
            path = await self._files.adapter(replica.replica_id, servable)
            if path is None:
                return None
            fetch_seconds = time.monotonic() - since
            course.restart()
            await client.load(name, path)
            course.begin(DeploymentStep.READ_BACK)
            failpoint("serving.load.one")
            await client.require_listed(name)
            course.begin(DeploymentStep.PROBE)
            await probe.prove_active(client, replica.served_base, name)
        except (BadModel, CorruptObject, KeyError, LoadRefused) as error:
            failure = Failure("load", _describe_error(replica, error), course.step)
            return await self._not_loaded(replica, servable, failure)
        except ProbeFailed as error:
            failure = Failure("probe", _describe_error(replica, error), course.step)
            return await self._not_loaded(replica, servable, failure)
        except NoAnswer as error:
            return self._suspect(replica, servable, error, course.step)
        self._deaths.pop(name, None)
        del self._fetched_since[fetched]
        times = course.times(replica, servable, fetch_seconds=fetch_seconds, now=self._clock())
        seconds = round(times.load_seconds, 3)
        log.info("adapter loaded", replica_id=replica.replica_id, name=name, seconds=seconds)
        loaded = replace(replica, loaded=replica.loaded | {name})
        return Outcome(loaded, (_loaded(loaded, servable, times),), times=times)

    async def _load_candidate(self, replica: Replica, servable: Servable) -> Outcome | None:
        """Try to load it once, and then no more: it is no reason to lose a replica twice."""
        try:
            outcome = await self._load(replica, servable)
        except NoAnswer as error:
            failure = Failure("load", f"the replica fell silent: {error}")
            return Outcome(replica, failures={servable.served_name: failure})
        finally:
            self._deaths.pop(servable.served_name, None)
        # That it is loaded is for its evaluation alone, which hears CandidateReady.
        return outcome and replace(outcome, events=(), times=None)

    def _suspect(
        self, replica: Replica, servable: Servable, error: NoAnswer, step: DeploymentStep
    ) -> Outcome:
        """The replica fell silent while it loaded this. Once may be chance; twice is the adapter's doing."""
        name = servable.served_name
        self._deaths[name] += 1
        if self._deaths[name] < MAX_DEATHS:
            raise error
        reason = f"the replica fell silent {self._deaths.pop(name)} times: {error}"
        failure = Failure("load", reason, step, is_final=True)
        return Outcome(replica, failures={name: failure})

    async def _not_loaded(self, replica: Replica, servable: Servable, failure: Failure) -> Outcome:
        log.warning("adapter not loaded", replica_id=replica.replica_id, reason=failure.reason)
        self._fetched_since.pop((replica.address.incarnation, servable.served_name), None)
        unloaded = await self._unload(replica, servable.served_name)
        return replace(unloaded, failures={servable.served_name: failure})

    async def _unload(self, replica: Replica, served_name: str) -> Outcome:
        await self._client(replica).unload(served_name)
        await self._files.remove_adapter(replica.replica_id, served_name)
        loaded, strays = replica.loaded - {served_name}, replica.strays - {served_name}
        return Outcome(replace(replica, loaded=loaded, strays=strays))

    def _client(self, replica: Replica) -> VllmClient:
        return VllmClient(self._http, replica.address.url, self._backend.management_key(replica.replica_id))


def base_name(replica_set: ReplicaSet) -> str:
    """What a replica calls its base model."""
    return replica_set.base_names[0] if replica_set.base_names else replica_set.pool


def _lost(replica: Replica, reason: str) -> ReplicaLost:
    return ReplicaLost(
        pool=pool_of(replica.base_sha),
        base_sha=replica.base_sha,
        replica=replica_address(replica.address),
        reason=reason,
    )


def _loaded(replica: Replica, servable: Servable, times: LoadTimes) -> AdapterLoaded:
    return AdapterLoaded(
        pool=servable.pool,
        base_sha=servable.base_sha,
        replica=replica_address(replica.address),
        served_name=servable.served_name,
        digest=servable.digest,
        load_seconds=times.load_seconds,
    )


def _describe_error(replica: Replica, error: Exception) -> str:
    reason = f"{error.args[0]} does not exist" if isinstance(error, KeyError) else str(error)
    return f"{replica.replica_id}: {type(error).__name__}: {reason}"
