"""The two keys of each replica, which nobody keeps but who asks it. The replica knows their digests (guard.py)."""

import secrets
from collections.abc import Mapping
from pathlib import Path

from services.serving_controller.clients import guard
from shared.files import write_whole

MANAGEMENT_KEY = "management-key"


class ReplicaKeys:
    """<keys>/<replica id> is for gateways and evaluators, <replicas>/<replica id>/management-key for us alone."""

    def __init__(self, replicas_dir: Path, keys_dir: Path) -> None:
        self._replicas_dir = replicas_dir.absolute()
        self._keys_dir = keys_dir

    def renew(self, replica_id: str) -> Mapping[str, str]:
        """Write new keys; return their digests as the replica's environment has them."""
        self._keys_dir.mkdir(parents=True, exist_ok=True)
        self._keys_dir.chmod(0o700)
        (self._replicas_dir / replica_id).mkdir(parents=True, exist_ok=True, mode=0o700)
        return {
            guard.INFERENCE_DIGEST: _new_key(self._keys_dir / replica_id),
            guard.MANAGEMENT_DIGEST: _new_key(self._replicas_dir / replica_id / MANAGEMENT_KEY),
        }

    def has(self, replica_id: str) -> bool:
        return (self._replicas_dir / replica_id / MANAGEMENT_KEY).exists()

    def inference(self, replica_id: str) -> str:
        return (self._keys_dir / replica_id).read_text()

    def management(self, replica_id: str) -> str:
        return (self._replicas_dir / replica_id / MANAGEMENT_KEY).read_text()


def _new_key(path: Path) -> str:
    """Write a new key; its digest."""
    key = secrets.token_urlsafe(32)
    write_whole(path, key)
    return guard.digest_of(key)
