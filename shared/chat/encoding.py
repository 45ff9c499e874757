"""Encoding of texts as token ids in which a special token occurs only where the template wrote one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.chat.conversation import BadMessage
from shared.chat.rendering import Rendering
from shared.chat.special import FIRST_ALIAS, MAX_ALIASES, SpecialTokens

SHOWN_ENDS = 5


@dataclass(frozen=True, slots=True)
class Marked:
    """Token ids and a mask of equal length that is 1 where the token is part of an answer."""

    ids: list[int]
    mask: list[int]


class EndTokens:
    """The tokens at which a served model stops; an answer that ends with another token does not teach it to stop."""

    def __init__(self, tokenizer: Any, ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = ids

    def problem(self, marked: Marked, field: str) -> BadMessage | None:
        """Return a problem if the last target token of the row is no end token, else None."""
        backwards = zip(reversed(marked.ids), reversed(marked.mask), strict=True)
        targets = (token for token, is_target in backwards if is_target)
        # White space behind the end-of-turn token is the template's.
        last = next((token for token in targets if self._tokenizer.decode([token]).strip()), None)
        if last is None or last in self._ids:
            return None
        shown, *ends = self._tokenizer.convert_ids_to_tokens([last, *sorted(self._ids)[:SHOWN_ENDS]])
        expected = " or ".join(map(repr, ends)) or "an end token, of which the base model names none"
        return BadMessage(
            "template.end_of_turn", field, f"the answer ends with {shown!r}, expected {expected}"
        )


class TokenEncoder:
    """An encoder on one of transformers' fast tokenizers, which reports texts that it cannot keep apart."""

    def __init__(self, tokenizer: Any, special: SpecialTokens) -> None:
        self._tokenizer = tokenizer
        self._special = special
        unknown = tokenizer.unk_token_id
        ids = tokenizer.convert_tokens_to_ids(special.texts)
        # The tokenizer itself gives the unknown token for a text that it has no token for.
        self._special_ids = frozenset(ids) - {unknown, None}
        self._aliased: _AliasedTokenizer | None = None

    def conversations(self, renderings: Sequence[Rendering]) -> list[Marked | BadMessage]:
        """Encode renderings; return one result for each, in order."""
        plain = [rendering.text for rendering in renderings if rendering.guarded is None]
        encodings = iter(self._encodings(plain))
        return [
            self._checked(rendering, next(encodings))
            if rendering.guarded is None
            else self._apart(rendering, rendering.guarded)
            for rendering in renderings
        ]

    def openings(self, prompts: Sequence[str]) -> list[list[int] | BadMessage]:
        """Encode plain prompts, in which no text is special, with the tokenizer's start and without its end."""
        encoded = self._texts(prompts, is_start=True)
        allowed = self._tokenizer.num_special_tokens_to_add()
        return [
            _unsplit("prompt")
            if self._num_special(ids) > allowed
            else ids[:-1]
            if ids[-1:] == [self._tokenizer.eos_token_id]
            else ids
            for ids in encoded
        ]

    def completions(self, texts: Sequence[str]) -> list[list[int] | BadMessage]:
        """Encode plain texts, in which no text is special, each followed by the end of text if there is one."""
        end = [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
        encoded = self._texts(texts, is_start=False)
        return [_unsplit("completion") if self._num_special(ids) else ids + end for ids in encoded]

    def documents(self, texts: Sequence[str]) -> list[list[int] | BadMessage]:
        """Encode plain texts, in which no text is special, each between the tokenizer's start and the end of text."""
        end = [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
        return [
            _unsplit("text") if isinstance(ids, BadMessage) else ids + end for ids in self.openings(texts)
        ]

    def _texts(self, texts: Sequence[str], *, is_start: bool) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(
            list(texts), add_special_tokens=is_start, split_special_tokens=True, verbose=False
        )["input_ids"]
        return ids

    def _encodings(self, texts: list[str]) -> Sequence[Any]:
        if not texts:
            return []
        encodings: Sequence[Any] = self._tokenizer(texts, add_special_tokens=False, verbose=False).encodings
        return encodings

    def _checked(self, rendering: Rendering, encoding: Any) -> Marked | BadMessage:
        """Refuse more special tokens than are written: a normalising tokenizer may find one in other text."""
        written = sum(1 for _ in self._special.pattern.finditer(rendering.text))
        if self._num_special(encoding.ids) > written:
            return _unsplit("messages")
        return _marked(rendering, encoding.ids, encoding)

    def _apart(self, rendering: Rendering, guarded: str) -> Marked | BadMessage:
        """Encode the template's special tokens by their aliases, and the row's own text as text.

        The result is compared with the ordinary encoding on a text in which only the template's are left.
        """
        if len(self._special.texts) > MAX_ALIASES:
            return _unsplit("messages")
        if self._aliased is None:
            self._aliased = _AliasedTokenizer(self._tokenizer, self._special)
        (ordinary,) = self._encodings([guarded])
        if self._aliased.encode(guarded, guarded)[0] != ordinary.ids:
            return _unsplit("messages")
        ids, encoding = self._aliased.encode(rendering.text, guarded)
        if self._num_special(ids) != self._num_special(ordinary.ids):
            return _unsplit("messages")
        return _marked(rendering, ids, encoding)

    def _num_special(self, ids: Sequence[int]) -> int:
        return sum(1 for token in ids if token in self._special_ids)


class _AliasedTokenizer:
    """A copy of a tokenizer that splits special tokens and has an equally long alias for each of them."""

    def __init__(self, tokenizer: Any, special: SpecialTokens) -> None:
        from tokenizers import AddedToken, Tokenizer

        self._pattern = special.pattern
        self._aliases = {
            text: chr(FIRST_ALIAS + index) * len(text) for index, text in enumerate(special.texts)
        }
        added = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._backend.add_tokens(
            [
                AddedToken(
                    alias,
                    single_word=added[text].single_word,
                    lstrip=added[text].lstrip,
                    rstrip=added[text].rstrip,
                    normalized=added[text].normalized,
                    special=False,
                )
                for text, alias in self._aliases.items()
                if text in added
            ]
        )
        self._ids = {
            self._backend.token_to_id(alias): tokenizer.convert_tokens_to_ids(text)
            for text, alias in self._aliases.items()
        }

    def encode(self, text: str, guarded: str) -> tuple[list[int], Any]:
        """Return ids, and the encoding for its offsets. `guarded` shows which special texts of `text` are tokens."""
        pieces, end = [], 0
        for match in self._pattern.finditer(guarded):
            pieces += [text[end : match.start()], self._aliases[match[0]]]
            end = match.end()
        encoding = self._backend.encode("".join([*pieces, text[end:]]), add_special_tokens=False)
        return [self._ids.get(token, token) for token in encoding.ids], encoding


def _marked(rendering: Rendering, ids: list[int], encoding: Any) -> Marked | BadMessage:
    if rendering.boundary is not None and (problem := _joined_problem(rendering, encoding)):
        return problem
    return Marked(ids, answer_mask(encoding, rendering.answers))


def _joined_problem(rendering: Rendering, encoding: Any) -> BadMessage | None:
    """Return a problem if a token spans the boundary: the prompt for the answer ends with other tokens there."""
    assert rendering.boundary is not None, "asked where there is a boundary"
    token = encoding.char_to_token(rendering.boundary)
    start, end = (0, 0) if token is None else encoding.token_to_chars(token)
    if token is None or start >= rendering.boundary:
        return None
    joined, known = rendering.text[start:end], rendering.text[start : rendering.boundary]
    return BadMessage(
        "template.generation_prompt",
        "messages",
        f"one token {joined!r}, expected it to end with {known!r} as where the answer is asked for",
    )


def answer_mask(encoding: Any, answers: Sequence[tuple[int, int]]) -> list[int]:
    """Return a mask that is 1 for each token that holds a character of an answer.

    `answers` are (start, end) in characters of the encoded text.
    """
    mask = [0] * len(encoding.ids)
    for start, end in answers:
        first = _first_token(encoding, range(start, end))
        last = _first_token(encoding, range(end - 1, start - 1, -1))
        if first is None or last is None:
            continue
        last = _last_of_character(encoding, last)
        mask[first : last + 1] = [1] * (last + 1 - first)
    return mask


def _first_token(encoding: Any, positions: range) -> int | None:
    """Return the token of the first position that has one, as a tokenizer may leave characters out."""
    return next(
        (token for position in positions if (token := encoding.char_to_token(position)) is not None), None
    )


def _last_of_character(encoding: Any, token: int) -> int:
    """Return the last of the tokens that represent bytes of the same character."""
    start = encoding.token_to_chars(token)[0]
    while token + 1 < len(encoding.ids) and encoding.token_to_chars(token + 1)[0] == start:
        token += 1
    return token


def _unsplit(field: str) -> BadMessage:
    return BadMessage("text.special_token", field, "the tokenizer makes a special token of the text")
