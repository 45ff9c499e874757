"""One namespace of a Kubernetes cluster as a backend of all pools that have it in common.

The record of an attempt is a ConfigMap of its name, which outlives its Job and its pods:

digest, nodes, pool    of what was asked for, written once
keyed                  its nodes get keys, which are in a secret of its name for as long as its Job is there
submitted              its Job was created: none is created again
stopped                nothing may start here any more
taken-back             its queue suspended the Job after it had begun
node-<index>           the machine of a node and, once it has ended, how

A pod cannot go away before its end is in the record: a finalizer of ours holds its object.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import date, datetime, timedelta

from schemas.layout import is_dns_label
from services.provisioner.backends.kubernetes import manifest
from services.provisioner.backends.kubernetes.api import STRATEGIC, Kubernetes
from services.provisioner.backends.kubernetes.machines import takes_pods
from services.provisioner.backends.kubernetes.manifest import ATTEMPT, FORGOTTEN, INSTALLATION, NOTICE
from services.provisioner.backends.kubernetes.status import (
    Attempt,
    Job,
    Pod,
    Record,
    parse_job,
    parse_pod,
    parse_record,
    seen_of,
    status_of,
)
from services.provisioner.backends.polling import poll
from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    BackendFailed,
    Member,
    MemberState,
    SpecConflict,
)
from services.provisioner.node_keys import NodeKeys
from services.provisioner.settings import KubernetesPool
from shared.clock import utc_now

POLL_SECONDS = 1.0
RESYNC_POLLS = 5
WAIT_POLL_SECONDS = 0.2
END_SECONDS = 10.0
STOP_SECONDS = 60.0
"""How long a kubelet that is heard of may take to end a pod whose grace is over."""


class KubernetesBackend:
    def __init__(
        self, pools: Mapping[str, KubernetesPool], *, node_keys: NodeKeys, logs_retention: timedelta
    ) -> None:
        self._pools = pools
        self._node_keys = node_keys
        any_pool = next(iter(pools.values()))
        self._installation = any_pool.installation
        self._fenced_after = max(pool.fenced_after_seconds for pool in pools.values())
        self._gang_wait = timedelta(seconds=max(pool.gang_wait_seconds for pool in pools.values()))
        self._logs_retention = logs_retention
        self._pruned_on: date | None = None
        self._api = Kubernetes(any_pool.kubeconfig, any_pool.context, any_pool.namespace)

    async def start(self, spec: AttemptSpec) -> None:
        _require_label(spec.name)
        pool = self._pools.get(spec.pool)
        if pool is None:
            message = f"{spec.name} is for pool {spec.pool}, expected one of {', '.join(self._pools)}"
            raise BackendFailed(message)
        record = await self._claim(spec, pool)
        if record.was_submitted:
            return
        has_gangs = spec.nodes > 1 and pool.queue is None and await self._api.has_gangs()
        if has_gangs:
            await self._api.create("podgroups", manifest.pod_group(spec, pool))
        keys = [self._node_keys.private(spec.name, index) for index in range(spec.nodes)]
        await self._api.create("secrets", manifest.keys(spec, pool, keys))
        await self._api.create("jobs", manifest.job(spec, pool, has_gangs=has_gangs))
        # A stop that came meanwhile has looked for a Job before there was one; one that comes later deletes it.
        record_after = await self._record(spec.name)
        if record_after is None or record_after.is_stopped:
            await self._delete_job(spec.name)
            raise SpecConflict(f"{spec.name} was stopped while its job was created")
        if pool.queue is None:
            await self._api.patch("jobs", spec.name, {"spec": {"suspend": False}})
        await self._api.patch("configmaps", spec.name, {"data": {"submitted": "true"}})

    async def inspect(self, name: str) -> AttemptStatus | None:
        _require_label(name)
        return await self._settle(f"{ATTEMPT}={name},!{FORGOTTEN}")

    async def list_owned(self) -> list[AttemptStatus]:
        """Also Jobs and pods whose record is gone: nobody else would end them."""
        attempts, strays = await self._attempts(f"!{FORGOTTEN}")
        statuses = [await self._status(attempt) for attempt in attempts]
        return statuses + [AttemptStatus(name, ()) for name in sorted(strays)]

    def watch(self) -> AsyncIterator[AttemptStatus]:
        return poll(self.list_owned, period_seconds=POLL_SECONDS, resync_polls=RESYNC_POLLS)

    async def machines(self, pool: str) -> frozenset[str]:
        of = self._pools[pool]
        nodes = self._api.nodes(of.node_selector)
        return frozenset([node["metadata"]["name"] async for node in nodes if takes_pods(node, of)])

    async def notify(self, name: str, index: int, deadline: datetime) -> None:
        """Delete the pod with a grace until then, unless somebody has: nothing else makes a kubelet send SIGTERM."""
        _require_label(name)
        for pod in await self._taken(name, index, deadline):
            if (grace_seconds := pod.grace_until(deadline, now=utc_now())) is not None:
                await self._delete(pod, grace_seconds)

    async def end(self, name: str, index: int) -> None:
        """The pod of a machine that nobody hears of stays; whoever stops the attempt waits for its fence."""
        _require_label(name)
        for pod in await self._taken(name, index, utc_now()):
            await self._delete(pod, 0.0)

        async def is_quiet() -> bool:
            return all(pod.is_quiet for pod in await self._pods(name) if pod.index == index)

        await _until(is_quiet, END_SECONDS)

    async def stop(self, name: str, grace_seconds: float) -> None:
        _require_label(name)
        await self._take_name(name)
        await self._end_pods(name, grace_seconds)
        await self._delete_job(name)
        await self._end_pods(name, 0.0)  # what the Job made until it was gone
        await self._settle(f"{ATTEMPT}={name}")

    async def forget(self, name: str) -> None:
        _require_label(name)
        await self._delete_job(name)
        today = utc_now().date()
        label = {"metadata": {"labels": {FORGOTTEN: today.isoformat()}}}
        record = await self._record(name)
        if record is not None and not record.forgotten_on:
            await self._api.patch("configmaps", name, label)
        if self._pruned_on != today:
            await self._remove_old_records(today)
            self._pruned_on = today

    async def _claim(self, spec: AttemptSpec, pool: KubernetesPool) -> Record:
        """Create the record; if it is there already it must be of the same specification, and not used up."""
        if await self._api.create("configmaps", manifest.record(spec, pool)):
            return Record(spec.name, digest=spec.digest)
        record = await self._record(spec.name)
        if record is None:
            raise BackendFailed(f"the record of {spec.name} was removed while it was read")
        if record.is_stopped:
            raise SpecConflict(f"{spec.name} was stopped; a new attempt needs a new name")
        if record.digest != spec.digest:
            raise SpecConflict(f"{spec.name} exists with spec {record.digest}, asked for {spec.digest}")
        return record

    async def _take_name(self, name: str) -> None:
        """Mark the name, so that nothing starts there any more."""
        while not await self._api.patch("configmaps", name, {"data": {"stopped": "true"}}):
            await self._api.create("configmaps", manifest.mark(name, self._installation))

    async def _settle(self, selector: str) -> AttemptStatus | None:
        """Return what is known of one attempt, and record it."""
        attempts, _ = await self._attempts(selector)
        return await self._status(attempts[0]) if attempts else None

    async def _record(self, name: str) -> Record | None:
        content = await self._api.get("configmaps", name)
        return parse_record(content) if content else None

    async def _pods(self, name: str) -> list[Pod]:
        [pods] = await self._api.list(self._selector(f"{ATTEMPT}={name}"), "pods")
        return list(map(parse_pod, pods))

    def _selector(self, more: str) -> str:
        return f"{INSTALLATION}={self._installation},{more}"

    async def _attempts(self, selector: str) -> tuple[list[Attempt], set[str]]:
        """Return what the cluster has of each attempt that has a record, and the names of those that have none."""
        # In this order: a record is older than its Job, and a Job than its pods.
        pods, jobs, records = await self._api.list(self._selector(selector), "pods", "jobs", "configmaps")
        pods_of: dict[str, list[Pod]] = {}
        for pod in map(parse_pod, pods):
            pods_of.setdefault(pod.attempt, []).append(pod)
        job_of: dict[str, Job] = {job.name: job for job in map(parse_job, jobs)}
        attempts = [
            Attempt(
                record,
                job_of.get(record.name),
                tuple(sorted(pods_of.get(record.name, ()), key=lambda pod: pod.created_at)),
            )
            for record in map(parse_record, records)
        ]
        return attempts, {*pods_of, *job_of} - {attempt.record.name for attempt in attempts}

    async def _status(self, attempt: Attempt) -> AttemptStatus:
        """Return what is known of the attempt, and record what its pods will not say for ever."""
        hosts = {pod.host for pod in attempt.pods if pod.is_asked}
        lost = [host for host in hosts if not await self._api.is_ready(host)]
        status = status_of(attempt, lost, now=utc_now(), gang_wait=self._gang_wait)
        await self._keep(attempt, status.members)
        return status

    async def _keep(self, attempt: Attempt, members: Iterable[Member]) -> None:
        seen = {
            member.index: seen_of(member)
            for member in members
            if member.host or member.state is MemberState.ENDED
        }
        news = {index: each for index, each in seen.items() if attempt.record.seen.get(index) != each}
        if news:
            data = dict(manifest.seen(index, each) for index, each in news.items())
            await self._api.patch("configmaps", attempt.record.name, {"data": data})
        for pod in attempt.pods:
            is_known = "ended" in seen.get(pod.index, {}) or pod.index >= attempt.record.nodes
            if not pod.is_recorded and is_known:
                await self._let_go(pod)
        if attempt.job is not None and attempt.is_taken_back:
            # Its queue would start it once more.
            await self._api.patch("configmaps", attempt.record.name, {"data": {"taken-back": "true"}})
            await self._delete_job(attempt.record.name)

    async def _let_go(self, pod: Pod) -> None:
        body = {"metadata": {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [manifest.UNRECORDED]}}
        await self._api.patch("pods", pod.name, body, how=STRATEGIC)

    async def _taken(self, name: str, index: int, deadline: datetime) -> list[Pod]:
        """Note on the node's pod that the platform ends it at the deadline. Returns the pods that run."""
        note = {"metadata": {"annotations": {NOTICE: deadline.isoformat()}}}
        pods = [pod for pod in await self._pods(name) if pod.index == index and not pod.is_quiet]
        return [pod for pod in pods if await self._api.patch("pods", pod.name, note)]

    async def _delete(self, pod: Pod, grace_seconds: float) -> None:
        await self._api.delete(
            "pods", pod.name, uid=pod.uid, gracePeriodSeconds=manifest.grace(grace_seconds)
        )

    async def _end_pods(self, name: str, grace_seconds: float) -> None:
        """End all pods. Returns once nothing of them runs, as far as anybody can see, and no fence is awaited."""
        begun = time.monotonic()
        asked: set[str] = set()
        while alive := [pod for pod in await self._pods(name) if not pod.is_quiet]:
            waited = time.monotonic() - begun - grace_seconds
            for pod in alive:
                if pod.uid not in asked:
                    asked.add(pod.uid)
                    await self._delete(pod, grace_seconds)
            if waited > self._fenced_after and not any([await self._is_heard_of(pod) for pod in alive]):
                return
            if waited > max(STOP_SECONDS, self._fenced_after):
                names = ", ".join(f"{pod.name} on {pod.host}" for pod in alive)
                raise BackendFailed(f"{name}: after {waited:.0f} s these pods have not ended: {names}")
            await asyncio.sleep(WAIT_POLL_SECONDS)

    async def _is_heard_of(self, pod: Pod) -> bool:
        return not pod.host or await self._api.is_ready(pod.host)

    async def _delete_job(self, name: str) -> None:
        await self._api.delete("jobs", name, propagationPolicy="Background")
        await self._api.delete("secrets", name)
        if await self._api.has_gangs():
            await self._api.delete("podgroups", name)

    async def _remove_old_records(self, today: date) -> None:
        """Remove records so old that no message could ask for one of their names again."""
        [records] = await self._api.list(self._selector(FORGOTTEN), "configmaps")
        for record in map(parse_record, records):
            if date.fromisoformat(record.forgotten_on) < today - self._logs_retention:
                await self._api.delete("configmaps", record.name)


def _require_label(name: str) -> None:
    if not is_dns_label(name):
        raise SpecConflict(f"attempt name is {name[:80]!r}, expected a DNS label")


async def _until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not await condition() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(WAIT_POLL_SECONDS)
