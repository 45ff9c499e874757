"""Proof, on the job's own model and data, that packed examples do not see each other."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from schemas.base import FailureClass
from services.trainer_agent.protocol import PackingVerdict, PreflightDone
from services.trainer_agent.training.dataset import Example, Window
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.plan import Layout, MicroBatch, rows_of
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.tensors import inputs_of

NUM_WINDOWS = 4
EXAMPLES_PER_WINDOW = 4
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Rounding alone was measured at 1e-7 and 7e-4 on a tiny Llama, a leak at 0.04 and more."""


def check_packing(run: Run) -> PreflightDone:
    """All ranks run the same windows: sharded weights are gathered by all at once.

    Raises: TrainingFailed(user) for a model whose loss is not its head on its last hidden state.
    """
    run.network.eval()
    with torch.no_grad():
        _check_single_examples(run)
        verdict = _verdict(run, _telling_windows(run))
    run.network.train()
    return verdict


def _verdict(run: Run, windows: list[Window]) -> PreflightDone:
    if not run.order.recipe.packing or not windows:
        return PreflightDone(packing=PackingVerdict.OFF)
    tolerance = TOLERANCE[run.network.compute_dtype]
    difference = _largest(_differences(run, rows_of(windows, run.layout)))
    [refused] = run.world.highest([not difference <= tolerance])
    return PreflightDone(
        packing=PackingVerdict.REFUSED if refused else PackingVerdict.PROVED,
        max_loss_difference=difference if math.isfinite(difference) else None,
        tolerance=tolerance,
    )


def _telling_windows(run: Run) -> list[Window]:
    """The first windows in which an example with a target follows another one."""
    several = (window for window in run.dataset.training if any(len(e.targets) for e in window[1:]))
    wanted = max(NUM_WINDOWS, run.layout.micro_batch_size)
    return [window for window, _ in zip(several, range(wanted), strict=False)]


def _largest(values: Iterable[float]) -> float:
    """Not a number, if one of them is not."""
    found = list(values)
    return math.nan if any(math.isnan(value) for value in found) else max(found, default=0.0)


def _differences(run: Run, micro_batches: tuple[MicroBatch, ...]) -> Iterator[float]:
    for micro_batch in micro_batches:
        losses = run.network(inputs_of(micro_batch, run.device))
        examples = [example for row in micro_batch for example in row]
        pieces = torch.split(losses, [len(example.targets) for example in examples])
        by_id = {example.id: piece for example, piece in zip(examples, pieces, strict=True)}
        for row in micro_batch:
            # The last ones have most before them that they could wrongly see.
            for example in row[-EXAMPLES_PER_WINDOW:]:
                yield _distance(by_id[example.id], _reference(run, example))


def _reference(run: Run, example: Example) -> Tensor:
    tokens = torch.from_numpy(example.tokens).to(run.device, torch.int64)
    targets = torch.from_numpy(example.targets).to(run.device)
    return run.network.whole_logits_losses(tokens).index_select(0, targets - 1)


def _distance(found: Tensor, expected: Tensor) -> float:
    """Mean distance between the losses of an example's tokens: at least the distance of their means, in which
    most of a leak would cancel out.
    """
    return float((found - expected).abs().mean()) if len(found) else 0.0


def _check_single_examples(run: Run) -> None:
    alone = Layout(packed=False, micro_batch_size=1, window_tokens=1)
    windows = [run.dataset.training[0][:EXAMPLES_PER_WINDOW]]
    tolerance = TOLERANCE[run.network.compute_dtype]
    difference = _largest(_differences(run, rows_of(windows, alone)))
    if difference > tolerance:
        name = type(run.network.causal_lm).__name__
        raise TrainingFailed(
            FailureClass.USER,
            f"base model {name}: loss of a single example differs by {difference:.3g} from the model's own,"
            f" expected at most {tolerance:.3g}; this model family is not supported",
        )
