"""Which nodes of replicas are answered, and which objects each may read. Pure."""

from collections.abc import Collection
from datetime import datetime
from urllib.parse import urlsplit

from schemas import layout
from schemas.object_requests import MAX_AGE, READS, ObjectRequest
from services.serving_controller.model import NodeRecord
from services.serving_controller.protocol import NodeReport, ReplicaObjects
from shared.device_leases.lease import HeldLease, LeaseState
from shared.signatures import Signed


def is_awaited(lease: HeldLease) -> bool:
    """Return whether the node may be of the lease, as the provisioner is still to say."""
    return lease.state in (LeaseState.ASKED, LeaseState.QUEUED) or (
        lease.state is LeaseState.HELD and lease.node is None
    )


def why_not_of_the_node(
    lease: HeldLease, asked: NodeReport | ReplicaObjects, signed: Signed, *, now: datetime
) -> str:
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


def why_not_its_address(lease: HeldLease, report: NodeReport) -> str:
    """Return why nothing is sent to the address that the node reports; empty where it is its own."""
    expected = lease.node.address if lease.node else None
    host = urlsplit(report.url).hostname
    if not report.url or expected is None or host == expected:
        return ""
    return f"node {report.node_id}: its replica listens at {host}, its cluster backend has it at {expected}"


def why_not_allowed(asked: ObjectRequest, record: NodeRecord | None) -> str:
    """Return why the node may not have this object; empty where it may."""
    prefixes = prefixes_of(record) if record else frozenset()
    names = asked.key.split("/")
    is_plain = asked.key.isprintable() and "\\" not in asked.key and not {"", ".", ".."} & {*names}
    if is_plain and asked.operation in READS and asked.key.startswith(tuple(prefixes)):
        return ""
    expected = ", ".join(sorted(prefixes)) or "nothing"
    return f"{asked.operation} {asked.key}: not what the replica's node may do, expected to read below {expected}"


def prefixes_of(record: NodeRecord) -> Collection[str]:
    """Return the prefixes of what the node may read: of the models that it shall have, and their base model."""
    bases = {layout.base_model(folder.base_sha, "") for folder in record.folders}
    models = {layout.model(folder.digest, "") for folder in record.folders if folder.kind != "base"}
    return frozenset(bases | models)
