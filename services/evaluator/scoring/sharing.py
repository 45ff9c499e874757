"""Whether a model scores alike where questions share what is equal in them: tried on the model itself."""

from dataclasses import replace

import torch

from services.evaluator.scoring.likelihood import MIN_PREFIX_TOKENS, Question, likelihoods
from services.evaluator.scoring.scorer import Scorer

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Nats per token by which the two ways may differ, which is rounding. What sees a wrong token differs by more."""
WINDOWS = ("sliding_window", "attention_chunk_size")
"""Settings of models whose tokens see only so far back. A mask of our own would let them see further."""


def tokens_that_share(scorer: Scorer, probe: list[int]) -> int:
    """Return the longest question whose endings and beginning are computed once; 0 where the model allows none.

    probe: tokens of a text that the model can read.
    """
    shared = replace(scorer, shared_tokens=scorer.max_tokens)
    questions = _questions(probe)
    if max(question.longest for question in questions) > _window(scorer):
        return 0
    try:
        together, apart = (likelihoods(side, questions, _ignore) for side in (shared, scorer))
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError):
        return 0  # it does not take such a mask or cache
    pairs = [
        pair for some, others in zip(together, apart, strict=True) for pair in zip(some, others, strict=True)
    ]
    tolerance = TOLERANCE[scorer.dtype]
    is_equal = all(abs(one.nats - other.nats) <= tolerance * other.tokens for one, other in pairs)
    return _window(scorer) if is_equal else 0


def _questions(probe: list[int]) -> list[Question]:
    """Return two questions of unequal length with an equal beginning, and endings of several lengths."""
    tokens = (probe * (4 * MIN_PREFIX_TOKENS // len(probe) + 1))[: 4 * MIN_PREFIX_TOKENS]
    beginning, rest = tokens[: MIN_PREFIX_TOKENS + 8], tokens[MIN_PREFIX_TOKENS + 8 :]
    endings = (rest[:1], rest[1:5], rest[5:12])
    return [Question([*beginning, *rest[12:length]], endings) for length in (15, 24)]


def _window(scorer: Scorer) -> int:
    config = scorer.model.config.get_text_config()
    named = [getattr(config, name, None) for name in WINDOWS]
    return min([scorer.max_tokens, *(size for size in named if isinstance(size, int) and size > 0)])


def _ignore(_done: int, _total: int) -> None:
    pass
