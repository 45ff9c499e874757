"""Checks of text from outside: what Postgres and JSON can store of it, and how much of it goes into a message."""

from typing import Any

MAX_DETAIL_CHARACTERS = 1000


def is_storable(text: str) -> bool:
    """Return whether text is free of U+0000, which Postgres refuses, and unpaired surrogates, which UTF-8 lacks."""
    if "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def are_storable(value: Any) -> bool:
    """Return whether every text in a JSON value is storable, names of fields too."""
    match value:
        case str():
            return is_storable(value)
        case dict():
            return all(is_storable(name) and are_storable(field) for name, field in value.items())
        case list():
            return all(map(are_storable, value))
    return True


def storable(detail: str) -> str:
    """Return the text, cut to MAX_DETAIL_CHARACTERS, with characters that cannot be stored replaced."""
    text = detail[:MAX_DETAIL_CHARACTERS].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()
