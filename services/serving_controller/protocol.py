"""What the node of a replica reports to serving_controller, and what it is to do.

A body is JSON, signed with the node's key (`shared/signatures.py`). An order says what shall be there, and not what
is to be done: whoever was away goes on from the next one.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Seconds, Sha256, Value
from shared.nodes.requests import Name, NodeRequest

ROUTE = "/v1/replica-nodes"
OBJECTS_ROUTE = "/v1/replica-objects"
"""Routes of serving_controller, by POST."""
MAX_FOLDERS = 4096


class FileProblem(StrEnum):
    """Why the files of a model are not on a node."""

    CORRUPT = "corrupt"  # they are not what their digests say
    MISSING = "missing"  # S3 has no such object
    BAD_MODEL = "bad_model"  # no loader may see them
    AWAY = "away"  # S3, or who signs requests to it, does not answer


class ModelFolder(Value):
    """Files of a model that shall be on a node."""

    folder_id: Name
    """Of this wish: what is removed and asked for again has another one."""
    kind: Literal["base", "full", "adapter", "candidate"]
    digest: Sha256
    """Digest of the model version; of a base model its sha."""
    base_sha: Sha256
    """Base model that an adapter is checked against."""
    rank: Count = 0
    """Of an adapter."""


class FolderState(Value):
    """What a node has of a folder. Neither path nor problem: the files are being fetched."""

    folder_id: Name
    path: str = ""
    """Absolute path on the node, once all files are there and verified."""
    problem: FileProblem | None = None
    message: str = ""
    """What happened, for people."""


class NodeReport(NodeRequest):
    """The state of a replica's node."""

    engine: str = ""
    """What computes its answers: release, product and precision."""
    device: Literal["cpu", "cuda"] = "cpu"
    incarnation: str = ""
    """Start of the replica that it has carried out; empty: none."""
    url: str = ""
    """Address at which the replica listens; empty: it was not started."""
    is_alive: bool = False
    log_tail: str = ""
    """End of the replica's log, in one line."""
    folders: Annotated[tuple[FolderState, ...], Field(max_length=MAX_FOLDERS)] = ()


class EngineOptions(Value):
    """How vLLM is started, as the settings of serving_controller say."""

    dtype: str
    enforce_eager: bool
    one_process: bool
    num_devices: int
    max_loras: int
    max_cpu_loras: int
    max_model_len: int | None
    max_num_seqs: int
    cache_bytes: int
    tool_call_parser: str
    threads: int | None


class ReplicaStart(Value):
    """A start of vLLM. Its keys stay with serving_controller."""

    incarnation: Name
    served_name: Name
    model_dir: Name
    """Path on the node, as it has reported it."""
    max_lora_rank: Count
    adapter_layers: tuple[str, ...] = ()
    inference_key_sha256: Sha256
    management_key_sha256: Sha256
    engine: EngineOptions


class NodeOrder(Value):
    """What shall be on the node."""

    replica_id: Name
    lease_seconds: Seconds
    """Time for which the lease is confirmed; the replica ends itself then."""
    engine: EngineOptions
    folders: tuple[ModelFolder, ...] = ()
    start: ReplicaStart | None = None
    """None: nothing of a replica runs."""
