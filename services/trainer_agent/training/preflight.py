"""Proof, on the job's own model and data, that packed examples do not see each other.

How far rounding alone moves a loss depends on the model's depth, the spread of its logits, the type it computes in
and the kernels of its device. So no constant is the limit: the same examples are measured where they cannot see
each other (noise) and where they must (leak), by the same kernels at the same shapes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean

import torch
from torch import Tensor

from schemas.base import FailureClass
from schemas.training import PackingDistances, PackingVerdict
from services.trainer_agent.training.dataset import Example, Window
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.loss import head_in_float32
from services.trainer_agent.training.plan import Layout, MicroBatch, rows_of
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.tensors import Inputs, inputs_of

NUM_WINDOWS = 4
EXAMPLES_PER_WINDOW = 2
NUM_SINGLE_EXAMPLES = 4
MOST_TIMES_NOISE = 4.0
"""Largest ratio of what packing moves to the noise, each the largest of a handful: up to 1.6 was measured, 37 and
more with a leak in one layer of 32."""
MOST_OF_LEAK = 0.1
LEAST_NOISE = 1e-6
"""Rounding that float32 makes of a loss of some nats: two forms may agree by chance to the last bit."""
LOSS_FORM_TOLERANCE = 1e-4
"""Largest difference of two forms that take the same hidden states to logits in float32."""

Losses = dict[int, Tensor]
"""Losses of each example's targets, (K,), by the example's id."""


def check_packing(run: Run) -> tuple[PackingVerdict, PackingDistances | None]:
    """Measure whether packed examples see each other. All ranks run the same windows: sharded weights are gathered by
    all.

    Raises: TrainingFailed(user) for a model whose loss is not its head on its last hidden state,
    TrainingFailed(numeric) where its loss is not a number before anything is trained.
    """
    run.network.eval()
    with torch.no_grad(), head_in_float32(run.network):
        _check_single_examples(run)
        distances = _distances(run)
    run.network.train()
    return _verdict(run, distances), distances


def _verdict(run: Run, distances: PackingDistances | None) -> PackingVerdict:
    if distances is None:
        return PackingVerdict.OFF
    [refused] = run.world.highest([not proves(distances)])
    return PackingVerdict.REFUSED if refused else PackingVerdict.PROVED


def proves(distances: PackingDistances) -> bool:
    """Return whether packing moves losses no further than rounding does, and far less than a leak would."""
    packed, noise, leak = distances.packed, distances.noise, distances.leak
    if packed is None or noise is None or leak is None:
        return False
    return packed <= MOST_TIMES_NOISE * max(noise, LEAST_NOISE) and packed <= MOST_OF_LEAK * leak


def _distances(run: Run) -> PackingDistances | None:
    windows = _telling_windows(run)
    if not windows:
        return None
    packed: list[float] = []
    noise: list[float] = []
    leak: list[float] = []
    for micro_batch in rows_of(windows, run.layout):
        tried = [example for row in micro_batch for example in _tried(row)]
        alone = {example.id: _own_losses(run, example) for example in tried}
        packed += _between(alone, _losses(run, micro_batch))
        leak += _between(alone, _losses(run, micro_batch, with_borders=False))
        noise += _between(alone, _losses_in_front(run, micro_batch))
    return PackingDistances(
        packed=_finite(max_or_nan(packed)), noise=_finite(max_or_nan(noise)), leak=_finite(fmean(leak))
    )


def _telling_windows(run: Run) -> list[Window]:
    """Return the first windows in which an example with a target follows another; none where nothing is packed."""
    if not run.order.recipe.packing:
        return []
    several = (window for window in run.dataset.training if _tried(window))
    return list(islice(several, max(NUM_WINDOWS, run.layout.micro_batch_size)))


def _tried(row: Window) -> tuple[Example, ...]:
    """Return the last examples with a target, which have most before them that they could wrongly see."""
    return tuple(example for example in row[1:] if len(example.targets))[-EXAMPLES_PER_WINDOW:]


def _losses(run: Run, micro_batch: MicroBatch, *, with_borders: bool = True) -> Losses:
    inputs = inputs_of(micro_batch, run.device)
    losses = run.network(inputs if with_borders else _without_borders(inputs))
    examples = [example for row in micro_batch for example in row]
    pieces = torch.split(losses, [len(example.targets) for example in examples])
    return {example.id: piece for example, piece in zip(examples, pieces, strict=True)}


def _without_borders(inputs: Inputs) -> Inputs:
    """Let every example see all before it: the leak that packing must not have."""
    height, width = inputs.tokens_BT.shape
    device = inputs.positions_BT.device
    positions = torch.arange(width, device=device).repeat(height, 1)
    rows = torch.arange(0, height * width + 1, width, dtype=torch.int32, device=device)
    return replace(inputs, positions_BT=positions, borders_N=rows, longest=width)


def _losses_in_front(run: Run, micro_batch: MicroBatch) -> Losses:
    """Return losses of the examples tried, each at the front of its row, where nothing is before it that it could
    see.

    Shapes and kernels stay those of the packed rows, so that what is left is their rounding.
    """
    losses_by_example: Losses = {}
    for index in range(EXAMPLES_PER_WINDOW):
        chosen = [_tried(row)[index : index + 1] for row in micro_batch]
        moved = tuple(_moved_to_front(row, *one) for row, one in zip(micro_batch, chosen, strict=True))
        losses = _losses(run, moved)
        losses_by_example |= {example.id: losses[example.id] for one in chosen for example in one}
    return losses_by_example


def _moved_to_front(row: Window, *chosen: Example) -> Window:
    ids = {example.id for example in chosen}
    return (*chosen, *(example for example in row if example.id not in ids))


def _between(expected: Losses, measured: Losses) -> Iterator[float]:
    return (_distance(measured[name], losses) for name, losses in expected.items())


def _distance(measured: Tensor, expected: Tensor) -> float:
    """Return the mean distance between the losses of an example's tokens: at least the distance of their means, in
    which most of a leak would cancel out."""
    return float((measured - expected).abs().mean())


def _check_single_examples(run: Run) -> None:
    forms = [_loss_forms(run, example) for example in _single_examples(run)]
    difference = max_or_nan(between for between, _ in forms)
    # Where a device repeats nothing to the last bit, the two forms cannot be nearer than one is to itself.
    tolerance = max(LOSS_FORM_TOLERANCE, MOST_TIMES_NOISE * max_or_nan(repeated for _, repeated in forms))
    [is_nan, differs] = run.world.highest([not math.isfinite(difference), difference > tolerance])
    name = type(run.network.causal_lm).__name__
    if is_nan:
        message = f"base model {name}: loss of a single example is not a finite number before the first step"
        raise TrainingFailed(FailureClass.NUMERIC, message)
    if differs:
        raise TrainingFailed(
            FailureClass.USER,
            f"base model {name}: loss of a single example differs by {difference:.3g} from the model's own,"
            f" expected at most {tolerance:.3g}; this model family is not supported",
        )


def _single_examples(run: Run) -> Sequence[Example]:
    with_target = (example for window in run.dataset.training for example in window if len(example.targets))
    return list(islice(with_target, NUM_SINGLE_EXAMPLES))


def _loss_forms(run: Run, example: Example) -> tuple[float, float]:
    """Return how far the loop's loss is from the model's own, and the model's own from itself."""
    alone = Layout(packed=False, micro_batch_size=1, max_seq_length=1)
    [micro_batch] = rows_of([(example,)], alone)
    own = _own_losses(run, example)
    loop_loss = _losses(run, micro_batch)[example.id]
    return _distance(loop_loss, own), _distance(_own_losses(run, example), own)


def _own_losses(run: Run, example: Example) -> Tensor:
    tokens = torch.from_numpy(example.tokens).to(run.device, torch.int64)
    targets = torch.from_numpy(example.targets).to(run.device)
    return run.network.whole_logits_losses(tokens).index_select(0, targets - 1)


def max_or_nan(values: Iterable[float]) -> float:
    """Return the largest; not a number, if one of them is not; 0 without any."""
    numbers = list(values)
    return math.nan if any(math.isnan(number) for number in numbers) else max(numbers, default=0.0)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
