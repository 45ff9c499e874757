"""Chat prompts through the model's own template: greedy answers, and how likely given answers are."""

# ruff: noqa: N803, N806 shapes are part of tensors' names
# B = batch, T = tokens of a row, N = labels of a batch, V = vocabulary
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig

from services.evaluator.scoring.models import Scorer
from services.evaluator.scoring.order import Failure, ScoringRefused
from shared.chat.conversation import BadMessage, Conversation
from shared.chat.tokenizer import ChatTokenizer

Report = Callable[[int, int], None]
"""Called with the number of sequences just done, and of how many."""

IGNORED = -100


@dataclass(frozen=True)
class Labelled:
    """A sequence and the token to be predicted at each place; IGNORED where none is asked for."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Likelihood:
    nats: float
    """Negative log-likelihood, summed over the labels."""
    hits: int
    """Labels that were the most likely token."""
    tokens: int


def render_prompt(scorer: Scorer, asked: Conversation | str, *, key: str) -> list[int]:
    """Token ids up to where the answer begins. Raises ScoringRefused if no room for an answer is left."""
    try:
        ids = scorer.chat.opening(asked) if isinstance(asked, str) else scorer.chat.prompt(asked)
    except BadMessage as error:
        raise _malformed(key, str(error)) from error
    _require_room(key, len(ids) + 1, scorer.max_tokens)
    return ids


def render_answer(scorer: Scorer, asked: Conversation | str, reference: str, *, key: str) -> Labelled:
    """What is asked and its reference answer, labelled over the tokens that training has a loss on."""
    try:
        labelled = (
            _completed(scorer.chat, asked, reference)
            if isinstance(asked, str)
            else _answered(scorer.chat, asked, reference, key=key)
        )
    except BadMessage as error:
        raise _malformed(key, str(error)) from error
    _require_room(key, len(labelled.ids), scorer.max_tokens)
    return labelled


def _completed(chat: ChatTokenizer, prompt: str, completion: str) -> Labelled:
    """Prompt and completion are tokenised apart, as at inference."""
    start, end = chat.opening(prompt), chat.completion(completion)
    return Labelled(start + end, [IGNORED] * len(start) + end)


def _answered(chat: ChatTokenizer, asked: Conversation, reference: str, *, key: str) -> Labelled:
    """Labelled over the last answer alone."""
    marked = chat.marked(asked.answered(reference))
    ids, marks = marked.ids, marked.mask
    if not any(marks):
        raise _malformed(key, "the template marks no answer")
    last = len(marks) - marks[::-1].index(1)
    first = last - next((n for n, mark in enumerate(marks[:last][::-1]) if not mark), last)
    return Labelled(ids, [IGNORED] * first + ids[first:last] + [IGNORED] * (len(ids) - last))


def _malformed(key: str, message: str) -> ScoringRefused:
    return ScoringRefused(Failure(code="malformed_rows", message=f"{key}: {message}"))


class Generated(NamedTuple):
    text: str
    is_cut: bool
    """The model had more to say than it was allowed to."""


@torch.inference_mode()
def answers(scorer: Scorer, prompts: Sequence[list[int]], report: Report) -> list[Generated]:
    """Greedy answers without special tokens, in the order of the prompts."""
    found = [Generated("", is_cut=False)] * len(prompts)
    for batch in batches(list(map(len, prompts)), scorer.batch_size):
        for index, text in zip(batch, _generate(scorer, [prompts[index] for index in batch]), strict=True):
            found[index] = text
        report(len(batch), len(prompts))
    return found


@torch.inference_mode()
def likelihoods(scorer: Scorer, sequences: Sequence[Labelled], report: Report) -> list[Likelihood]:
    found = [Likelihood(0.0, 0, 0)] * len(sequences)
    for batch in batches([len(sequence.ids) for sequence in sequences], scorer.batch_size):
        scored = _score(scorer, [sequences[index] for index in batch])
        for index, likelihood in zip(batch, scored, strict=True):
            found[index] = likelihood
        report(len(batch), len(sequences))
    return found


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Indices in batches of like length, longest first. The same for both sides, so that rounding is too."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _generate(scorer: Scorer, prompts: Sequence[list[int]]) -> list[Generated]:
    width = max(map(len, prompts))
    filler = _filler(scorer.tokenizer)
    gaps = [width - len(ids) for ids in prompts]
    ids_BT = torch.tensor([[filler] * gap + ids for gap, ids in zip(gaps, prompts, strict=True)])
    mask_BT = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps])
    stops = _stops(scorer)
    settings = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=min(scorer.max_new_tokens, scorer.max_tokens - width),
        eos_token_id=stops or None,
        pad_token_id=filler,
    )
    out_BT = scorer.model.generate(
        input_ids=ids_BT.to(scorer.device),
        attention_mask=mask_BT.to(scorer.device),
        generation_config=settings,
    )
    return [
        Generated(
            scorer.tokenizer.decode(row, skip_special_tokens=True),
            is_cut=not any(token in stops for token in row.tolist()),
        )
        for row in out_BT[:, width:]
    ]


def _score(scorer: Scorer, sequences: Sequence[Labelled]) -> list[Likelihood]:
    width = max(len(sequence.ids) for sequence in sequences) - 1
    filler = _filler(scorer.tokenizer)
    ids_BT = torch.tensor([_padded(row.ids[:-1], width, filler) for row in sequences])
    mask_BT = torch.tensor([_padded([1] * (len(row.ids) - 1), width, 0) for row in sequences])
    labels_BT = torch.tensor([_padded(row.labels[1:], width, IGNORED) for row in sequences])
    logits_BTV = scorer.model(
        input_ids=ids_BT.to(scorer.device), attention_mask=mask_BT.to(scorer.device), use_cache=False
    ).logits
    asked_BT = labels_BT != IGNORED
    labels_N = labels_BT[asked_BT]
    log_probs_NV = torch.log_softmax(logits_BTV[asked_BT.to(scorer.device)].float(), dim=-1).cpu()
    nats_N = -log_probs_NV.gather(1, labels_N[:, None])[:, 0].double()
    hits_N = log_probs_NV.argmax(dim=-1) == labels_N
    return [_sum(nats_N[rows], hits_N[rows]) for rows in _rows(asked_BT)]


def _rows(asked_BT: Tensor) -> Iterator[slice]:
    """For each sequence its place among the batch's N labels."""
    end = 0
    for count in asked_BT.sum(dim=1).tolist():
        end += count
        yield slice(end - count, end)


def _sum(nats: Tensor, hits: Tensor) -> Likelihood:
    total = float(nats.sum())
    return Likelihood(total if math.isfinite(total) else math.inf, int(hits.sum()), len(nats))


def _padded(values: list[int], width: int, filler: int) -> list[int]:
    return values + [filler] * (width - len(values))


def _filler(tokenizer: Any) -> int:
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in known if token is not None)


def _stops(scorer: Scorer) -> list[int]:
    """Where serving stops too: the model's generation settings and the tokenizer's end of sequence."""
    found = scorer.model.generation_config.eos_token_id
    listed = found if isinstance(found, list) else [found]
    return sorted({token for token in (*listed, scorer.tokenizer.eos_token_id) if token is not None})


def _require_room(key: str, length: int, limit: int) -> None:
    if length > limit:
        message = f"{key}: {length} tokens, expected at most {limit}"
        raise ScoringRefused(Failure(code="too_long", message=message))
