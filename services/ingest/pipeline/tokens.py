"""Rows as token ids with a loss mask, by the base model's own tokenizer and chat template."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.layout import TRAINING_TEMPLATE
from schemas.specification import DatasetFormat
from services.ingest.pipeline.formats import Example, Turn
from services.ingest.pipeline.rules import BadRow, FileRefused
from shared.chat import loading
from shared.chat.conversation import BadMessage
from shared.chat.encoding import EndTokens, Marked
from shared.chat.rendering import Rendering
from shared.chat.tokenizer import ChatTokenizer

Tokens = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoded:
    tokens: Tokens
    mask: Mask
    """1 where the token is a target of the loss; as long as `tokens`."""
    border: int = 0
    """Index where the second example of a preference row begins, which ends with the rejected answer; else 0."""
    is_cut: bool = False
    """Whether the row was longer than a window and its end is cut away."""


def load_tokenizer(directory: Path) -> Any:
    try:
        return loading.load_tokenizer(directory)
    except loading.BadTokenizer as error:
        raise FileRefused(error.code, str(error)) from error


def training_template(directory: Path) -> str | None:
    """Return the template that the base model was registered with for training; None where its own is used."""
    path = directory / TRAINING_TEMPLATE
    return path.read_text() if path.is_file() else None


def template_sha256(tokenizer: Any) -> str:
    return hashlib.sha256(_template(tokenizer).encode()).hexdigest()


def _template(tokenizer: Any) -> str:
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else ""


class Checker:
    """Says why a row cannot be tokenised, of rows whose tokens are not kept; None where it can."""

    def __init__(
        self, tokenizer: Any, *, training_template: str | None = None, is_holdout: bool = False
    ) -> None:
        self._tokenizer = ChatTokenizer(tokenizer, training_template)
        self._is_holdout = is_holdout

    def __call__(self, example: Example) -> BadRow | None:
        last = example.conversation.messages[-1] if example.conversation else None
        if self._is_holdout and last and last.tool_calls:
            return BadRow("holdout.tool_call", last.field, f"a call of {last.tool_calls[0].name}")
        try:
            self._tokenise(example)
        except BadMessage as error:
            return _bad_row(error)
        return None

    def _tokenise(self, example: Example) -> None:
        """Tokenise the row and drop the result. Raises BadMessage."""
        if example.turns[-1].role == "rejected":
            for side in example.sides:
                self._tokenise(side)
            return
        texts = {turn.role: turn.content for turn in example.turns}
        if example.conversation is not None:
            whole = example.conversation
            self._tokenizer.marked(whole.last_alone() if self._is_holdout else whole)
        elif texts.keys() == {"prompt", "completion"}:
            self._tokenizer.opening(texts["prompt"])
            self._tokenizer.completion(texts["completion"])
        elif texts.keys() == {"text"}:
            self._tokenizer.document(texts["text"])


class Encoder:
    """Encodes rows of one format for windows of `limit` tokens. Raises FileRefused where it cannot.

    ends: ids of the tokens that the model stops at when it is served.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        expected: DatasetFormat,
        limit: int,
        truncation: bool,
        ends: frozenset[int],
        training_template: str | None = None,
    ) -> None:
        self._format = expected
        self._ends = EndTokens(tokenizer, ends)
        self._limit = limit
        self._truncates = truncation
        self._has_end = tokenizer.eos_token_id is not None
        self._chat_tokenizer = ChatTokenizer(tokenizer, training_template)
        longest = max(len(token.encode()) for token in tokenizer.get_vocab())
        self._max_bytes = limit * longest
        if expected is DatasetFormat.CHAT:
            require_template(_template(tokenizer))
        elif not self._has_end and expected is not DatasetFormat.PREFERENCE:
            raise FileRefused(
                "tokenizer.no_eos",
                "the tokenizer has no end-of-text token to end a completion or a text with",
            )

    def encode(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """Return one result per example, in order."""
        encode = {
            DatasetFormat.CHAT: self._chat,
            DatasetFormat.PROMPT_COMPLETION: self._prompt_completion,
            DatasetFormat.PREFERENCE: self._preference,
            DatasetFormat.TEXT: self._text,
        }[self._format]
        return [row if isinstance(row, BadRow) else self._within_limit(row) for row in encode(examples)]

    def _chat(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        rendered = [self._rendered(example) for example in examples]
        good = [row for row in rendered if isinstance(row, Rendering)]
        marked = iter(self._chat_tokenizer.encoder.conversations(good))
        return [
            row if isinstance(row, BadRow) else self._targets(row, next(marked), example)
            for row, example in zip(rendered, examples, strict=True)
        ]

    def _rendered(self, example: Example) -> Rendering | BadRow:
        assert example.conversation is not None, "a chat row has a conversation"
        try:
            rendering = self._chat_tokenizer.renderer.render(example.conversation)
            if problem := self._bytes_problem(rendering.text):
                return problem
            rendering = self._chat_tokenizer.renderer.with_boundary(example.conversation, rendering)
        except BadMessage as error:
            return _bad_row(error)
        return without_tail(rendering, self._max_bytes)

    def _targets(
        self, rendering: Rendering, marked: Marked | BadMessage, example: Example
    ) -> Encoded | BadRow:
        if isinstance(marked, BadMessage):
            return _bad_row(marked)
        last = example.turns[-1]
        is_whole = len(rendering.text) < self._max_bytes
        if is_whole and last.is_trained and (problem := self._ends.problem(marked, last.field)):
            return _bad_row(problem)
        row = _encoded(marked)
        return row if rendering.is_derived else weighted(row, example.turns)

    def _prompt_completion(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """Encode prompt and completion apart, as at inference; the prompt has the tokenizer's start, not its end."""
        texts = [[turn.content[: self._max_bytes] for turn in example.turns] for example in examples]
        prompts = self._chat_tokenizer.encoder.openings([prompt for prompt, _ in texts])
        completions = self._chat_tokenizer.encoder.completions([completion for _, completion in texts])
        return [
            self._bytes_problem("".join(turn.content for turn in example.turns))
            or _completed(prompt, completion)
            for example, prompt, completion in zip(examples, prompts, completions, strict=True)
        ]

    def _preference(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """Encode each side as a row of that answer alone would be: of a chat, or of prompt and completion."""
        sides = [side for example in examples for side in example.sides]
        encoded: dict[int, Encoded | BadRow] = {}
        for is_chat, encode in ((True, self._chat), (False, self._plain_side)):
            indices = [
                index for index, side in enumerate(sides) if (side.conversation is not None) is is_chat
            ]
            encoded |= zip(indices, encode([sides[index] for index in indices]), strict=True)
        return [_joined(encoded[index], encoded[index + 1]) for index in range(0, len(sides), 2)]

    def _plain_side(self, sides: Sequence[Example]) -> list[Encoded | BadRow]:
        if self._has_end:
            return self._prompt_completion(sides)
        return [BadRow("tokens.no_eos", "prompt", "a text") for _ in sides]

    def _text(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """Encode texts: every token is a target, the end of the text included."""
        texts = [turn.content for example in examples for turn in example.turns]
        if self._truncates:
            texts = [text[: self._max_bytes] for text in texts]
        documents = self._chat_tokenizer.encoder.documents(texts)
        return [
            _bad_row(ids) if isinstance(ids, BadMessage) else _encoded(Marked(ids, [1] * len(ids)))
            for ids in documents
        ]

    def _bytes_problem(self, text: str) -> BadRow | None:
        num_bytes = len(text.encode())
        if num_bytes <= self._max_bytes or self._truncates:
            return None
        # No token is longer than the longest one: so many bytes need not be tokenised to be too many.
        at_least = num_bytes * self._limit // self._max_bytes
        return BadRow("tokens.over_length", "row", f"at least {at_least} tokens, at most {self._limit}")

    def _within_limit(self, row: Encoded) -> Encoded | BadRow:
        if row.border:
            return pair_within_limit(row, limit=self._limit, truncates=self._truncates)
        # A text that is not cut continues in further windows.
        is_split = self._format is DatasetFormat.TEXT and not self._truncates
        limit = len(row.tokens) if is_split else self._limit
        return within_limit(row, limit=limit, truncates=self._truncates)


def _completed(prompt: list[int] | BadMessage, completion: list[int] | BadMessage) -> Encoded | BadRow:
    if isinstance(prompt, BadMessage):
        return _bad_row(prompt)
    if isinstance(completion, BadMessage):
        return _bad_row(completion)
    return _encoded(Marked(prompt + completion, [0] * len(prompt) + [1] * len(completion)))


def _encoded(marked: Marked) -> Encoded:
    return Encoded(np.array(marked.ids, np.int32), np.array(marked.mask, np.uint8))


def _bad_row(error: BadMessage) -> BadRow:
    return BadRow(error.rule, error.field, error.found)


def without_tail(rendering: Rendering, max_characters: int) -> Rendering:
    """Return the rendering without what is certainly cut away: it need not be tokenised."""
    if len(rendering.text) <= max_characters:
        return rendering
    answers = tuple(
        (start, min(end, max_characters)) for start, end in rendering.answers if start < max_characters
    )
    guarded = None if rendering.guarded is None else rendering.guarded[:max_characters]
    boundary = rendering.boundary
    kept = None if boundary is None or boundary >= max_characters else boundary
    text = rendering.text[:max_characters]
    return replace(rendering, text=text, answers=answers, guarded=guarded, boundary=kept)


def within_limit(row: Encoded, *, limit: int, truncates: bool) -> Encoded | BadRow:
    """Return the row as it fits the window. The first token is no target: nothing comes before it."""
    total = len(row.tokens)
    if total > limit and not truncates:
        return BadRow("tokens.over_length", "row", f"{total} tokens, at most {limit}")
    kept = Encoded(row.tokens[:limit], row.mask[:limit], is_cut=total > limit)
    if not kept.mask[1:].any():
        cut_away = f" of the first {limit} of {total}" if total > limit else f" of {total}"
        return BadRow("tokens.no_loss_token", "row", f"none{cut_away} tokens counts towards the loss")
    return kept


def pair_within_limit(row: Encoded, *, limit: int, truncates: bool) -> Encoded | BadRow:
    """Return both sides as they fit one window. Where they are cut, a side keeps half, or what the other leaves."""
    lengths = row.border, len(row.tokens) - row.border
    if sum(lengths) > limit and not truncates:
        both = f"{lengths[0]} tokens with the chosen and {lengths[1]} with the rejected answer"
        return BadRow("tokens.over_length", "row", f"{both}, at most {limit} together")
    half = limit // 2
    shares = max(half, limit - lengths[1]), max(limit - half, limit - lengths[0])
    chosen, rejected = (
        within_limit(side, limit=share, truncates=truncates)
        for side, share in zip(sides_of(row), shares, strict=True)
    )
    pair = _joined(chosen, rejected)
    if (
        isinstance(pair, Encoded)
        and pair.tokens[: pair.border].tolist() == pair.tokens[pair.border :].tolist()
    ):
        return BadRow("preference.equal", "row", f"the answers are the same within {limit} tokens")
    return pair


def sides_of(row: Encoded) -> tuple[Encoded, ...]:
    """Return the examples of a row: one, or the two of a preference row."""
    if not row.border:
        return (row,)
    return tuple(
        Encoded(row.tokens[side], row.mask[side]) for side in (slice(0, row.border), slice(row.border, None))
    )


def _joined(chosen: Encoded | BadRow, rejected: Encoded | BadRow) -> Encoded | BadRow:
    if isinstance(chosen, BadRow):
        return chosen
    if isinstance(rejected, BadRow):
        return rejected
    tokens, mask = (np.concatenate(arrays) for arrays in zip(*map(_arrays, (chosen, rejected)), strict=True))
    return Encoded(tokens, mask, border=len(chosen.tokens), is_cut=chosen.is_cut or rejected.is_cut)


def _arrays(row: Encoded) -> tuple[Tokens, Mask]:
    return row.tokens, row.mask


def weighted(row: Encoded, turns: tuple[Turn, ...]) -> Encoded | BadRow:
    """Return the row with a mask without the assistant turns of weight 0, which are its runs of ones in order."""
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


def require_template(template: str) -> None:
    if not template:
        raise FileRefused(
            "template.missing", "the base model has no chat template: use prompt and completion rows with it"
        )
