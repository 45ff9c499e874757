"""The files of a bundle: how they are written, and the small records among them.

`model/*` is what can be served: one file of weights, or one of each rank and an index. In `optimizer`,
`rank-<r>.safetensors` holds slices, and `rank-<r>.json` says of which tensor and where, so that any number of
processes can read them. safetensors and JSON alone.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor

from schemas.artifacts import FileEntry
from schemas.base import Count, Sha256, Step, Value
from schemas.layout import MANIFEST, TRAINING_TEMPLATE
from schemas.specification import Recipe, Weights
from services.trainer_agent.training.base_files import as_base_files, weight_map
from services.trainer_agent.training.shards import Shard, Shards
from services.trainer_agent.training.slices import Shapes, Slice
from services.trainer_agent.training.snapshot import Snapshot
from services.trainer_agent.training.validations import NO_VALIDATIONS, Validations
from shared.causal_models import tied_names

STATE = "state.json"
MODEL_FILE: Mapping[Weights, str] = {
    "adapter": "model/adapter_model.safetensors",
    "full": "model/model.safetensors",
}
_SERVED_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model"})
INDEX = "model/model.safetensors.index.json"
"""Names the file of each tensor where several ranks write a full model."""
_NOT_SERVED = frozenset({MANIFEST, TRAINING_TEMPLATE, Path(INDEX).name})


class BundleState(Value):
    """`state.json`: how far the run is, and what it would do next."""

    step: Step
    epoch: float
    recipe: Recipe
    num_steps: Count
    num_windows: Count
    packed: bool
    learning_rate: float
    """Learning rate of the next step."""
    consumed_sha256: str
    """Chain over the batches consumed since step 0; empty at step 0."""
    expected_batch_sha256: Sha256 | None
    """Digest of the next batch; None after the last step."""
    expected_loss: float | None
    """Mean loss over the first micro batches of the next step; None after the last step."""
    start_valid_loss: float | None = None
    """Loss on the whole validation file before the first step; None where the method does not report it."""
    validations: Validations = NO_VALIDATIONS
    """What the run remembers of its validations at given steps."""
    quantized_sha256: str | None = None
    """QuantizedBase.sha256 of the run's base; None where its layers are plain."""
    num_copies: Count = 1
    """Number of copies of the trained weights among the processes; each is spread over as many of them."""
    num_threads: Count
    """Number of threads of the writing process: arithmetic on a CPU depends on how it is split over them."""
    environment: dict[str, str] = Field(default={})
    """Result of environment_of in the process of global rank 0; empty in older bundles."""


class RankIndex(Value):
    """`optimizer/rank-<r>.json`: which slices a rank wrote."""

    rank: Count
    file: str
    slices: tuple[Slice, ...]
    """Slices in the file; empty for a rank that has a copy of what a rank of the first node has."""
    updates: Count
    state_sha256: Sha256
    """Result of Snapshot.sha256 on this rank."""


@dataclass(frozen=True)
class ModelFiles:
    """Files that lie beside the weights so that they can be served."""

    texts: Mapping[str, str]
    copies: Mapping[str, Path]
    as_written: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict
    """Function that brings the trained tensors of this rank's shard into the form of its file."""


def adapter_files(config: Any, base_sha: str) -> ModelFiles:
    """Return the files of an adapter. `config` is PEFT's. The base is named by its sha: a path of this machine means
    nothing elsewhere."""
    fields = config.to_dict() | {"base_model_name_or_path": base_sha, "inference_mode": True}
    # PEFT leaves an empty list behind where a model has experts; nothing is what a plain adapter has.
    fields["target_parameters"] = config.target_parameters or None
    text = json.dumps(fields, indent=2, sort_keys=True, default=sorted) + "\n"
    return ModelFiles({"model/adapter_config.json": text}, {})


def full_model_files(base_dir: Path, model: Any, trained: Shapes, shards: Shards, rank: int) -> ModelFiles:
    """Return the files of a full model. `model` was loaded from `base_dir`; `trained` are its whole shapes.

    Call it where no parameter of the model changes meanwhile: sharding replaces them in each pass, and tied ones are
    known by being the same object.
    """
    tied = tied_names(model)
    copies = {
        f"model/{path.name}": path
        for path in sorted(base_dir.iterdir())
        if path.suffix in _SERVED_SUFFIXES and path.name not in _NOT_SERVED
    }
    if len(shards) == 1:
        return ModelFiles({}, copies, lambda tensors: as_base_files(model, tied, tensors, base_dir))
    files = weight_map(model, tied, shards, trained, base_dir)
    index = json.dumps({"metadata": {}, "weight_map": files}, indent=2, sort_keys=True) + "\n"
    own = {name for name, file in files.items() if rank in shards and Path(shards[rank].path).name == file}
    return ModelFiles(
        {INDEX: index}, copies, lambda tensors: as_base_files(model, tied, tensors, base_dir, only=own)
    )


def write_rank_files(
    snapshot: Snapshot, directory: Path, *, rank: int, updates: int, is_copy: bool
) -> list[FileEntry]:
    """Write what every rank has of its own. `is_copy`: another rank writes the same slices."""
    moments, rng = f"optimizer/rank-{rank}.safetensors", f"rng/rank-{rank}.safetensors"
    index = RankIndex(
        rank=rank,
        file=moments,
        slices=() if is_copy else snapshot.slices,
        updates=updates,
        state_sha256=snapshot.sha256,
    )
    return [
        _write_tensors(directory, moments, {} if is_copy else snapshot.moments),
        _write_tensors(directory, rng, snapshot.rng),
        _write_text(directory, f"optimizer/rank-{rank}.json", index.model_dump_json()),
    ]


def write_shard(snapshot: Snapshot, directory: Path, *, shard: Shard, files: ModelFiles) -> FileEntry:
    """Write this rank's share of the model's weights."""
    return _write_tensors(directory, shard.path, files.as_written(snapshot.model))


def write_shared_files(directory: Path, *, state: BundleState, files: ModelFiles) -> list[FileEntry]:
    """Write what global rank 0 writes for all."""
    return [
        *(_write_text(directory, path, text) for path, text in files.texts.items()),
        *(_copy_file(directory, path, source) for path, source in files.copies.items()),
        _write_text(directory, STATE, state.model_dump_json()),
    ]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_tensors(directory: Path, path: str, tensors: Mapping[str, Tensor]) -> FileEntry:
    # One entry only: safetensors writes several in random order, and equal weights must be equal bytes.
    save_file(dict(tensors), _target(directory, path), metadata={"format": "pt"})
    return _entry(directory, path)


def _write_text(directory: Path, path: str, text: str) -> FileEntry:
    _target(directory, path).write_text(text)
    return _entry(directory, path)


def _copy_file(directory: Path, path: str, source: Path) -> FileEntry:
    shutil.copyfile(source, _target(directory, path))
    return _entry(directory, path)


def _target(directory: Path, path: str) -> Path:
    target = directory / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _entry(directory: Path, path: str) -> FileEntry:
    file = directory / path
    return FileEntry(path=path, size_bytes=file.stat().st_size, sha256=sha256_of(file))
