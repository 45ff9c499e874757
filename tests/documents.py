"""The repository's documents, and the blocks of code that they print."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, *languages: str) -> list[str]:
    """Texts of the page's blocks in these languages, in their order; an output's language is empty."""
    return [text for language, text in FENCE.findall((ROOT / page).read_text()) if language in languages]
