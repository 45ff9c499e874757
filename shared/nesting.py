"""The limit on nesting of JSON from outside, which does not depend on how far an interpreter can recurse."""

import json
import re
from typing import Any

MAX_NESTING = 32
"""Limit on levels of objects and lists; no message of ours has more than ten."""

# A token is a string, closed or not, or a bracket outside strings. No part of the pattern backtracks, so the cost of
# a hostile text grows only with its length.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class TooDeep(ValueError):
    """The text nests deeper than the rule allows."""


def require_shallow(text: str) -> None:
    """Raise TooDeep if the text nests too deep. It need not be JSON; the parser reports all other errors."""
    if text.count("[") + text.count("{") <= MAX_NESTING:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        match text[token.start()]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
        if depth > MAX_NESTING:
            raise TooDeep(f"nested more than {MAX_NESTING} levels deep")


def shallow_json(data: bytes, **options: Any) -> Any:
    """Parse UTF-8 JSON with json.loads. Raises ValueError, also if it nests deeper than the rule allows."""
    text = data.decode("utf-8-sig")
    require_shallow(text)
    return json.loads(text, **options)
