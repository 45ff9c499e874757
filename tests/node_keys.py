"""Keys of nodes, as the provisioner of a test gives them."""

from pydantic import SecretStr

from schemas.layout import attempt_name
from services.provisioner.node_keys import NodeKeys
from shared.signatures import PrivateKey

NODE_KEYS = NodeKeys(SecretStr("of a provisioner that only tests have, and so no secret"))


def signer_of(job_id: str, attempt: int = 1, *, node: int = 0) -> PrivateKey:
    """Return who signs as this node does."""
    return PrivateKey(NODE_KEYS.private(attempt_name(job_id, attempt), node))
