"""The keys by which nodes prove their claims: each node of each attempt has one of its own."""

from pydantic import SecretStr

from services.provisioner.model import node_id
from shared.passwords import derived_password
from shared.signatures import PrivateKey

PURPOSE = "ed25519"
MIN_CHARACTERS = 32


class NodeKeys:
    """Private keys follow from a secret of the deployment and the node's id: no table, message or log has one, and a
    provisioner that was started again gives the same."""

    def __init__(self, secret: SecretStr) -> None:
        self._secret = secret.get_secret_value()
        if (length := len(self._secret)) < MIN_CHARACTERS:
            problem = f"found {length} characters, expected at least {MIN_CHARACTERS}, at random"
            raise ValueError(f"PROVISIONER_NODE_KEYS_SECRET: {problem}")

    def private(self, name: str, index: int) -> str:
        """Return the private key of a node of the attempt that the backend knows by this name."""
        return derived_password(self._secret, f"node {node_id(name, index)}", PURPOSE)

    def public(self, name: str, index: int) -> str:
        return PrivateKey(self.private(name, index)).public_key
