"""What all that is done at a cluster backend has in common."""

from shared.messaging.unit import Task


class BackendTask(Task):
    """Something to do at the cluster backend."""

    name: str
    """What the backend knows the attempt, or the node of a lease, by."""
    pool: str = ""
    """Pool of its nodes, which says at which backend; empty for an attempt that nobody knows."""

    @property
    def key(self) -> str:
        return self.name
