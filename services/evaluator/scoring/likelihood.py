"""How likely given endings are. What endings of a question, and questions of a part, share is computed once."""

# ruff: noqa: N803, N806 shapes are part of tensors' names
# B = rows of a batch, T = tokens of a row, P = tokens of the prefix, V = vocabulary
# K = predicted tokens, U = positions that predict them
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from services.evaluator.scoring.order import LOGITS_PER_BATCH, LOGITS_PER_CHUNK
from services.evaluator.scoring.scorer import Scorer

Report = Callable[[int, int], None]
"""Function that is called with how much was just done, and of how much: endings and answers."""

MIN_PREFIX_TOKENS = 32
"""Number of equal tokens at the beginning that make questions one run, which computes its common beginning once."""
MIN_FILL = 0.9
"""Share of the batch's longest row: a shorter row begins another batch, unless the batch is small."""
SMALL_BATCH = 1 / 8
"""Share of a forward pass: a batch with fewer tokens takes shorter rows too, since small passes are slow as well."""
PADDING, CONTEXT = -1, 0
"""Numbers of the parts of a row; endings count from 1."""


@dataclass(frozen=True)
class Question:
    """Tokens that are given, at least one, and endings of at least one token each, to be predicted."""

    context: list[int]
    endings: tuple[list[int], ...]

    @property
    def longest(self) -> int:
        return len(self.context) + max(map(len, self.endings))


@dataclass(frozen=True)
class Likelihood:
    nats: float
    """Negative log-likelihood, summed over the ending."""
    hits: int
    """Number of the ending's tokens that were the most likely one."""
    tokens: int


@dataclass(frozen=True)
class Row:
    """What one row of a batch holds: a question without the prefix, or one ending of it."""

    owner: int
    first: int
    """Index of the first ending here among the owner's endings."""
    context: list[int]
    endings: tuple[list[int], ...]

    @property
    def width(self) -> int:
        return len(self.context) + self.tail - 1

    @property
    def tail(self) -> int:
        """Number of positions that predict something, all at the row's end."""
        return 1 + sum(len(ending) - 1 for ending in self.endings)

    @property
    def is_branched(self) -> bool:
        return sum(len(ending) > 1 for ending in self.endings) > 1


@dataclass(frozen=True)
class Run:
    """Rows that follow the same prefix, which may be empty."""

    prefix: list[int]
    rows: list[Row]


@torch.inference_mode()
def likelihoods(
    scorer: Scorer, questions: Sequence[Question], report: Report
) -> list[tuple[Likelihood, ...]]:
    """Return the likelihoods of each question's endings, in order. The batches are the same for both sides."""
    scored_of: list[dict[int, Likelihood]] = [{} for _ in questions]
    total = sum(len(question.endings) for question in questions)
    for run in _runs(questions, shared_tokens=scorer.shared_tokens):
        cache = _prefix_cache(scorer, run.prefix)
        for batch in _batches(scorer, run):
            scored = iter(_score(scorer, batch, cache, len(run.prefix)))
            for row in batch:
                for number, _ in enumerate(row.endings, start=row.first):
                    scored_of[row.owner][number] = next(scored)
            report(sum(len(row.endings) for row in batch), total)
    return [tuple(ends[number] for number in sorted(ends)) for ends in scored_of]


def _runs(questions: Sequence[Question], *, shared_tokens: int) -> Iterator[Run]:
    """Yield questions with an equal beginning together; those over `shared_tokens` share nothing."""
    alone = [number for number, question in enumerate(questions) if question.longest > shared_tokens]
    if alone:
        yield Run([], [row for number in alone for row in _apart(number, questions[number])])
    together = set(range(len(questions))) - set(alone)
    lone: list[Row] = []
    ordered = sorted(together, key=lambda n: (questions[n].context, n))
    for run in _with_equal_beginnings(questions, ordered, MIN_PREFIX_TOKENS):
        prefix = _common_prefix(questions, run)
        rows = [_without(number, questions[number], len(prefix)) for number in run]
        if prefix:
            yield Run(prefix, rows)
        else:
            lone += rows
    if lone:
        yield Run([], lone)


def _with_equal_beginnings(
    questions: Sequence[Question], ordered: Sequence[int], length: int
) -> Iterator[list[int]]:
    """Yield groups of `ordered`, which is by context, that have their first `length` tokens in common, or more of
    them where smaller groups save more: subjects of a benchmark have their own examples behind an equal sentence."""
    for _, equal in groupby(ordered, key=lambda number: questions[number].context[:length]):
        group = list(equal)
        smaller = [group]
        if len(group) > 1 and any(len(questions[number].context) > length for number in group):
            smaller = list(_with_equal_beginnings(questions, group, 2 * length))
        saved = sum(_saved_tokens(questions, each) for each in smaller)
        yield from smaller if saved > _saved_tokens(questions, group) else [group]


def _saved_tokens(questions: Sequence[Question], run: Sequence[int]) -> int:
    return (len(run) - 1) * len(_common_prefix(questions, run))


def _common_prefix(questions: Sequence[Question], run: Sequence[int]) -> list[int]:
    """Return how all contexts of a sorted run begin, of which one token is left to predict the endings with."""
    if len(run) == 1:
        return []
    first, last = questions[run[0]].context, questions[run[-1]].context
    limit = min(len(first), len(last)) - 1
    length = next((n for n in range(limit) if first[n] != last[n]), limit)
    return first[:length] if length >= MIN_PREFIX_TOKENS else []


def _without(owner: int, question: Question, prefix_tokens: int) -> Row:
    return Row(owner, 0, question.context[prefix_tokens:], question.endings)


def _apart(owner: int, question: Question) -> list[Row]:
    return [Row(owner, number, question.context, (end,)) for number, end in enumerate(question.endings)]


def _batches(scorer: Scorer, run: Run) -> Iterator[list[Row]]:
    """Yield rows of like length, longest first, within the budgets of tokens and of logits."""
    positions = max(1, LOGITS_PER_BATCH // scorer.vocab_size)
    batch: list[Row] = []
    asked = 0
    for row in sorted(run.rows, key=lambda row: (-row.width, row.owner, row.first)):
        if batch:
            longest = batch[0].width
            is_full = (len(batch) + 1) * (len(run.prefix) + longest) > scorer.forward_tokens
            is_small = len(batch) * longest < SMALL_BATCH * scorer.forward_tokens
            if is_full or asked + row.tail > positions or (row.width < MIN_FILL * longest and not is_small):
                yield batch
                batch, asked = [], 0
        batch.append(row)
        asked += row.tail
    if batch:
        yield batch


def _prefix_cache(scorer: Scorer, prefix: list[int]) -> Any:
    """Return keys and values of the prefix in a batch of one; None without a prefix."""
    if not prefix:
        return None
    ids = torch.tensor([prefix], device=scorer.device)
    return scorer.forward(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values


def _score(scorer: Scorer, rows: Sequence[Row], cache: Any, prefix_tokens: int) -> list[Likelihood]:
    """Return the likelihood of every ending of every row."""
    width = max(row.width for row in rows)
    parts_BT = torch.tensor([_left_padded(_parts(row), width, PADDING) for row in rows])
    tokens = [_left_padded(_tokens(row), width, scorer.filler) for row in rows]
    positions = [_left_padded(_positions(row, prefix_tokens), width, 0) for row in rows]
    if cache is not None:
        cache = _repeated(cache, len(rows))
    indices, labels = _asked(rows, width)
    # Endings begin at the same position: the end of their context.
    indices_U, index_K = torch.unique(torch.tensor(indices, device=scorer.device), return_inverse=True)
    logits_UV = scorer.logits_at(
        indices_U,
        input_ids=torch.tensor(tokens, device=scorer.device),
        position_ids=torch.tensor(positions, device=scorer.device),
        attention_mask=_mask(scorer, rows, parts_BT, prefix_tokens),
        past_key_values=cache,
        use_cache=cache is not None,
    )
    nats_K, hits_K = _gather(logits_UV, index_K, labels)
    return list(_summed(rows, nats_K, hits_K))


def _repeated(cache: Any, num_rows: int) -> Any:
    """Return the prefix in front of every row of a batch; the forward pass may append to it."""
    if any(type(layer) is not DynamicLayer for layer in getattr(cache, "layers", [None])):
        cache = copy.deepcopy(cache)
        cache.batch_repeat_interleave(num_rows)
        return cache
    # A dynamic layer joins its tensors with new ones into others and leaves its own as they are: views will do.
    cache = copy.copy(cache)
    cache.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in cache.layers:
        layer.keys = layer.keys.expand(num_rows, -1, -1, -1)
        layer.values = layer.values.expand(num_rows, -1, -1, -1)
    return cache


def _tokens(row: Row) -> list[int]:
    """Return a row's tokens without the last one of each ending, which predicts nothing that is asked for."""
    return [*row.context, *(token for ending in row.endings for token in ending[:-1])]


def _positions(row: Row, prefix_tokens: int) -> list[int]:
    """Return a row's positions: each ending continues where the context ends."""
    start = prefix_tokens + len(row.context)
    ends = (start + n for ending in row.endings for n in range(len(ending) - 1))
    return [*range(prefix_tokens, start), *ends]


def _parts(row: Row) -> list[int]:
    ends = (n for n, ending in enumerate(row.endings, start=1) for _ in ending[:-1])
    return [*[CONTEXT] * len(row.context), *ends]


def _left_padded(values: list[int], width: int, filler: int) -> list[int]:
    return [filler] * (width - len(values)) + values


def _mask(scorer: Scorer, rows: Sequence[Row], parts_BT: Tensor, prefix_tokens: int) -> Tensor:
    """Return what each token sees: prefix, context and its own ending. The mask is (B, P + T) of 0 and 1 where no row
    branches, else (B, 1, T, P + T) of 0 and the least number, to be added to attention scores."""
    parts_BT = parts_BT.to(scorer.device)
    num_rows, width = parts_BT.shape
    if not any(row.is_branched for row in rows):
        prefix = torch.ones(num_rows, prefix_tokens, dtype=torch.long, device=scorer.device)
        return torch.cat([prefix, (parts_BT != PADDING).long()], dim=1)
    asking, seen = parts_BT[:, :, None], parts_BT[:, None, :]
    # Padding sees itself, since attention to nothing is not a number.
    itself = torch.eye(width, dtype=torch.bool, device=scorer.device)
    is_seen = (
        (seen == CONTEXT) & (asking != PADDING) | (seen == asking) & (asking > CONTEXT)
    ).tril() | itself
    mask = torch.zeros(num_rows, 1, width, prefix_tokens + width, dtype=scorer.dtype, device=scorer.device)
    mask[:, 0, :, prefix_tokens:].masked_fill_(~is_seen, torch.finfo(scorer.dtype).min)
    return mask


def _asked(rows: Sequence[Row], columns: int) -> tuple[list[int], list[int]]:
    """Return for each token of each ending the index into (B * columns) that predicts it, and the token."""
    indices: list[int] = []
    labels: list[int] = []
    for number, row in enumerate(rows):
        end_of_row = (number + 1) * columns
        last_of_context = end_of_row - row.tail
        index = last_of_context + 1
        for ending in row.endings:
            indices += [last_of_context, *range(index, index + len(ending) - 1)]
            labels += ending
            index += len(ending) - 1
    return indices, labels


def _gather(logits_UV: Tensor, index_K: Tensor, labels: list[int]) -> tuple[Tensor, Tensor]:
    """Return negative log-likelihoods and hits, (K,) each, worked out on the device in chunks of positions."""
    labels_K = torch.tensor(labels, device=logits_UV.device)
    size = max(1, LOGITS_PER_CHUNK // logits_UV.shape[1])
    nats, hits = [], []
    for some, targets in zip(torch.split(index_K, size), torch.split(labels_K, size), strict=True):
        chunk = logits_UV[some].float()
        nats.append(chunk.logsumexp(dim=-1) - chunk.gather(1, targets[:, None])[:, 0])
        hits.append(chunk.argmax(dim=-1) == targets)
    return torch.cat(nats).double().cpu(), torch.cat(hits).cpu()


def _summed(rows: Sequence[Row], nats_K: Tensor, hits_K: Tensor) -> Iterator[Likelihood]:
    lengths = [len(ending) for row in rows for ending in row.endings]
    for nats, hits in zip(torch.split(nats_K, lengths), torch.split(hits_K, lengths), strict=True):
        total = float(nats.sum())
        yield Likelihood(total if math.isfinite(total) else math.inf, int(hits.sum()), len(nats))
