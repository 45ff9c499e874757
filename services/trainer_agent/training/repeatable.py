"""Equal bits from equal state and batch, each time: what a resume is certified by.

On a CPU every operation of training has sums of one order. On a GPU some have not, and attention's backward pass has
only where PyTorch refuses all others; so each model is tried for what it needs. Between GPUs nobody promises the
order of sums.
"""

import logging
import os

import torch

from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.environment import CUBLAS_WORKSPACE
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.snapshot import rng_state, set_rng_state

REPEATABLE_WORKSPACES = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS repeats its sums, by its documentation."""
REFUSAL = "deterministic"
"""Word in the error of an operation that has no sums of one order."""

log = logging.getLogger(__name__)


def make_repeatable(world: World, num_threads: int | None) -> None:
    """Make this process repeat its sums, as far as it can. `num_threads` are those of the run that is resumed."""
    is_one_gpu = world.device.type == "cuda" and world.size == 1
    torch.use_deterministic_algorithms(True, warn_only=not is_one_gpu)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if world.device.type == "cuda":
        torch.set_float32_matmul_precision("highest")
        # transformers asks for it at each call of flash-attn.
        os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
        return
    # More threads than cores would make the run many times slower; the certificate then says so instead.
    is_possible = num_threads is not None and num_threads <= (os.cpu_count() or 1)
    # Also where the number stays: until it is set, MKL chooses its own per product and sums in another order.
    torch.set_num_threads(num_threads if is_possible and num_threads else torch.get_num_threads())


def allow_what_the_model_needs(run: Run) -> None:
    """Compute one gradient and drop it. Where an operation refuses, it is allowed, with sums in any order."""
    if torch.is_deterministic_algorithms_warn_only_enabled() or run.is_complete:
        return
    before = rng_state(run.device)
    micro_batch = run.share_of(run.next_plan())[0]
    try:
        terms = run.objective.terms(run.sharding.training_network, micro_batch, run.device)
        loss, router_loss = terms.losses.sum(), run.network.take_router_loss()
        run.sharding.backward(loss if router_loss is None else loss + router_loss, is_last=True)
    except RuntimeError as error:
        if REFUSAL not in str(error):
            raise
        log.warning("this run cannot be repeated to the last bit: %s", str(error).partition("\n")[0])
        torch.use_deterministic_algorithms(True, warn_only=True)
    run.sharding.drop_gradients()
    set_rng_state(before, run.device)


def is_repeatable(world: World) -> bool:
    """Return whether this process repeats its sums."""
    if not torch.are_deterministic_algorithms_enabled():
        return False
    if world.device.type == "cpu":
        return True
    has_order = os.environ.get(CUBLAS_WORKSPACE) in REPEATABLE_WORKSPACES
    return has_order and not torch.is_deterministic_algorithms_warn_only_enabled()
