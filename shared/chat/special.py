"""Separation of special tokens in a row's own text from those that the template writes.

Text of a row that looks like a special token is replaced by private-use characters of the same length before the
template renders it. Places in the rendered text stay the same, and any text in it that looks like a special token is
the template's.
"""

import re
from typing import Any

FIRST_FILLER = 0xF0000
"""First filler. Planes 15 and 16 are for private use: one filler per literal, one alias per special token."""
FIRST_ALIAS = 0x100000
MAX_LITERALS = MAX_ALIASES = 0xFFFE
"""Number of characters in a plane; the last two code points of each are none."""
FILLERS = re.compile("([\U000f0000-\U000ffffd])\\1*")
PRIVATE = re.compile("[\U000f0000-\U0010ffff]")


class NotSeparable(ValueError):
    """The row's text cannot be kept apart from the template's."""


class SpecialTokens:
    """The special tokens of a tokenizer, identified by their texts."""

    def __init__(self, tokenizer: Any) -> None:
        added = [token for token in tokenizer.added_tokens_decoder.values() if token.special]
        texts = {token.content for token in added} | set(tokenizer.all_special_tokens)
        self.texts = sorted(texts - {""})
        longest_first = sorted(self.texts, key=lambda text: (-len(text), text))
        # A pattern of nothing would match everywhere; this one matches nowhere.
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._beginnings = {text[:size] for text in self.texts for size in range(1, len(text))}
        self._ends = {text[size:] for text in self.texts for size in range(1, len(text))}
        self._longest = max(map(len, self.texts), default=0)

    def guarded_ends(self, text: str) -> tuple[int, int]:
        """Return how many characters at either end could form a special token with the text beside them."""
        sizes = range(min(self._longest - 1, len(text)), 0, -1)
        head = next((size for size in sizes if text[:size] in self._ends), 0)
        tail = next((size for size in sizes if text[-size:] in self._beginnings), 0)
        return head, min(tail, len(text) - head)


class Guard:
    """Replaces texts that look like special tokens in the strings of one row, and restores them."""

    def __init__(self, special: SpecialTokens) -> None:
        self._special = special
        self._literals: dict[str, str] = {}

    @property
    def found_any(self) -> bool:
        return bool(self._literals)

    def __call__(self, value: Any) -> Any:
        """Return the value with every string in it guarded, keys too. Raises NotSeparable for too many literals."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self(key): self(child) for key, child in value.items()}
        if isinstance(value, list):
            return [self(child) for child in value]
        return value

    def restore(self, rendered: str) -> str:
        """Put the original texts back. Raises NotSeparable if the template took a filler apart."""
        literals = {filler: literal for literal, filler in self._literals.items()}

        def literal(match: re.Match[str]) -> str:
            text = literals.get(match[1], "")
            if not text or len(match[0]) % len(text):
                raise NotSeparable("the template takes it apart")
            return text * (len(match[0]) // len(text))

        return FILLERS.sub(literal, rendered)

    def _text(self, text: str) -> str:
        guarded = self._special.pattern.sub(lambda match: self._filler(match[0]), text)
        bare = guarded.strip()
        head, tail = self._special.guarded_ends(bare)
        if not head and not tail:
            return guarded
        start = len(guarded) - len(guarded.lstrip())
        end = start + len(bare)
        middle = guarded[start + head : end - tail]
        first, last = guarded[start : start + head], guarded[end - tail : end]
        return f"{guarded[:start]}{self._filler(first)}{middle}{self._filler(last)}{guarded[end:]}"

    def _filler(self, literal: str) -> str:
        if not literal:
            return ""
        if literal not in self._literals:
            if len(self._literals) == MAX_LITERALS:
                raise NotSeparable(f"more than {MAX_LITERALS} kinds of it in one row")
            self._literals[literal] = chr(FIRST_FILLER + len(self._literals))
        return self._literals[literal] * len(literal)
