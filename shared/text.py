"""Text from outside: what Postgres and JSON take of it, and how much of it goes into a sentence."""

from typing import Any

MAX_DETAIL_CHARACTERS = 1000


def is_storable(text: str) -> bool:
    """Without U+0000, which Postgres does not take, and half surrogate pairs, which UTF-8 has not."""
    if "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def are_storable(value: Any) -> bool:
    """Whether every text in a JSON value is, names of fields too."""
    match value:
        case str():
            return is_storable(value)
        case dict():
            return all(is_storable(name) and are_storable(field) for name, field in value.items())
        case list():
            return all(map(are_storable, value))
    return True


def storable(detail: str) -> str:
    """The text with what cannot be stored replaced, and not endless."""
    text = detail[:MAX_DETAIL_CHARACTERS].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()
