"""What is believed of a replica's node, and which objects it may read. Pure."""

from collections.abc import Collection
from urllib.parse import urlsplit

from schemas import layout
from services.serving_controller.model import NodeRecord
from services.serving_controller.protocol import NodeReport
from shared.device_leases.lease import HeldLease


def why_not_its_address(lease: HeldLease, report: NodeReport) -> str:
    """Return why nothing is sent to the address that the node reports; empty where it is its own."""
    expected = lease.node.address if lease.node else None
    host = urlsplit(report.url).hostname
    if not report.url or expected is None or host == expected:
        return ""
    return f"node {report.node_id}: its replica listens at {host}, its cluster backend has it at {expected}"


def prefixes_of(record: NodeRecord | None) -> Collection[str]:
    """Return the prefixes of what the node may read: of the models that it shall have, and their base model."""
    if record is None:
        return frozenset()
    bases = {layout.base_model(folder.base_sha, "") for folder in record.folders}
    models = {layout.model(folder.digest, "") for folder in record.folders if folder.kind != "base"}
    return frozenset(bases | models)
