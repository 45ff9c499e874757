"""Where bytes lie in S3, and who may touch them. No key is a prefix of another."""

import re
from dataclasses import dataclass
from typing import Literal

MANIFEST = "manifest.json"
EXCERPTS = "excerpts.json"
"""`path` of the excerpts of a dataset version, beside its report."""
TRAINING_TEMPLATE = "training_template.jinja"
"""File of a base model: its template with what the assistant says marked; read by ingest alone."""
AUDIT = "audit/"
EXPORTS = "models/exports/"
MAX_LABEL = 52
_LABEL = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{MAX_LABEL - 2}}}[a-z0-9])?")


def blob(sha256: str) -> str:
    return f"blobs/{sha256}"


def part(sha256: str) -> str:
    """Return the `path` of a part of a dataset or bundle, which is named by its content."""
    return f"parts/{sha256}"


def file(name: str) -> str:
    """Return the `path` of a file of a base model or model, which keeps its name."""
    return f"files/{name}"


def dataset(version: str, path: str = MANIFEST) -> str:
    """Return the key of an object of a dataset version. `path`: manifest, part, report or excerpts."""
    return f"datasets/{version}/{path}"


REFERENCE = "reference.safetensors"
"""`path` of the log-probabilities of a dataset's answers by its base model."""


def feature(version: str, key: str, path: str = MANIFEST) -> str:
    """Return the key of what was computed of a dataset version once for all jobs. `path`: the manifest or a part."""
    return f"{features(version)}{key}/{path}"


def features(version: str) -> str:
    """Return the prefix of all that was computed of a dataset version."""
    return f"features/{version}/"


def checkpoint(job_id: str, attempt: int, step: int, path: str = MANIFEST) -> str:
    """Return the key of an object of a bundle. `path` is the manifest or a part."""
    return f"{checkpoints(job_id, attempt)}{step}/{path}"


def checkpoints_of(job_id: str) -> str:
    """Return the prefix of all that all attempts of a job saved."""
    return f"checkpoints/{job_id}/"


def checkpoints(job_id: str, attempt: int) -> str:
    """Return the prefix of all that an attempt saved."""
    return f"{checkpoints_of(job_id)}{attempt_name(job_id, attempt)}/"


def base_model(sha: str, path: str = MANIFEST) -> str:
    """Return the key of an object of a base model. `path` is the manifest or a file."""
    return f"base-models/{sha}/{path}"


def model(digest: str, path: str = MANIFEST) -> str:
    """Return the key of an object of a model version. `path` is the manifest or a file."""
    return f"models/{digest}/{path}"


def export(export_id: str, path: str = MANIFEST) -> str:
    """Return the key of an object of an export. `path` is the manifest or a part."""
    return f"{exports(export_id)}{path}"


def exports(export_id: str) -> str:
    """Return the prefix of all that was stored of an export.

    It is within `models/`, which the registry writes: the policy of the bucket has room for few prefixes more.
    """
    return f"{EXPORTS}{export_id}/"


def evaluation(eval_id: str, path: str) -> str:
    return f"evals/{eval_id}/{path}"


ITEMS_OF_A_PAGE = 100
EVALUATION_LOG = "log.txt"
ItemGroup = Literal["holdout", "suites"]
"""Items of the tenant's own file, and of the operator's."""


def evaluation_items(eval_id: str, group: ItemGroup, page: int) -> str:
    """Return the key of a page of items as JSON lines, failing ones first; each but the last has ITEMS_OF_A_PAGE."""
    return evaluation(eval_id, f"shown/{group}/{page:05d}.jsonl")


def evaluation_outcome(eval_id: str, lease_id: str) -> str:
    """Return the key of what the node of a lease gives back when its run of an evaluation has ended."""
    return evaluation(eval_id, f"outcomes/{lease_id}.json")


def log(job_id: str, attempt: int, node_index: int, number: int) -> str:
    return f"{node_logs(job_id, attempt, node_index)}{number:06d}"


def node_logs(job_id: str, attempt: int, node_index: int) -> str:
    """Return the prefix of what one node of an attempt wrote."""
    return f"{logs(job_id)}{attempt_name(job_id, attempt)}/{node_index}/"


def logs(job_id: str) -> str:
    """Return the prefix of what all nodes of all attempts wrote."""
    return f"logs/{job_id}/"


def audit_statement(number: int) -> str:
    """Return the key of a statement of the auditor; they are numbered from 1."""
    return f"{AUDIT}{number:012d}.json"


def attempt_name(job_id: str, attempt: int) -> str:
    """Return the attempt's name at every cluster backend: a DNS label of at most 52 characters."""
    name = f"a-{job_id}-e{attempt}"
    assert is_dns_label(name), (
        f"attempt name is {name!r}, expected a DNS label of at most {MAX_LABEL} characters"
    )
    return name


def is_dns_label(name: str) -> bool:
    """Return whether the name can be part of a folder, a key and a host name."""
    return _LABEL.fullmatch(name) is not None


@dataclass(frozen=True)
class Access:
    """Key prefixes that a user of the store may read (get, list), fetch (get), write (get, put, delete) and append to
    (get, put).

    Who appends anywhere deletes nowhere."""

    reads: tuple[str, ...] = ()
    fetches: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    appends: tuple[str, ...] = ()


ACCESS: dict[str, Access] = {
    "gateway": Access(
        reads=("blobs/", "datasets/", "evals/", "logs/", "checkpoints/"),
        fetches=(EXPORTS,),
        writes=("blobs/",),
    ),
    "ingest": Access(
        reads=("blobs/", "base-models/", "datasets/", "features/"), writes=("datasets/", "features/")
    ),
    # For nodes of attempts, each of which is given requests for its own objects alone.
    "trainer_agent": Access(
        reads=("base-models/", "datasets/", "features/", "checkpoints/", "models/", "logs/"),
        appends=("features/", "checkpoints/", "logs/"),
    ),
    "checkpoint_watcher": Access(reads=("checkpoints/", "logs/"), writes=("checkpoints/", "logs/")),
    "evaluator": Access(
        reads=("blobs/", "base-models/", "models/", "datasets/", "evals/"), writes=("evals/",)
    ),
    "registry": Access(reads=("base-models/", "checkpoints/", "models/"), writes=("base-models/", "models/")),
    "serving_controller": Access(reads=("base-models/", "models/")),
    "auditor": Access(reads=(AUDIT,), appends=(AUDIT,)),
    "admin": Access(
        reads=("blobs/", "datasets/", "checkpoints/", "base-models/", "models/", "evals/", "logs/", AUDIT),
        writes=("blobs/",),
    ),
}

FORMER_ACCESS: dict[str, Access] = {
    "runner": Access(
        reads=("base-models/", "datasets/", "models/"), writes=("features/", "checkpoints/", "logs/")
    ),
}
"""Access of users that an older release had. They stay for as long as the deployment has their passwords, so that
nodes which that release started go on."""
