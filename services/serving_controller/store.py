"""SQL of the serving controller; the only file that knows its columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from services.serving_controller.model import (
    Candidate,
    DesiredServable,
    LoadTimes,
    NodeRecord,
    Replica,
    ReplicaSetServables,
    Retired,
    Slot,
)
from services.serving_controller.protocol import NodeReport
from shared.errors import StaleWrite
from shared.postgres.database import Connection, lock_name
from shared.postgres.rows import Columns, read

SLOT = Columns("generation, state, desired, route, served, origin, approval")
RETIRED = Columns("served_name=servable.served_name, servable, keep_until")
REPLICA = Columns(
    "replica_id, replica_set, base_sha, phase, incarnation=address.incarnation, url=address.url, started_at,"
    " max_rank, served_base, announced, loaded, failures, not_before, reason"
)
CANDIDATE = Columns("eval_id, servable, until, command_id, host")

SLOTS = f"SELECT tenant, name, revision, {SLOT.selected} FROM slot"

ON_BASE = """
    WHERE (tenant, name) > ($3, $4)
      AND ((desired->>'base_model' = $1 AND desired->>'base_sha' = $2)
        OR (route->'servable'->>'base_model' = $1 AND route->'servable'->>'base_sha' = $2))
    ORDER BY tenant, name LIMIT $5 FOR UPDATE"""

ADD_SLOT = """
    INSERT INTO slot (tenant, name, generation, state, served) VALUES ($1, $2, 0, 'withdrawn', '{}')
    ON CONFLICT DO NOTHING"""

SAVE_SLOT = f"""
    UPDATE slot SET ({SLOT.names}) = ROW({SLOT.parameters(4)}), revision = revision + 1
     WHERE tenant = $1 AND name = $2 AND revision = $3 RETURNING revision"""

COUNT_REPLICAS = "SELECT served_base, phase, count(*) FROM replica GROUP BY 1, 2"
COUNT_LOADED = "SELECT served_base, replica_id, cardinality(loaded) FROM replica"
COUNT_WANTED = "SELECT CASE WHEN is_pending THEN 'pending' ELSE 'ready' END, count(*) FROM wanted GROUP BY 1"

# Returns the replica sets that shall serve something else than before.
SAVE_WANTED = """
    WITH now_wanted AS (
        SELECT served_name, replica_set, servable, is_pending FROM jsonb_to_recordset($3)
            AS wanted (served_name text, replica_set text, servable jsonb, is_pending boolean)),
    gone AS (
        DELETE FROM wanted WHERE tenant = $1 AND slot = $2
           AND served_name NOT IN (SELECT served_name FROM now_wanted) RETURNING replica_set),
    kept AS (
        INSERT INTO wanted (tenant, slot, served_name, replica_set, servable, is_pending)
        SELECT $1, $2, served_name, replica_set, servable, is_pending FROM now_wanted
        ON CONFLICT (tenant, slot, served_name) DO UPDATE SET is_pending = excluded.is_pending, since = now()
         WHERE wanted.is_pending <> excluded.is_pending RETURNING replica_set)
    INSERT INTO wanted_replica_set (name) SELECT replica_set FROM gone UNION SELECT replica_set FROM kept ORDER BY 1
    ON CONFLICT (name) DO UPDATE SET version = nextval('version') RETURNING name"""

FORGET_REPLICA_SETS = """
    DELETE FROM wanted_replica_set WHERE name = ANY($1)
       AND NOT EXISTS (SELECT FROM wanted WHERE wanted.replica_set = wanted_replica_set.name)"""

# What several slots serve is one version, used when one of them was.
WANTED = """
    SELECT (array_agg(servable))[1] AS servable, bool_or(is_pending) AS is_pending
      FROM wanted WHERE replica_set = $1 GROUP BY served_name
     ORDER BY bool_or(is_pending) DESC, max(greatest(since, (
         SELECT used_at FROM slot_use WHERE (slot_use.tenant, slot_use.slot) = (wanted.tenant, wanted.slot)
     ))) DESC, served_name"""

USED_REPLICA_SETS = """
    SELECT DISTINCT replica_set FROM jsonb_to_recordset($1) AS used (tenant text, slot text) CROSS JOIN LATERAL (
        SELECT replica_set FROM wanted WHERE (tenant, slot) = (used.tenant, used.slot) OFFSET 0) AS found"""

# Of slots that serve nothing there is nothing to know.
SAVE_USED = """
    INSERT INTO slot_use (tenant, slot, used_at)
    SELECT DISTINCT used.tenant, used.slot, $2::timestamptz
      FROM jsonb_to_recordset($1) AS used (tenant text, slot text) CROSS JOIN LATERAL (
        SELECT FROM wanted WHERE (tenant, slot) = (used.tenant, used.slot) LIMIT 1) AS found
     ORDER BY tenant, slot
    ON CONFLICT (tenant, slot) DO UPDATE SET used_at = greatest(slot_use.used_at, excluded.used_at)"""

FORGET_USE = "DELETE FROM slot_use WHERE tenant = $1 AND slot = $2"
CHANGE_REPLICA_SETS = """
    WITH locked AS (SELECT name FROM wanted_replica_set WHERE name = ANY($1) ORDER BY name FOR UPDATE)
    UPDATE wanted_replica_set SET version = nextval('version')
      FROM locked WHERE wanted_replica_set.name = locked.name"""

REPLICA_SETS = "SELECT name, version FROM wanted_replica_set"
REPLICA_VERSIONS = "SELECT replica_id, version FROM replica"

SERVING = """
    WHERE (tenant, name) IN (SELECT tenant, slot FROM wanted WHERE replica_set = $1 AND served_name = ANY($2))
    ORDER BY tenant, name FOR UPDATE"""

ROUTED_BEYOND = """
    WHERE (tenant, name) IN (SELECT tenant, slot FROM wanted WHERE replica_set = $1 AND served_name <> ALL($2))
      AND route -> 'addresses' <> '[]' ORDER BY tenant, name FOR UPDATE"""

SAVE_RETIRED = f"""
    INSERT INTO retired ({RETIRED.names}) VALUES ({RETIRED.parameters()})
    ON CONFLICT (served_name) DO UPDATE SET keep_until = greatest(retired.keep_until, excluded.keep_until)"""

REPLICAS = f"""
    SELECT {REPLICA.selected}, replica_id AS "address.replica_id" FROM replica ORDER BY replica_id"""

SAVE_REPLICA = f"""
    INSERT INTO replica ({REPLICA.names}) VALUES ({REPLICA.parameters()})
    ON CONFLICT (replica_id) DO UPDATE SET {REPLICA.excluded}, version = nextval('version')"""

SAVE_CANDIDATE = f"""
    INSERT INTO candidate ({CANDIDATE.names}) VALUES ({CANDIDATE.parameters()})
    ON CONFLICT (eval_id) DO UPDATE SET {CANDIDATE.excluded}"""

CANDIDATES = f"SELECT {CANDIDATE.selected} FROM candidate"

NODE = Columns("replica_id, lease_id, folders, start, report")
NODE_ORDER = Columns("folders, start")
# Of leases that were not given back.
NODES = f"SELECT {NODE.selected} FROM replica_node JOIN held_lease USING (lease_id)"
SAVE_REPORT = f"""
    INSERT INTO replica_node (replica_id, lease_id, report) VALUES ($1, $2, $3)
    ON CONFLICT (replica_id) DO UPDATE SET lease_id = $2, report = $3,
        folders = CASE WHEN replica_node.lease_id = $2 THEN replica_node.folders ELSE '[]' END,
        start = CASE WHEN replica_node.lease_id = $2 THEN replica_node.start END
    RETURNING {NODE.selected}"""
SAVE_ORDER = "UPDATE replica_node SET folders = $3, start = $4 WHERE (replica_id, lease_id) = ($1, $2)"
FORGET_NODES = "DELETE FROM replica_node WHERE lease_id NOT IN (SELECT lease_id FROM held_lease)"

LOAD_TIMES = Columns(
    "served_name, replica_id, incarnation, fetch_seconds, load_seconds, read_back_seconds, probe_seconds, loaded_at"
)
SAVE_LOAD_TIMES = f"""
    INSERT INTO load_time ({LOAD_TIMES.names}) VALUES ({LOAD_TIMES.parameters()})
    ON CONFLICT (served_name, replica_id) DO UPDATE SET {LOAD_TIMES.excluded}"""
LIST_LOAD_TIMES = (
    f"SELECT {LOAD_TIMES.selected} FROM load_time WHERE served_name = ANY($1) ORDER BY replica_id"
)
PRUNE_LOAD_TIMES = """
    DELETE FROM load_time WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM load_time WHERE loaded_at < now() - $1::interval LIMIT $2))"""

HAS_READY_REPLICA = "SELECT EXISTS (SELECT FROM replica WHERE replica_set = $1 AND phase = 'ready')"


SAVE_BASE_MODEL = """
    INSERT INTO base_model (name, base_sha, adapter_layers) VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE SET base_sha = $2, adapter_layers = $3"""

STALE_BASES = "SELECT base_model, base_sha FROM stale_base"


@dataclass(frozen=True)
class View:
    """All that a look begins with; of what is long only its versions."""

    versions: Mapping[str, int]
    """Version of what each replica set shall serve."""
    replica_versions: Mapping[str, int]
    retired: tuple[Retired, ...]
    base_models: Mapping[str, str]
    """sha by registered name."""
    candidates: tuple[Candidate, ...] = ()
    adapter_layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layers of adapters by sha of base models whose adapters are not on all layers; empty where there are none."""


async def load_view(conn: Connection) -> View:
    bases = await conn.fetch("SELECT name, base_sha, adapter_layers FROM base_model")
    retired = await conn.fetch("SELECT servable, keep_until FROM retired")
    return View(
        versions={row["name"]: row["version"] for row in await conn.fetch(REPLICA_SETS)},
        replica_versions={row["replica_id"]: row["version"] for row in await conn.fetch(REPLICA_VERSIONS)},
        retired=tuple(read(Retired, row) for row in retired),
        base_models={row["name"]: row["base_sha"] for row in bases},
        candidates=tuple(read(Candidate, row) for row in await conn.fetch(CANDIDATES)),
        adapter_layers={
            row["base_sha"]: tuple(row["adapter_layers"])
            for row in bases
            if row["adapter_layers"] is not None
        },
    )


async def save_base_model(
    conn: Connection, name: str, base_sha: str, *, adapter_layers: Sequence[str] | None = None
) -> None:
    """The name points there from now on, so that nothing on it is stale any more."""
    await conn.execute(SAVE_BASE_MODEL, name, base_sha, adapter_layers)
    await conn.execute("DELETE FROM stale_base WHERE base_model = $1 AND base_sha = $2", name, base_sha)


async def lock_base_model(conn: Connection, base_model: str) -> None:
    """An approval and AdaptersStale have other keys, so two processes may handle them at once."""
    await lock_name(conn, f"serving_controller base model {base_model}")


async def save_stale(conn: Connection, base_model: str, base_sha: str) -> None:
    await conn.execute(
        "INSERT INTO stale_base (base_model, base_sha) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        base_model,
        base_sha,
    )


async def is_stale(conn: Connection, base_model: str, base_sha: str) -> bool:
    query = "SELECT true FROM stale_base WHERE base_model = $1 AND base_sha = $2"
    return bool(await conn.fetchval(query, base_model, base_sha))


async def stale_bases(conn: Connection) -> set[tuple[str, str]]:
    """Names with files that they do not point to any more."""
    return {(row["base_model"], row["base_sha"]) for row in await conn.fetch(STALE_BASES)}


async def save_model_name(conn: Connection, model_id: str, full_name: str) -> None:
    await conn.execute(
        "INSERT INTO model_name (model_id, full_name) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        model_id,
        full_name,
    )


async def find_model_name(conn: Connection, model_id: str) -> str | None:
    full_name: str | None = await conn.fetchval(
        "SELECT full_name FROM model_name WHERE model_id = $1", model_id
    )
    return full_name


async def get_slot(conn: Connection, tenant: str, name: str) -> Slot:
    """The slot, locked; an empty one where it was never heard of."""
    await conn.execute(ADD_SLOT, tenant, name)
    row = await conn.fetchrow(f"{SLOTS} WHERE tenant = $1 AND name = $2 FOR UPDATE", tenant, name)
    assert row is not None, f"slot {name} of {tenant} vanished within a transaction"
    return read(Slot, row)


async def servables_of_replica_set(conn: Connection, replica_set: str) -> ReplicaSetServables | None:
    """Return what somebody waits for first, then what was approved or used last; None where there is nothing."""
    rows = await conn.fetch(WANTED, replica_set)
    desired_servables = [read(DesiredServable, row) for row in rows]
    return ReplicaSetServables.of(desired_servables) if desired_servables else None


async def slots_serving(conn: Connection, replica_set: str, served_names: Iterable[str]) -> list[Slot]:
    """Slots that serve or shall serve one of these, locked."""
    return [
        read(Slot, row) for row in await conn.fetch(f"{SLOTS} {SERVING}", replica_set, list(served_names))
    ]


async def slots_beyond(conn: Connection, replica_set: str, served_names: Iterable[str]) -> list[Slot]:
    """Slots of the replica set that are routed to another version than these, locked."""
    names = set(served_names)
    slots = [
        read(Slot, row) for row in await conn.fetch(f"{SLOTS} {ROUTED_BEYOND}", replica_set, list(names))
    ]
    return [slot for slot in slots if slot.route and slot.route.servable.served_name not in names]


async def save_used(conn: Connection, slots: Sequence[tuple[str, str]], *, at: datetime) -> None:
    """Note what was used; replica sets are locked first, as by whoever saves a slot."""
    used = [{"tenant": tenant, "slot": slot} for tenant, slot in slots]
    replica_sets = [row["replica_set"] for row in await conn.fetch(USED_REPLICA_SETS, used)]
    await conn.execute(CHANGE_REPLICA_SETS, replica_sets)
    await conn.execute(SAVE_USED, used, at)


async def slots_on_base(
    conn: Connection, base_model: str, base_sha: str, *, after: tuple[str, str], at_most: int
) -> list[Slot]:
    """Slots that serve or shall serve something trained on these files under this name, locked, in order."""
    rows = await conn.fetch(f"{SLOTS} {ON_BASE}", base_model, base_sha, *after, at_most)
    return [read(Slot, row) for row in rows]


async def save_slot(conn: Connection, slot: Slot) -> None:
    """Raises StaleWrite if someone wrote it since it was read."""
    key = (slot.tenant, slot.name, slot.revision)
    if await conn.fetchval(SAVE_SLOT, *key, *SLOT.values(slot)) is None:
        raise StaleWrite(f"slot {slot.name} of {slot.tenant} changed since revision {slot.revision}")
    changed = await conn.fetch(SAVE_WANTED, slot.tenant, slot.name, _servables_json(slot))
    if changed:
        await conn.execute(FORGET_REPLICA_SETS, [row["name"] for row in changed])
    if not slot.desired_servables:
        await conn.execute(FORGET_USE, slot.tenant, slot.name)


async def save_retired(conn: Connection, retired: Retired) -> None:
    await conn.execute(SAVE_RETIRED, *RETIRED.values(retired))


async def forget_retired(conn: Connection, *, now: datetime) -> None:
    await conn.execute("DELETE FROM retired WHERE keep_until <= $1", now)


async def save_candidate(conn: Connection, candidate: Candidate) -> None:
    await conn.execute(SAVE_CANDIDATE, *CANDIDATE.values(candidate))


async def find_candidate(conn: Connection, eval_id: str) -> Candidate | None:
    """Return the candidate, locked."""
    row = await conn.fetchrow(f"{CANDIDATES} WHERE eval_id = $1 FOR UPDATE", eval_id)
    return read(Candidate, row) if row else None


async def forget_candidate(conn: Connection, eval_id: str) -> None:
    await conn.execute("DELETE FROM candidate WHERE eval_id = $1", eval_id)


async def forget_candidates(conn: Connection, *, now: datetime) -> None:
    """Delete candidates whose time is over."""
    await conn.execute("DELETE FROM candidate WHERE until <= $1", now)


async def has_ready_replica(conn: Connection, replica_set: str) -> bool:
    return bool(await conn.fetchval(HAS_READY_REPLICA, replica_set))


async def save_replica(conn: Connection, replica: Replica) -> None:
    await conn.execute(SAVE_REPLICA, *REPLICA.values(replica))


async def save_load_times(conn: Connection, times: LoadTimes) -> None:
    await conn.execute(SAVE_LOAD_TIMES, *LOAD_TIMES.values(times))


async def list_load_times(conn: Connection, served_names: Iterable[str]) -> list[LoadTimes]:
    """Return how long the newest load of each of these took on each replica, by replica."""
    return [read(LoadTimes, row) for row in await conn.fetch(LIST_LOAD_TIMES, list(served_names))]


async def replicas(conn: Connection) -> tuple[Replica, ...]:
    return tuple(read(Replica, row) for row in await conn.fetch(REPLICAS))


async def find_node(conn: Connection, replica_id: str) -> NodeRecord | None:
    """Return the node of the replica's lease; None where that has reported nothing yet."""
    row = await conn.fetchrow(f"{NODES} WHERE replica_id = $1", replica_id)
    return read(NodeRecord, row) if row else None


async def list_nodes(conn: Connection) -> list[NodeRecord]:
    return [read(NodeRecord, row) for row in await conn.fetch(f"{NODES} ORDER BY replica_id")]


async def save_report(conn: Connection, replica_id: str, report: NodeReport) -> NodeRecord:
    """Keep what the node reports; the node of another lease than before has no orders yet."""
    row = await conn.fetchrow(SAVE_REPORT, replica_id, report.lease_id, report.model_dump(mode="json"))
    assert row is not None, "it was written"
    return read(NodeRecord, row)


async def save_order(conn: Connection, record: NodeRecord) -> None:
    """Write what shall be on the node, if it is still the one of the record's lease."""
    folders, start = NODE_ORDER.values(record)
    await conn.execute(SAVE_ORDER, record.replica_id, record.lease_id, folders, start)


async def forget_nodes(conn: Connection) -> None:
    """Delete those whose leases were given back."""
    await conn.execute(FORGET_NODES)


async def forget_replica(conn: Connection, replica_id: str) -> None:
    await conn.execute("DELETE FROM replica WHERE replica_id = $1", replica_id)


def _servables_json(slot: Slot) -> list[dict[str, Any]]:
    return [
        {
            "served_name": name,
            "replica_set": entry.servable.replica_set,
            "servable": asdict(entry.servable),
            "is_pending": entry.is_pending,
        }
        for name, entry in slot.desired_servables.items()
    ]
