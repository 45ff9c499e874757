"""Chat prompts through the model's own template, and the greedy answers to them."""

# ruff: noqa: N815 shapes are part of tensors' names
# B = batch, T = tokens of a row
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from services.evaluator.scoring.likelihood import Question, Report
from services.evaluator.scoring.order import Failure, ScoringRefused
from services.evaluator.scoring.scorer import Scorer
from shared.chat.conversation import BadMessage, Conversation
from shared.chat.tokenizer import ChatTokenizer

KEPT_SHARE = 0.75
"""Share of a batch's rows: where at most so many still continue, it is made smaller."""


@dataclass(frozen=True)
class Prompt:
    """Token ids up to where the answer begins, and how many tokens the answer may have at most."""

    ids: list[int]
    max_new_tokens: int

    @property
    def longest(self) -> int:
        return len(self.ids) + self.max_new_tokens


def render_prompt(scorer: Scorer, asked: Conversation | str, *, key: str, max_new_tokens: int) -> Prompt:
    """Render a prompt up to where the answer begins. Raises ScoringRefused if no room for an answer is left."""
    try:
        ids = scorer.chat.opening(asked) if isinstance(asked, str) else scorer.chat.prompt(asked)
    except BadMessage as error:
        raise _malformed(key, str(error)) from error
    _require_room(key, len(ids) + 1, scorer.max_tokens)
    return Prompt(ids, min(max_new_tokens, scorer.max_tokens - len(ids)))


def render_answer(scorer: Scorer, asked: Conversation | str, reference: str, *, key: str) -> Question:
    """Render what is asked, and the tokens of its reference that training has a loss on. Raises ScoringRefused."""
    try:
        question = (
            # Prompt and completion are tokenised apart, as at inference.
            Question(scorer.chat.opening(asked), (scorer.chat.completion(reference),))
            if isinstance(asked, str)
            else _answered(scorer.chat, asked, reference, key=key)
        )
    except BadMessage as error:
        raise _malformed(key, str(error)) from error
    _require_room(key, question.longest, scorer.max_tokens)
    return question


def _answered(chat: ChatTokenizer, asked: Conversation, reference: str, *, key: str) -> Question:
    """Render a conversation of which the last answer alone is predicted. Raises ScoringRefused."""
    marked = chat.marked(asked.answered(reference))
    ids, marks = marked.ids, marked.mask
    if not any(marks):
        raise _malformed(key, "the template marks no answer")
    last = len(marks) - marks[::-1].index(1)
    first = last - next((n for n, mark in enumerate(marks[:last][::-1]) if not mark), last)
    return Question(ids[:first], (ids[first:last],))


def _malformed(key: str, message: str) -> ScoringRefused:
    return ScoringRefused(Failure(code="malformed_rows", message=f"{key}: {message}"))


@dataclass
class Batch:
    """Prompts whose answers are generated together. `ids_BT` is what the next step reads."""

    rows: list[int]
    """Index of each row among the prompts that the batch began with."""
    ids_BT: Tensor
    mask_BT: Tensor
    """Attention mask over all that was read so far and `ids_BT`; 0 for padding."""
    positions_BT: Tensor
    cache: Any = None

    def step(self, scorer: Scorer) -> list[int]:
        """Return the most likely next token of each row."""
        out = scorer.forward(
            input_ids=self.ids_BT,
            attention_mask=self.mask_BT,
            position_ids=self.positions_BT,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.ids_BT = out.logits[:, -1:].argmax(dim=-1)
        self.mask_BT = torch.cat([self.mask_BT, torch.ones_like(self.ids_BT)], dim=1)
        self.positions_BT = self.positions_BT[:, -1:] + 1
        self.cache = out.past_key_values
        return [int(token) for token in self.ids_BT[:, 0].tolist()]

    def keep(self, indices: list[int]) -> None:
        """Continue with these rows alone."""
        self.rows = [self.rows[index] for index in indices]
        # Of this machine's memory: a layer's keys and values may be on another device than the batch.
        kept = torch.tensor(indices)
        self.cache.batch_select_indices(kept)
        self.ids_BT, self.mask_BT = self.ids_BT[kept], self.mask_BT[kept]
        self.positions_BT = self.positions_BT[kept]


class Generated(NamedTuple):
    text: str
    is_cut: bool
    """Whether the model had more to say than it was allowed to."""


@torch.inference_mode()
def answers(scorer: Scorer, prompts: Sequence[Prompt], report: Report) -> list[Generated]:
    """Return greedy answers without special tokens, in the order of the prompts.

    The most likely token alone decides: no penalty, beam or sampling that the model's own settings name.
    """
    given = [Generated("", is_cut=False)] * len(prompts)
    for batch in batches([prompt.longest for prompt in prompts], scorer.batch_tokens):
        generated = _generate(scorer, [prompts[index] for index in batch])
        for index, (ids, is_cut) in zip(batch, generated, strict=True):
            given[index] = Generated(scorer.tokenizer.decode(ids, skip_special_tokens=True), is_cut)
        report(len(batch), len(prompts))
    return given


def batches(lengths: Sequence[int], num_tokens: int) -> Iterator[list[int]]:
    """Yield indices in batches of like length, longest first, each padded to at most `num_tokens` or of one row.

    They are the same for both sides, so that rounding is too.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > num_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _generate(scorer: Scorer, prompts: Sequence[Prompt]) -> list[tuple[list[int], bool]]:
    """Return the tokens of each answer without its end, and whether it was cut. Ended rows leave the batch."""
    stops = stop_tokens(scorer)
    token_ids: list[list[int]] = [[] for _ in prompts]
    is_cut: dict[int, bool] = {}
    batch = _padded(scorer, [prompt.ids for prompt in prompts])
    while len(is_cut) < len(prompts):
        for row, token in zip(batch.rows, batch.step(scorer), strict=True):
            if row in is_cut:
                continue
            if token in stops:
                is_cut[row] = False
                continue
            token_ids[row].append(token)
            if len(token_ids[row]) == prompts[row].max_new_tokens:
                is_cut[row] = True
        indices = [index for index, row in enumerate(batch.rows) if row not in is_cut]
        if 0 < len(indices) <= KEPT_SHARE * len(batch.rows):
            batch.keep(indices)
    return [(ids, is_cut[row]) for row, ids in enumerate(token_ids)]


def _padded(scorer: Scorer, prompts: Sequence[list[int]]) -> Batch:
    gaps = [max(map(len, prompts)) - len(ids) for ids in prompts]
    ids = [[scorer.filler] * gap + ids for gap, ids in zip(gaps, prompts, strict=True)]
    masks = [[0] * gap + [1] * len(ids) for gap, ids in zip(gaps, prompts, strict=True)]
    positions = [[0] * gap + list(range(len(ids))) for gap, ids in zip(gaps, prompts, strict=True)]
    tensors = (torch.tensor(values, device=scorer.device) for values in (ids, masks, positions))
    return Batch(list(range(len(prompts))), *tensors)


def stop_tokens(scorer: Scorer) -> frozenset[int]:
    """Return where serving stops too: the model's generation settings and the tokenizer's end of sequence."""
    ends = scorer.model.generation_config.eos_token_id
    listed = ends if isinstance(ends, list) else [ends]
    return frozenset(token for token in (*listed, scorer.tokenizer.eos_token_id) if token is not None)


def _require_room(key: str, length: int, limit: int) -> None:
    if length > limit:
        message = f"{key}: {length} tokens, expected at most {limit}"
        raise ScoringRefused(Failure(code="too_long", message=message))
