"""Which nodes of leases are answered, and which objects one may read. Pure."""

from collections.abc import Collection
from datetime import datetime

from schemas.object_requests import MAX_AGE, READS, ObjectRequest
from shared.device_leases.lease import HeldLease, LeaseState
from shared.nodes.requests import NodeRequest
from shared.signatures import Signed


def is_awaited(lease: HeldLease) -> bool:
    """Return whether the node may be of the lease, as the provisioner is still to say."""
    return lease.state in (LeaseState.ASKED, LeaseState.QUEUED) or (
        lease.state is LeaseState.HELD and lease.node is None
    )


def why_not_of_the_node(lease: HeldLease, asked: NodeRequest, signed: Signed, *, now: datetime) -> str:
    """Return why nothing proves that the lease's node asks now, or why it has no lease any more; empty if neither."""
    who = f"node {asked.node_id} of lease {asked.lease_id}"
    if lease.state is not LeaseState.HELD or lease.node is None:
        return f"{who}: the lease is {lease.state}, expected {LeaseState.HELD}"
    if lease.node.node_id != asked.node_id:
        return f"{who}: the lease's node is {lease.node.node_id}"
    if lease.node.public_key is None:
        return f"{who}: was started without a key"
    if not signed.is_by(lease.node.public_key):
        return f"{who}: the request is not signed with its key"
    if abs(now - asked.time) > MAX_AGE:
        return f"{who}: signed at {asked.time.isoformat()}, expected at most {MAX_AGE} from {now.isoformat()}"
    return ""


def why_not_read(asked: ObjectRequest, prefixes: Collection[str]) -> str:
    """Return why the node may not have this object; empty where it may: to read it, below one of the prefixes."""
    if is_plain(asked.key) and asked.operation in READS and asked.key.startswith(tuple(prefixes)):
        return ""
    expected = ", ".join(sorted(prefixes)) or "nothing"
    return f"{asked.operation} {asked.key}: not what the node may do, expected to read below {expected}"


def is_plain(key: str) -> bool:
    """Return whether the key means itself, whoever takes it for a path."""
    return key.isprintable() and "\\" not in key and not {"", ".", ".."} & {*key.split("/")}
