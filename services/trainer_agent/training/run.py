"""One training run in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from schemas.training import BundleMetrics
from services.trainer_agent.protocol import Best, TrainingOrder
from services.trainer_agent.training.dataset import Dataset
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.methods import OBJECTIVES
from services.trainer_agent.training.methods.objective import Objective
from services.trainer_agent.training.plan import Layout, MicroBatch, StepPlan
from services.trainer_agent.training.quantized import QuantizedBase
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.sampler import Sampler
from services.trainer_agent.training.schedule import Schedule
from services.trainer_agent.training.sharding.interface import Sharding
from services.trainer_agent.training.slices import Shapes
from services.trainer_agent.training.stop import StopHeard, StopRequest
from services.trainer_agent.training.utilisation import Meter
from services.trainer_agent.training.validations import NO_VALIDATIONS, Validations


@dataclass
class Run:
    order: TrainingOrder
    work_dir: Path
    world: World
    reports: Reports
    dataset: Dataset
    sampler: Sampler
    schedule: Schedule
    layout: Layout
    network: TokenLosses
    trained: Shapes
    """Shapes of the weights that are trained, by name."""
    sharding: Sharding
    num_copies: int
    """Number of copies of the trained weights, among all processes."""
    quantized: QuantizedBase | None
    """Base in 4 bits; None where the base's layers are plain."""
    num_parameters: int
    """Number of parameters of the whole model, adapter included."""
    meter: Meter
    start_step: int = 0
    step: int = 0
    """Number of optimizer steps completed."""
    consumed_sha256: str = ""
    last_loss: float | None = None
    start_valid_loss: float | None = None
    """Loss on the whole validation file, before the first step of the first attempt."""
    validations: Validations = NO_VALIDATIONS
    measured: BundleMetrics | None = None
    """Metrics of this process's newest validation at a given step; None before there was one."""
    estimated_memory_bytes: int = 0
    """Estimated memory of this process's device at the peak of a step."""
    num_matmul_parameters: int = 0
    peak_flops: float | None = None
    summed_bytes_per_second: float | None = None
    """Bytes per second of a tensor that all processes sum; None of one process."""

    @property
    def is_complete(self) -> bool:
        """Whether no step follows."""
        return self.step >= self.sampler.num_steps or self.validations.ends(self.order.recipe.early_stopping)

    @property
    def validation_is_due(self) -> bool:
        """Whether to validate, by the step alone: all processes agree, and a resumed run does as any other."""
        recipe = self.order.recipe
        every = recipe.eval_every_steps or self.sampler.steps_per_epoch
        return recipe.has_validations and self.validations.is_due(
            self.step, every=every, num_steps=self.sampler.num_steps
        )

    @property
    def has_ended(self) -> bool:
        return self.is_complete and not self.validation_is_due

    @property
    def measured_here(self) -> BundleMetrics | None:
        """Metrics at this step, where the recipe says at which to measure; None: then each bundle is measured."""
        if not self.order.recipe.has_validations:
            return None
        if self.measured is not None and self.validations.step == self.step:
            return self.measured
        return BundleMetrics(train_loss=self.last_loss)

    @property
    def best(self) -> Best | None:
        """Best step so far, where the recipe asks for the best checkpoint."""
        step, loss = self.validations.best_step, self.validations.best_loss
        if not self.order.recipe.load_best_model_at_end or step is None or loss is None:
            return None
        return Best(step=step, valid_loss=loss)

    @property
    def why_early(self) -> str:
        """Reason why the run ended early; empty where every step is done, or some are left."""
        return self.validations.reason(self.order.recipe.early_stopping, num_steps=self.sampler.num_steps)

    @property
    def objective(self) -> Objective:
        return OBJECTIVES[self.order.recipe.method](self.order.recipe)

    @property
    def device(self) -> torch.device:
        return self.world.device

    def next_plan(self) -> StepPlan:
        windows = self.sampler.windows_after(self.step)
        return StepPlan(tuple(self.dataset.training[index] for index in windows))

    def share_of(self, plan: StepPlan) -> tuple[MicroBatch, ...]:
        """Return this rank's micro batches."""
        return plan.micro_batches(self.layout, rank=self.world.rank, world_size=self.world.size)

    def micro_batches(self, plan: StepPlan, stop: StopRequest) -> Iterator[MicroBatch]:
        """Yield this rank's micro batches. Between them the ranks ask each other for a stop, and progress is
        reported.

        Raises: StopHeard, on all ranks before the same micro batch.
        """
        share = self.share_of(plan)
        for done, micro_batch in enumerate(share):
            if done and self.world.highest([stop.is_there])[0]:
                raise StopHeard
            yield micro_batch
            self.reports.progress(done=done + 1, total=len(share))
