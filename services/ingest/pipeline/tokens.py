"""Rows as token ids with a loss mask, by the base model's own tokenizer and chat template."""

import hashlib
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from schemas.specification import DatasetFormat
from services.ingest.pipeline.formats import Example, Turn
from services.ingest.pipeline.rules import BadRow, FileRefused, cut, shown

Tokens = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]

GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True)
class Encoded:
    tokens: Tokens
    mask: Mask
    """1 where the token is a target of the loss; same length as tokens."""


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer of a local directory; no code of the directory runs and torch is never imported."""
    # None makes `import torch` fail, so that transformers takes its tokenizers alone.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    from transformers import AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise FileRefused(
            "tokenizer.unreadable", f"the base model's tokenizer cannot be read: {error}"
        ) from error
    if not tokenizer.is_fast:
        raise FileRefused(
            "tokenizer.not_fast", "the base model has no tokenizer.json, which masks are made with"
        )
    return tokenizer


def template_sha256(tokenizer: Any) -> str:
    return hashlib.sha256(_template(tokenizer).encode()).hexdigest()


def _template(tokenizer: Any) -> str:
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else ""


class Encoder:
    """Encodes rows of one format for windows of `limit` tokens. Raises FileRefused where it cannot."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        expected: DatasetFormat,
        limit: int,
        over_length: Literal["reject", "truncate"],
    ) -> None:
        self._tokenizer = tokenizer
        self._format = expected
        self._limit = limit
        self._truncates = over_length == "truncate"
        self._special = special_pattern(tokenizer)
        longest = max(len(token.encode()) for token in tokenizer.get_vocab())
        self._max_bytes = limit * longest
        if expected is DatasetFormat.CHAT:
            require_marker(_template(tokenizer))
        elif tokenizer.eos_token_id is None:
            raise FileRefused(
                "tokenizer.no_eos", "the tokenizer has no end-of-text token to end a completion with"
            )

    def encode(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """One result per example, in order."""
        results: dict[int, Encoded | BadRow] = {}
        good: list[int] = []
        for index, example in enumerate(examples):
            problem = self._text_problem(example)
            if problem is None:
                good.append(index)
            else:
                results[index] = problem
        bounded = [without_tail(examples[index], self._max_bytes) for index in good]
        for index, row in zip(good, self._rows(bounded), strict=True):
            results[index] = row if isinstance(row, BadRow) else self._within_limit(row)
        return [results[index] for index in range(len(examples))]

    def _text_problem(self, example: Example) -> BadRow | None:
        found = special_token_problem(example, self._special)
        num_bytes = sum(len(turn.content.encode()) for turn in example.turns)
        if found is None and num_bytes > self._max_bytes and not self._truncates:
            # No token is longer than the longest one: so many bytes need not be tokenised to be too many.
            at_least = num_bytes * self._limit // self._max_bytes
            return BadRow("tokens.over_length", "row", f"at least {at_least} tokens, at most {self._limit}")
        return found

    def _rows(self, examples: list[Example]) -> list[Encoded | BadRow]:
        if not examples:
            return []
        encode = self._chat if self._format is DatasetFormat.CHAT else self._prompt_completion
        return list(encode(examples))

    def _chat(self, examples: list[Example]) -> list[Encoded | BadRow]:
        from jinja2 import TemplateError

        try:
            rows = self._templated(examples)
        except TemplateError as error:
            if len(examples) == 1:
                return [BadRow("template.render", "messages", cut(str(error)))]
            return [row for example in examples for row in self._chat([example])]
        return [weighted(row, example.turns) for row, example in zip(rows, examples, strict=True)]

    def _templated(self, examples: list[Example]) -> list[Encoded]:
        out = self._tokenizer.apply_chat_template(
            [
                [{"role": turn.role, "content": turn.content} for turn in example.turns]
                for example in examples
            ],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"verbose": False},
        )
        return [
            Encoded(np.array(tokens, np.int32), np.array(mask, np.uint8))
            for tokens, mask in zip(out["input_ids"], out["assistant_masks"], strict=True)
        ]

    def _prompt_completion(self, examples: list[Example]) -> list[Encoded]:
        """Prompt and completion apart, as at inference; the prompt has the tokenizer's start, not its end."""
        eos = self._tokenizer.eos_token_id
        prompts = self._tokenizer([example.turns[0].content for example in examples], verbose=False)[
            "input_ids"
        ]
        completions = self._tokenizer(
            [example.turns[1].content for example in examples], add_special_tokens=False, verbose=False
        )["input_ids"]
        rows = []
        for prompt, completion in zip(prompts, completions, strict=True):
            start = prompt[:-1] if prompt[-1:] == [eos] else prompt
            tokens = np.array([*start, *completion, eos], np.int32)
            mask = np.zeros(len(tokens), np.uint8)
            mask[len(start) :] = 1
            rows.append(Encoded(tokens, mask))
        return rows

    def _within_limit(self, row: Encoded) -> Encoded | BadRow:
        return within_limit(row, limit=self._limit, truncates=self._truncates)


def special_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    """Matches any special token, longest first; None where the tokenizer has none."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    special |= set(tokenizer.all_special_tokens)
    if not special:
        return None
    return re.compile("|".join(re.escape(token) for token in sorted(special, key=lambda t: (-len(t), t))))


def special_token_problem(example: Example, special: re.Pattern[str] | None) -> BadRow | None:
    if special is None:
        return None
    for turn in example.turns:
        if match := special.search(turn.content):
            around = f"{shown(match[0])} at character {match.start() + 1}"
            return BadRow("text.special_token", turn.field, around)
    return None


def without_tail(example: Example, max_characters: int) -> Example:
    """The row without the text that is certainly cut away: it need not be tokenised."""
    turns, left = [], max_characters
    for turn in example.turns:
        turns.append(replace(turn, content=turn.content[:left]))
        left = max(0, left - len(turn.content))
    return replace(example, turns=tuple(turns)) if left == 0 else example


def within_limit(row: Encoded, *, limit: int, truncates: bool) -> Encoded | BadRow:
    """The row as it fits the window. The first token is no target: nothing comes before it."""
    total = len(row.tokens)
    if total > limit and not truncates:
        return BadRow("tokens.over_length", "row", f"{total} tokens, at most {limit}")
    kept = Encoded(row.tokens[:limit], row.mask[:limit])
    if not kept.mask[1:].any():
        cut_away = f" of the first {limit} of {total}" if total > limit else f" of {total}"
        return BadRow("tokens.no_loss_token", "row", f"none{cut_away} tokens counts towards the loss")
    return kept


def weighted(row: Encoded, turns: tuple[Turn, ...]) -> Encoded | BadRow:
    """The mask without the assistant turns of weight 0, which are its runs of ones in order."""
    answers = [turn for turn in turns if turn.role == "assistant"]
    if all(turn.is_trained for turn in answers):
        return row
    edges = np.flatnonzero(np.diff(row.mask, prepend=0, append=0).astype(np.int8))
    runs = edges.reshape(-1, 2)
    if len(runs) != len(answers):
        return BadRow(
            "tokens.weight", "messages", f"{len(runs)} masked runs for {len(answers)} assistant turns"
        )
    mask = row.mask.copy()
    for (start, end), answer in zip(runs, answers, strict=True):
        mask[start:end] = answer.is_trained
    return Encoded(row.tokens, mask)


def require_marker(template: str) -> None:
    if not template:
        raise FileRefused(
            "template.missing", "the base model has no chat template: use prompt and completion rows with it"
        )
    if not GENERATION_MARKER.search(template):
        raise FileRefused(
            "template.no_generation_marker",
            "the base model's chat template has no {% generation %} block, so no token can be marked as an "
            "answer: register the base model with a training template, or use prompt and completion rows",
        )
