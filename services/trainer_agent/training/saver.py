"""Bundles written behind the training's back: copied at a step boundary, put into files by a thread."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from pydantic import TypeAdapter

from schemas.artifacts import FileEntry
from schemas.training import BundleMetrics
from services.trainer_agent.protocol import Best, BundleKind, Saved, bundle_dir
from services.trainer_agent.training.bundle import (
    MODEL_FILE,
    BundleState,
    ModelFiles,
    adapter_files,
    full_model_files,
    write_rank_files,
    write_shard,
    write_shared_files,
)
from services.trainer_agent.training.environment import environment_of
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.shards import Shards, shards_of
from services.trainer_agent.training.snapshot import NOTHING, Snapshot, take_snapshot
from services.trainer_agent.training.step import next_loss
from shared.causal_models import joins_for_files
from shared.failpoints import failpoint

_ENTRIES = TypeAdapter(list[FileEntry])


@dataclass(frozen=True)
class _InFlight:
    step: int
    kind: BundleKind
    metrics: BundleMetrics
    best: Best | None
    entries: Future[list[FileEntry]]


class Saver:
    """Writes bundles, at most one at a time. All ranks call every method at the same step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        kind = run.order.recipe.kind
        is_alone = kind == "adapter" or joins_for_files(run.network.causal_lm)
        self._shards = shards_of(run.trained, MODEL_FILE[kind], num_writers=1 if is_alone else run.world.size)
        self._files = _files_of(run, self._shards)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bundle")
        self._in_flight: _InFlight | None = None
        self._snapshot = NOTHING
        self._last_step = run.step
        self._last_time = time.monotonic()
        self._best_step = run.validations.best_step

    @property
    def lacks_best(self) -> bool:
        """Whether the recipe asks for the best step, and this one has just become it: alike on all ranks."""
        best = self._run.best
        return best is not None and best.step != self._best_step

    @property
    def is_due(self) -> bool:
        """Whether a bundle is due by this rank's clock; the ranks must still agree."""
        interval = self._run.order.recipe.checkpoint
        return (
            self._run.step - self._last_step >= interval.every_steps
            or time.monotonic() - self._last_time >= interval.every_seconds
        ) and self._run.step > self._last_step

    @property
    def is_writing(self) -> bool:
        """Whether this rank still writes; others may take longer."""
        return self._in_flight is not None and not self._in_flight.entries.done()

    @property
    def is_busy(self) -> bool:
        return self._in_flight is not None

    def begin(self, kind: BundleKind) -> None:
        """Copy the state and let the thread write it. Training may continue at once."""
        assert not self.is_busy, "one bundle at a time"
        run = self._run
        state = _state_of(run)
        self._snapshot = snapshot = take_snapshot(
            run.sharding, run.world, self._shards, memory_of=self._snapshot
        )
        failpoint("trainer.save.begin")
        self._last_step, self._last_time = run.step, time.monotonic()
        self._best_step = run.validations.best_step
        entries = self._writer.submit(_write, run, snapshot, state, self._shards, self._files)
        metrics = BundleMetrics(train_loss=run.last_loss)
        self._in_flight = _InFlight(run.step, kind, metrics, run.best, entries)

    def begin_last(self, kind: BundleKind) -> None:
        """Save the state as it is now: where it is being written already, that bundle becomes the last one."""
        if self._in_flight is not None and self._in_flight.step == self._run.step:
            self._in_flight = replace(self._in_flight, kind=kind)
            return
        if self.is_busy:
            self.finish()
        self.begin(kind)

    def attach(self, metrics: BundleMetrics) -> None:
        """Add metrics of the state that is being written, measured since."""
        assert self._in_flight is not None, "a bundle has begun"
        self._in_flight = replace(self._in_flight, metrics=metrics)
        # A validation of more than the interval would else make the next bundle due at once.
        self._last_time = time.monotonic()

    def finish(self) -> None:
        """Wait until every rank's files are written, and report them.

        Raises: what went wrong in the writing.
        """
        assert self._in_flight is not None, "a bundle has begun"
        bundle, self._in_flight = self._in_flight, None
        mine = _ENTRIES.dump_json(bundle.entries.result()).decode()
        by_rank = [_ENTRIES.validate_json(text) for text in self._run.world.gathered(mine)]
        run = self._run
        failpoint("trainer.save.end")
        run.reports.send(
            Saved(
                step=bundle.step,
                bundle=bundle.kind,
                directory=bundle_dir(run.work_dir, bundle.step),
                parts=tuple(entry for rank in run.world.node_ranks for entry in by_rank[rank]),
                all_parts=tuple(e for entries in by_rank for e in entries) if run.world.rank == 0 else (),
                metrics=bundle.metrics,
                best=bundle.best,
            )
        )


def _state_of(run: Run) -> BundleState:
    return BundleState(
        step=run.step,
        epoch=run.sampler.epochs_after(run.step),
        recipe=run.order.recipe,
        num_steps=run.sampler.num_steps,
        num_windows=run.sampler.num_windows,
        packed=run.layout.packed,
        learning_rate=run.schedule.rate(run.step),
        consumed_sha256=run.consumed_sha256,
        expected_batch_sha256=None if run.is_complete else run.next_plan().batch_sha256,
        expected_loss=None if run.is_complete else next_loss(run),
        start_valid_loss=run.start_valid_loss,
        validations=run.validations,
        quantized_sha256=run.quantized.sha256 if run.quantized else None,
        num_copies=run.num_copies,
        num_threads=torch.get_num_threads(),
        environment=environment_of(run.device, run.order.recipe.sharded.library),
    )


def _write(
    run: Run, snapshot: Snapshot, state: BundleState, shards: Shards, files: ModelFiles
) -> list[FileEntry]:
    directory, rank = bundle_dir(run.work_dir, state.step), run.world.rank
    entries = write_rank_files(
        snapshot, directory, rank=rank, updates=state.step, is_copy=run.sharding.is_copy
    )
    if rank in shards:
        entries.append(write_shard(snapshot, directory, shard=shards[rank], files=files))
    if rank == 0:
        entries += write_shared_files(directory, state=state, files=files)
    return entries


def _files_of(run: Run, shards: Shards) -> ModelFiles:
    if run.order.recipe.kind == "adapter":
        return adapter_files(run.network.model.peft_config["default"], run.order.base_sha)
    return full_model_files(run.order.base_dir, run.network.causal_lm, run.trained, shards, run.world.rank)
