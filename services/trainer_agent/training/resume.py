"""Continuing from a bundle, and saying whether it is exactly where the writing run was."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from schemas.artifacts import BundleManifest, FileEntry, ResumeCertificate
from schemas.base import FailureClass
from schemas.layout import MANIFEST
from schemas.specification import Recipe
from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.training.bundle import STATE, BundleState, RankIndex, sha256_of
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.environment import environment_of
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.plan import chain_of
from services.trainer_agent.training.repeatable import is_repeatable
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.sharding.interface import Held
from services.trainer_agent.training.slices import Slice, index_of, overlap
from services.trainer_agent.training.snapshot import set_rng_state, take_snapshot
from services.trainer_agent.training.step import next_loss

CHOSEN: dict[str, Any] = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_auto": True,
    "micro_batch_size": True,
    "micro_batch_size_auto": True,
    "sharding": {"offload_optimizer": True, "offload_optimizer_auto": True},
}
"""Fields of a recipe that devices choose, and that a job which ran out of memory continues with less of. The
gradients that come of it are the same but for the order of sums, so a bundle fits such an order too."""


@dataclass(frozen=True)
class Bundle:
    directory: Path
    manifest: BundleManifest
    state: BundleState

    @property
    def indices(self) -> Iterator[RankIndex]:
        for rank in range(self.manifest.world_size):
            path = self.directory / f"optimizer/rank-{rank}.json"
            yield RankIndex.model_validate_json(path.read_bytes())


def open_bundle(directory: Path, order: TrainingOrder, world: World) -> Bundle:
    """Open a bundle on all ranks at once: those of a node share its files out, and each part is hashed once.

    Raises: TrainingFailed(infra) for a damaged bundle, (internal) for one of another job.
    """
    manifest = BundleManifest.model_validate_json((directory / MANIFEST).read_bytes())
    own = manifest.parts[world.local_rank :: world.local_size]
    damaged = next((part.path for part in own if not _is_whole(directory, part)), "")
    if first := next(filter(None, world.gathered(damaged)), None):
        message = f"bundle of step {manifest.step}: {first} is not what the manifest names"
        raise TrainingFailed(FailureClass.INFRA, message)
    state = BundleState.model_validate_json((directory / STATE).read_bytes())
    for name, actual, expected in (
        ("base model", manifest.base_sha, order.base_sha),
        ("dataset version", manifest.dataset_version, order.dataset_version),
        ("recipe", _numbers_of(state.recipe), _numbers_of(order.recipe)),
    ):
        if actual != expected:
            message = f"bundle of step {manifest.step}: {name} is {actual}, the order names {expected}"
            raise TrainingFailed(FailureClass.INTERNAL, message)
    return Bundle(directory, manifest, state)


def _is_whole(directory: Path, part: FileEntry) -> bool:
    path = directory / part.path
    return path.exists() and path.stat().st_size == part.size_bytes and sha256_of(path) == part.sha256


def _numbers_of(recipe: Recipe) -> str:
    """Return what of the recipe decides the weights that come of it."""
    return recipe.model_dump_json(exclude=CHOSEN)


def restore(run: Run, bundle: Bundle) -> None:
    """Restore moments and position at any number of processes, random numbers at the same one; weights are there."""
    _restore_moments(run, bundle)
    run.step = run.start_step = bundle.state.step
    run.consumed_sha256 = bundle.state.consumed_sha256
    run.start_valid_loss = bundle.state.start_valid_loss
    run.validations = bundle.state.validations
    if bundle.manifest.world_size == run.world.size:
        set_rng_state(load_file(bundle.directory / f"rng/rank-{run.world.rank}.safetensors"), run.device)
    else:
        torch.manual_seed(run.order.recipe.seed + run.world.rank + 2**20 * run.step)


def certify(run: Run, bundle: Bundle) -> ResumeCertificate:
    """Compare circumstances, restored state, batches consumed, the next batch and its loss, on all ranks at once."""
    state = bundle.state
    found_batch = None if run.is_complete else run.next_plan().batch_sha256
    found_loss = None if run.is_complete else next_loss(run)
    environment = _other_environment(run, bundle)
    other_state = _other_state(run, bundle)
    # In another environment the same state may well have another loss.
    other_loss = None if environment else _difference("next loss", state.expected_loss, found_loss)
    reason = (
        _other_circumstances(run, bundle)
        or _difference("quantised base", state.quantized_sha256, run.quantized and run.quantized.sha256)
        or other_state
        or _difference("batches consumed", _chain_from_the_start(run), state.consumed_sha256)
        or _difference("next batch", state.expected_batch_sha256, found_batch)
        or other_loss
    )
    return ResumeCertificate(
        exact=reason is None and environment is None,
        state_exact=reason is None,
        environment_equal=environment is None,
        is_repeatable=is_repeatable(run.world),
        step=state.step,
        reason=reason or environment or "equal",
        expected_batch_sha256=state.expected_batch_sha256,
        found_batch_sha256=found_batch,
        expected_loss=state.expected_loss,
        found_loss=found_loss,
    )


def _other_circumstances(run: Run, bundle: Bundle) -> str | None:
    before, recipe = bundle.state.recipe, run.order.recipe
    return (
        _difference("number of processes", bundle.manifest.world_size, run.world.size)
        or _difference("copies of the weights", bundle.state.num_copies, run.num_copies)
        or _difference("number of steps", bundle.state.num_steps, run.sampler.num_steps)
        or _difference("packing", bundle.state.packed, run.layout.packed)
        or _difference("windows per micro batch", before.micro_batch_size, recipe.micro_batch_size)
        or _difference("offload", before.sharded.offload_optimizer, recipe.sharded.offload_optimizer)
    )


def _other_environment(run: Run, bundle: Bundle) -> str | None:
    """Return the first difference, of any process, from the one that wrote the bundle's state."""
    expected = bundle.state.environment
    if not expected:
        return "environment: the bundle was written before it was recorded"
    own = environment_of(run.device, run.order.recipe.sharded.library)
    names = sorted(expected.keys() | own.keys())
    differences = [_difference(name, expected.get(name), own.get(name)) for name in names]
    first = next((difference for difference in differences if difference), "")
    return next((difference for difference in run.world.gathered(first) if difference), None)


def _chain_from_the_start(run: Run) -> str:
    batches = (run.sampler.windows_after(step) for step in range(run.step))
    return chain_of(batches, run.dataset.training)


def _other_state(run: Run, bundle: Bundle) -> str | None:
    """Compare every bit of weights, moments and random numbers, as they now are, with the writing run's; each rank
    with the one of its number, where there are as many that hold as much. Return the first difference."""
    if (bundle.manifest.world_size, bundle.state.num_copies) != (run.world.size, run.num_copies):
        return None
    own_sha256 = take_snapshot(run.sharding, run.world).sha256
    pairs = zip(bundle.indices, run.world.gathered(own_sha256), strict=True)
    differences = (
        _difference(f"state of rank {index.rank}", index.state_sha256, sha) for index, sha in pairs
    )
    return next((difference for difference in differences if difference), None)


def _difference(name: str, expected: object, actual: object) -> str | None:
    return None if expected == actual else f"{name}: expected {expected}, found {actual}"


def _restore_moments(run: Run, bundle: Bundle) -> None:
    updates = 0
    held = {each.slice.tensor: each for each in run.sharding.held()}
    for index in bundle.indices:
        updates = index.updates
        shared = [
            (source, part)
            for source in index.slices
            if source.tensor in held and (part := overlap(source, held[source.tensor].slice))
        ]
        if not shared:
            continue  # as many processes as before read their own files alone
        with torch.no_grad(), safe_open(bundle.directory / index.file, framework="pt") as file:
            for source, part in shared:
                _restore_part(file, source, held[source.tensor], part)
    run.sharding.set_step(updates)


def _restore_part(file: Any, source: Slice, target: Held, part: Slice) -> None:
    for name, live in target.moments.items():
        stored = file.get_slice(f"{source.tensor}.{name}")
        if tuple(stored.get_shape()) == source.shape:
            live[index_of(part, target.slice)] = stored[index_of(part, source)].to(live.device)
        else:
            # Scales and maps of moments of 8 bits, which are not sharded.
            live.copy_(stored[:])
