"""One optimizer step, and the look at the next one that a bundle records."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from operator import add

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from schemas.base import FailureClass
from services.trainer_agent.protocol import Stepped
from services.trainer_agent.training.distributed import whole
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.plan import StepPlan, chain
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.snapshot import rng_state, set_rng_state
from services.trainer_agent.training.stop import StopHeard, StopRequest
from services.trainer_agent.training.throughput import memory_bytes, model_flops_utilisation
from shared.failpoints import failpoint


@dataclass(frozen=True)
class Gradient:
    """What the backward passes of one step left, over all ranks; the gradients themselves are clipped."""

    loss: float
    norm: float
    numbers: Mapping[str, float]

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def take_step(run: Run, stop: StopRequest) -> Stepped | None:
    """None where a stop is heard between micro batches: the run is then where the step before left it.

    Raises: TrainingFailed(numeric or infra) where loss or gradient is not a finite number.
    """
    begin = time.perf_counter()
    plan = run.next_plan()
    before = rng_state(run.device)
    try:
        gradient = _finite_gradient(run, plan, stop)
    except StopHeard:
        _drop_gradient(run, before)
        return None
    rate = run.schedule.rate(run.step)
    run.optimizer.step(rate)
    run.step += 1
    run.consumed_sha256 = chain(run.consumed_sha256, plan.batch_sha256)
    run.last_loss = gradient.loss
    tokens_per_second = plan.num_tokens / (time.perf_counter() - begin)
    return Stepped(
        step=run.step,
        loss=gradient.loss,
        learning_rate=rate,
        grad_norm=gradient.norm,
        num_tokens=plan.num_tokens,
        tokens_per_second=tokens_per_second,
        mfu=model_flops_utilisation(run, tokens_per_second),
        memory_bytes=memory_bytes(run.device),
        epoch=run.sampler.epochs_after(run.step),
        **gradient.numbers,
    )


def next_loss(run: Run) -> float:
    """Mean loss over the first micro batches of the next step, all ranks together, without taking it.

    Leaves weights and random numbers as they are. Measured before a bundle is written and after it is
    restored; equal values mean that weights, data order and random numbers are those of the writing run.
    """
    share = run.share_of(run.next_plan())
    before = rng_state(run.device)
    with torch.no_grad():
        losses = run.objective.terms(run.network, share[0], run.device).losses
    set_rng_state(before, run.device)
    loss, count = run.world.total([float(losses.sum(dtype=torch.float64)), len(losses)])
    return loss / max(1.0, count)


def _finite_gradient(run: Run, plan: StepPlan, stop: StopRequest) -> Gradient:
    """Nothing is updated yet when a loss turns out not finite, so the step can be computed once more: the
    same again is a matter of data or rate, a finite result is a machine that cannot be trusted.
    """
    before = rng_state(run.device)
    gradient = _gradient(run, plan, stop)
    if gradient.is_finite:
        return gradient
    _drop_gradient(run, before)
    again = _gradient(run, plan, stop)
    description = f"step {run.step + 1}: loss {gradient.loss}, gradient norm {gradient.norm}"
    if again.is_finite:
        message = f"{description}, but {again.loss} and {again.norm} when computed again from the same state"
        raise TrainingFailed(FailureClass.INFRA, message)
    raise TrainingFailed(
        FailureClass.NUMERIC, f"{description}; the same when computed again, expected finite numbers"
    )


def _drop_gradient(run: Run, rng: Mapping[str, Tensor]) -> None:
    """Weights and moments change only when the optimizer steps; what else a step changes is taken back."""
    run.optimizer.drop_gradients()
    set_rng_state(rng, run.device)


def _gradient(run: Run, plan: StepPlan, stop: StopRequest) -> Gradient:
    objective = run.objective
    num_terms = max(1, objective.num_terms(plan.windows))
    sums = [0.0] * (1 + len(objective.numbers))
    for micro_batch in run.micro_batches(plan, stop):
        terms = objective.terms(run.network, micro_batch, run.device)
        # Sharding takes the mean of all ranks' gradients; the sum is wanted.
        (terms.losses.sum() * (run.world.size / num_terms)).backward()  # type: ignore[no-untyped-call]
        sums = list(map(add, sums, terms.sums))
        failpoint("trainer.microbatch.end")
    norm = clip_grad_norm_(run.parameters.values(), run.order.recipe.max_grad_norm)
    loss, numbers = objective.means(run.world.total(sums), num_terms)
    return Gradient(loss=loss, norm=float(whole(norm)), numbers=numbers)
