"""One optimizer step, and the look at the next one that a bundle records."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from operator import add

import torch
from torch import Tensor

from schemas.base import FailureClass
from services.trainer_agent.protocol import Stepped
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.plan import MicroBatch, StepPlan, chain, examples_of
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
    """Take one step. None where a stop is heard between micro batches: the run is then where the step before left it.

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
    run.sharding.step(rate)
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
        device_utilization=run.meter.read(),
        epoch=run.sampler.epochs_after(run.step),
        **gradient.numbers,
    )


def next_loss(run: Run) -> float:
    """Return the mean loss over the first micro batches of the next step, all ranks together, without taking it.

    Weights and random numbers stay as they are. It is measured before a bundle is written and after it is restored;
    equal values mean that weights, data order and random numbers are those of the writing run.
    """
    share = run.share_of(run.next_plan())
    before = rng_state(run.device)
    with torch.no_grad():
        losses = run.objective.terms(run.network, share[0], run.device).losses
    set_rng_state(before, run.device)
    loss, count = run.world.total([float(losses.sum(dtype=torch.float64)), len(losses)])
    return loss / max(1.0, count)


def _finite_gradient(run: Run, plan: StepPlan, stop: StopRequest) -> Gradient:
    """Return a finite gradient. Nothing is updated yet when a loss turns out not finite, so the step can be computed
    once more: the same again is a matter of data or rate, a finite result is a machine that cannot be trusted."""
    before = rng_state(run.device)
    gradient = _gradient(run, plan, stop)
    if gradient.is_finite:
        return gradient
    _drop_gradient(run, before)
    again = _gradient(run, plan, stop)
    description = f"step {run.step + 1}: loss {gradient.loss:.4g}, gradient norm {gradient.norm:.4g}"
    if again.is_finite:
        message = f"{description}, but {again.loss:.4g} and {again.norm:.4g} when computed again from the same state"
        raise TrainingFailed(FailureClass.INFRA, message)
    raise TrainingFailed(
        FailureClass.NUMERIC, f"{description}; the same when computed again, expected finite numbers"
    )


def _drop_gradient(run: Run, rng: Mapping[str, Tensor]) -> None:
    """Take back what a step changes before the optimizer steps, which alone changes weights and moments."""
    run.sharding.drop_gradients()
    set_rng_state(rng, run.device)


def _gradient(run: Run, plan: StepPlan, stop: StopRequest) -> Gradient:
    objective = run.objective
    num_terms = max(1, objective.num_terms(plan.windows))
    sums, router_sum = [0.0] * (1 + len(objective.numbers)), 0.0
    last = len(run.share_of(plan)) - 1
    for index, micro_batch in enumerate(run.micro_batches(plan, stop)):
        terms = objective.terms(run.sharding.training_network, micro_batch, run.device)
        # Sharding takes the mean of all ranks' gradients; the sum is needed.
        loss = terms.losses.sum() * (run.world.size / num_terms)
        router = _router_term(run, micro_batch, plan)
        if router is not None:
            loss = loss + router.in_loss * run.world.size
            router_sum += router.value
        run.sharding.backward(loss, is_last=index == last)
        sums = list(map(add, sums, terms.sums))
        failpoint("trainer.microbatch.end")
    norm = run.sharding.clip_gradients()
    *sums, router_sum = run.world.total([*sums, router_sum])
    loss_of_step, numbers = objective.means(sums, num_terms)
    if run.network.balance is not None:
        numbers["router_loss"] = router_sum
    return Gradient(loss=loss_of_step, norm=norm, numbers=numbers)


@dataclass(frozen=True)
class RouterTerm:
    """What a micro batch adds to the step's router loss, which is the mean over all tokens' micro batches."""

    value: float
    in_loss: Tensor
    """Router loss times the coefficient and the micro batch's share of tokens, with its gradient."""


def _router_term(run: Run, micro_batch: MicroBatch, plan: StepPlan) -> RouterTerm | None:
    loss = run.network.take_router_loss()
    num_tokens = sum(len(example.tokens) for example in examples_of(micro_batch))
    if loss is None or run.network.balance is None:
        return None
    share = num_tokens / plan.num_tokens
    return RouterTerm(float(loss.detach()) * share, loss * (share * run.network.balance.coefficient))
