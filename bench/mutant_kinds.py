"""What kind of change a mutant is that no unit test noticed, by its difference alone."""

import re
from collections.abc import Sequence

TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
COMPARISON = re.compile(r"(?<![-<>=])[<>]=?(?![<>=])")


def kind(change: Sequence[str]) -> str:
    """Return `words` where a sentence for people changed, `limit` where equal sides alone show it, else `open`."""
    before, after = (" ".join(line[1:] for line in change if line[0] == sign) for sign in "-+")
    if TEXT.sub("''", before) == TEXT.sub("''", after):
        texts = zip(TEXT.findall(before), TEXT.findall(after), strict=True)
        return "words" if all(" " in old for old, new in texts if old != new) else "open"
    return "limit" if COMPARISON.sub("", before) == COMPARISON.sub("", after) else "open"
