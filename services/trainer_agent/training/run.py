"""One training run in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.training.dataset import Dataset
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.methods import OBJECTIVES
from services.trainer_agent.training.methods.objective import Objective
from services.trainer_agent.training.optimizer import Optimizer
from services.trainer_agent.training.plan import Layout, MicroBatch, StepPlan
from services.trainer_agent.training.quantized import QuantizedBase
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.sampler import Sampler
from services.trainer_agent.training.schedule import Schedule
from services.trainer_agent.training.stop import StopHeard, StopRequest


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
    parameters: dict[str, nn.Parameter]
    """Those that are trained, by their name in the model file."""
    optimizer: Optimizer
    quantized: QuantizedBase | None
    """None where the base's layers are plain."""
    num_parameters: int
    """Of the whole model, adapter included."""
    start_step: int = 0
    step: int = 0
    """Optimizer steps completed."""
    consumed_sha256: str = ""
    last_loss: float | None = None
    start_valid_loss: float | None = None
    """Of the whole validation file, before the first step of the first attempt."""
    num_matmul_parameters: int = 0
    peak_flops: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.step >= self.sampler.num_steps

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
        """This rank's micro batches."""
        return plan.micro_batches(self.layout, rank=self.world.rank, world_size=self.world.size)

    def micro_batches(self, plan: StepPlan, stop: StopRequest) -> Iterator[MicroBatch]:
        """This rank's, one after another. Between them the ranks ask each other for a stop, and progress is reported.

        Raises: StopHeard, on all ranks before the same micro batch.
        """
        share = self.share_of(plan)
        for done, micro_batch in enumerate(share):
            if done and self.world.highest([stop.is_there])[0]:
                raise StopHeard
            yield micro_batch
            self.reports.progress(done=done + 1, total=len(share))
