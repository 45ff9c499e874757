"""Invariants of what jobs use and make: I7, I9, I10 and I11."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from ops.doctor.finding import Finding
from ops.doctor.history import (
    AttemptId,
    Generation,
    History,
    Limits,
    ModelVersion,
    Replica,
    Route,
    Snapshot,
)
from schemas import layout
from schemas.checkpoint import CheckpointVerified
from schemas.dataset import DatasetReady
from schemas.lifecycle import TERMINAL
from schemas.model import BaseModelRegistered, ModelRegistered
from schemas.node import PoolCapacityChanged

LEASE_ENDS_WITHIN = timedelta(minutes=1)
"""Longer than the provisioner takes to end a lease that its holder did not extend."""
USABLE = ("verified", "expiring", "expired")


def parts_whole(history: History, limits: Limits) -> Iterator[Finding]:
    """I7: every manifest is what its fact says, and every part it names is there, whole."""
    store = history.store
    for key, manifest in store.manifests.items():
        if manifest.problem:
            yield Finding(key, manifest.problem, "a manifest")
        for part in manifest.parts:
            size = store.sizes.get(part.key)
            if size != part.size_bytes:
                actual = "nothing" if size is None else f"{size} bytes"
                yield Finding(part.key, actual, f"{part.size_bytes} bytes, as {key} says")
    for key, problem in store.corrupt.items():
        yield Finding(key, problem, "the bytes that its manifest names")
    yield from _manifests_missing(history, limits)
    for file in history.snapshot.files:
        size = store.sizes.get(layout.blob(file.sha256))
        if size != file.size_bytes:
            actual = "nothing" if size is None else f"{size} bytes"
            yield Finding(layout.blob(file.sha256), actual, f"{file.size_bytes} bytes of {file.file_id}")
    for key in sorted(map(layout.blob, history.snapshot.removed_bytes)):
        if key in store.sizes:
            yield Finding(key, f"{store.sizes[key]} bytes", "nothing: every file of these bytes is deleted")


def _manifests_missing(history: History, limits: Limits) -> Iterator[Finding]:
    for key, sha256, named_by in _manifests_named(history, limits):
        manifest = history.store.manifests.get(key)
        if manifest is None:
            yield Finding(key, "nothing", f"the manifest of {named_by}")
        elif sha256 is not None and manifest.sha256 != sha256:
            yield Finding(key, f"sha256 {manifest.sha256[:16]}", f"{sha256[:16]}, as {named_by} says")


def _manifests_named(history: History, limits: Limits) -> Iterator[tuple[str, str | None, str]]:
    """(key, sha256 or None, who names it) of what must be there now, and was there when S3 was listed."""
    snapshot, new = history.snapshot, _recently_announced(history, limits)
    for each in snapshot.checkpoints:
        if each.state == "verified" and (each.job_id, each.bundle) not in new:
            key = layout.checkpoint(each.job_id, each.bundle.attempt, each.bundle.step)
            yield key, each.bundle.manifest_sha256, f"a verified bundle of {each.job_id}"
    for version, (state, sha256) in snapshot.datasets.items():
        if state == "ready" and version not in new:
            yield layout.dataset(version), sha256, f"dataset version {version[:12]}"
    for base_sha, sha256 in snapshot.base_models.items():
        if base_sha not in new:
            yield layout.base_model(base_sha), sha256, f"base model {base_sha[:12]}"
    for model in snapshot.models:
        if not model.is_archived and model.model_id not in new:
            yield layout.model(model.digest), None, f"model version {model.model_id}"


def _recently_announced(history: History, limits: Limits) -> set[object]:
    ids: set[object] = set()
    for entry in history.of_type(CheckpointVerified, DatasetReady, BaseModelRegistered, ModelRegistered):
        if entry.time is not None and entry.time > history.began_at - limits.grace:
            match entry.message:
                case CheckpointVerified(job_id=job_id, bundle=bundle):
                    ids.add((job_id, bundle))
                case DatasetReady(dataset_version=version):
                    ids.add(version)
                case BaseModelRegistered(base_sha=base_sha):
                    ids.add(base_sha)
                case ModelRegistered(model_id=model_id):
                    ids.add(model_id)
    return ids


def lineage_whole(history: History, limits: Limits) -> Iterator[Finding]:
    """I9: from every model version the way leads back to its job, bundle, dataset, base model and verdict."""
    snapshot = history.snapshot
    verified = {(each.job_id, each.bundle) for each in snapshot.checkpoints if each.state in USABLE}
    for model in snapshot.models:
        where = f"registry.model_version {model.model_id}"
        job = snapshot.jobs.get(model.job_id)
        if job is None or job.tenant != model.tenant:
            yield Finding(where, f"job {model.job_id}", f"a job of tenant {model.tenant}")
        elif job.config_hash != model.config_hash:
            actual = f"config hash {model.config_hash[:16]}"
            yield Finding(where, actual, f"{(job.config_hash or 'none')[:16]} of job {model.job_id}")
        if model.dataset_version not in snapshot.datasets:
            yield Finding(where, f"dataset version {model.dataset_version[:16]}", "one that ingest made")
        if model.base_sha not in snapshot.base_models:
            yield Finding(where, f"base sha {model.base_sha[:16]}", "a registered one")
        if (model.job_id, model.bundle) not in verified:
            actual = f"bundle {model.bundle.attempt}/{model.bundle.step} of {model.job_id}"
            yield Finding(where, actual, "a verified bundle of that job")
        if model.stage != "dev":
            yield from _not_passed(where, model, snapshot)


def _not_passed(where: str, model: ModelVersion, snapshot: Snapshot) -> Iterator[Finding]:
    """The verdict must be a pass, of exactly this digest on exactly this base."""
    verdict = snapshot.evaluations.get(model.eval_id or "")
    if verdict is None:
        yield Finding(where, f"stage {model.stage} with evaluation {model.eval_id}", "one that took place")
        return
    actual = (verdict.state, verdict.digest, verdict.base_sha)
    if actual != ("passed", model.digest, model.base_sha):
        expected = f"a pass of digest {model.digest[:16]} on base {model.base_sha[:16]}"
        yield Finding(
            where, f"evaluation {verdict.eval_id}: {' '.join(str(each)[:16] for each in actual)}", expected
        )


def served_as_approved(history: History, limits: Limits) -> Iterator[Finding]:
    """I10: what is routed was approved and passed its gate, and is loaded wherever it is routed."""
    snapshot = history.snapshot
    approved = {(each.tenant, each.slot, each.number): each for each in snapshot.generations}
    models = {model.model_id: model for model in snapshot.models}
    replicas = {(each.replica_id, each.incarnation): each for each in snapshot.replicas}
    for route in snapshot.routes:
        where = f"slot {route.slot} of {route.tenant}, generation {route.generation}"
        yield from _not_approved(where, route, approved.get((route.tenant, route.slot, route.generation)))
        model = models.get(route.model_id)
        if model is None or model.digest != route.digest:
            yield Finding(where, f"{route.model_id} with digest {route.digest[:16]}", "a registered version")
        elif model.stage == "dev":
            yield Finding(
                where, f"{route.model_id}, which is in dev", "a version that passed its newest gate"
            )
        else:
            yield from _not_passed(where, model, snapshot)
        for address in route.replicas:
            yield from _not_loaded(where, route, replicas.get(address), address)
    yield from _loaded_for_nobody(snapshot)


def _not_approved(where: str, route: Route, approved: Generation | None) -> Iterator[Finding]:
    expected = (approved.model_id, approved.digest) if approved else None
    if expected != (route.model_id, route.digest):
        expected_text = (
            f"{expected[0]}, as the registry approved" if expected else "an approval by the registry"
        )
        yield Finding(where, f"routed to {route.model_id} with digest {route.digest[:16]}", expected_text)


def _not_loaded(
    where: str, route: Route, replica: Replica | None, address: tuple[str, str]
) -> Iterator[Finding]:
    if replica is None or replica.phase != "ready":
        actual = f"routed to {address[0]} ({address[1]}), which is {replica.phase if replica else 'unknown'}"
        yield Finding(where, actual, "a ready replica")
    elif route.is_adapter and route.served_name not in replica.loaded:
        actual = f"routed to {address[0]}, which has not loaded it"
        yield Finding(where, actual, f"{route.served_name} loaded")


def _loaded_for_nobody(snapshot: Snapshot) -> Iterator[Finding]:
    for replica in snapshot.replicas:
        if replica.phase == "ready" and (extra := replica.loaded - snapshot.expected_loaded):
            actual = f"{', '.join(sorted(extra))} loaded"
            yield Finding(
                f"replica {replica.replica_id}", actual, "only what a slot serves or served a minute ago"
            )


def no_orphans(history: History, limits: Limits) -> Iterator[Finding]:
    """I11: no more nodes than the pool has; nobody holds anything for an attempt, or a lease, that is over."""
    snapshot = history.snapshot
    yield from _overbooked(history)
    holders = (
        ("scheduler's ledger", snapshot.booked),
        ("trainer_agent", snapshot.training),
        ("provisioner", snapshot.held),
    )
    for holder, attempts in holders:
        for job_id, attempt in sorted(attempts):
            if reason := _why_over(job_id, attempt, snapshot):
                yield Finding(f"{holder}, attempt {attempt} of {job_id}", "still open", f"closed: {reason}")
    yield from _orphan_leases(history)
    yield from _orphan_uploads(history)


def _overbooked(history: History) -> Iterator[Finding]:
    """A pool that was made smaller may hold more for a while, but gives nothing new. Nodes share machines."""
    machines = {(node.pool, node.machine) for node in history.snapshot.nodes if not node.is_drained}
    held = Counter(pool for pool, _ in machines)
    newest: dict[str, datetime] = defaultdict(
        lambda: history.began_at.min.replace(tzinfo=history.began_at.tzinfo)
    )
    for node in history.snapshot.nodes:
        newest[node.pool] = max(newest[node.pool], node.allocated_at)
    changed = _capacity_changed(history)
    for pool, count in held.items():
        size = history.snapshot.pools.get(pool, 0)
        if count > size and (pool not in changed or newest[pool] > changed[pool]):
            yield Finding(
                f"provisioner, pool {pool}", f"nodes allocated on {count} machines", f"at most {size}"
            )


def _orphan_leases(history: History) -> Iterator[Finding]:
    """A lease whose holder died ends by itself some seconds after its time."""
    snapshot = history.snapshot
    for lease in snapshot.device_leases:
        where = f"provisioner, lease {lease.lease_id} of pool {lease.pool}"
        if history.read_at - lease.until > LEASE_ENDS_WITHIN:
            yield Finding(where, f"open since its end at {lease.until:%H:%M:%S} UTC", "ended")
        elif lease.lease_id not in snapshot.known_leases:
            yield Finding(where, f"unknown to {lease.holder}", "one that its holder has or gives back")


def _capacity_changed(history: History) -> dict[str, datetime]:
    """Pool -> when its number of nodes changed last, by the facts."""
    nodes: dict[str, int] = {}
    changed_at: dict[str, datetime] = {}
    for entry in history.of_type(PoolCapacityChanged):
        fact = entry.message
        assert isinstance(fact, PoolCapacityChanged), "of_type() filters"
        if nodes.get(fact.pool) != fact.nodes and entry.time is not None:
            changed_at[fact.pool] = entry.time
        nodes[fact.pool] = fact.nodes
    return changed_at


def _why_over(job_id: str, attempt: int, snapshot: Snapshot) -> str:
    job = snapshot.jobs.get(job_id)
    if job is None:
        return "there is no such job"
    if attempt < job.attempt:
        return f"attempt {job.attempt} is the current one"
    if job.state in TERMINAL or job.state in ("queued", "paused"):
        return f"the job is {job.state}"
    return ""


def expired_with_their_job(history: History, limits: Limits) -> Iterator[Finding]:
    """I18: bundles of an ended job are kept for a while, and a deletion of them is planned; then nothing is left."""
    keys: Counter[str] = Counter(
        key.split("/")[1] for key in history.store.sizes if key.startswith("checkpoints/")
    )
    for job_id, count in sorted(keys.items()):
        job = history.snapshot.jobs.get(job_id)
        if (job is None or job.state in TERMINAL) and job_id not in history.snapshot.expiring:
            state = job.state if job else "not known"
            actual = f"{count} objects, and nothing that will delete them"
            yield Finding(f"checkpoints of {job_id}, which is {state}", actual, "none after retention")


def _orphan_uploads(history: History) -> Iterator[Finding]:
    """Parts without a manifest, of an attempt that writes no more and that nobody will sweep."""
    left: dict[AttemptId, list[str]] = defaultdict(list)
    for key in _without_manifest(history.store.sizes):
        if (owner := _attempt_of(key)) is not None:
            left[owner].append(key)
    for (job_id, attempt), keys in sorted(left.items()):
        newest, is_open = history.snapshot.watched.get(job_id, (0, False))
        is_over = attempt < newest or (attempt == newest and not is_open)
        if is_over and (job_id, attempt) not in history.snapshot.sweeps_due:
            actual = f"{len(keys)} parts without a manifest, first {keys[0]}"
            yield Finding(f"checkpoints of {job_id}, attempt {attempt}", actual, "none after the sweep")


def _without_manifest(keys: Iterable[str]) -> list[str]:
    checkpoints = sorted(key for key in keys if key.startswith("checkpoints/"))
    ending = f"/{layout.MANIFEST}"
    whole = {key.removesuffix(ending) for key in checkpoints if key.endswith(ending)}
    return [key for key in checkpoints if "/".join(key.split("/")[:4]) not in whole]


def _attempt_of(key: str) -> AttemptId | None:
    """Read the attempt from `checkpoints/<job>/a-<job>-e<attempt>/…`; None for a key that is none of ours."""
    folders = key.split("/")
    number = folders[2].rpartition("-e")[2] if len(folders) > 2 else ""
    return (folders[1], int(number)) if number.isdigit() else None
