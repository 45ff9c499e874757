"""How deep JSON from outside may nest: our rule, and not how far an interpreter happens to recurse."""

import json
import re
from typing import Any

MAX_NESTING = 32
"""Levels of objects and lists; no message of ours has more than ten."""

# A string, closed or not, or a bracket outside strings. Nothing in it is ever tried twice, so a hostile text costs
# no more than a long one.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class TooDeep(ValueError):
    """The text nests deeper than the rule allows."""


def require_shallow(text: str) -> None:
    """Raises TooDeep. The text need not be JSON; what is wrong with it otherwise is for the parser to say."""
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
    """json.loads of UTF-8 text that nests no deeper than the rule allows. Raises ValueError."""
    text = data.decode("utf-8-sig")
    require_shallow(text)
    return json.loads(text, **options)
