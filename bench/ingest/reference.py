"""The filters' rules, written down plainly and slowly, over sets of strings: what the pipeline is compared with.

Exact duplicate: equal system turns, prompt and answers after `plain`. Near duplicate: equal system turns and answers,
and prompts of which the character 5-grams that are no boilerplate are alike (Jaccard) by `SIMILARITY` or more, if at
least `MIN_SHINGLES` of each are left. Contaminated: a row that holds half or more of a holdout prompt's 13-grams that
are no boilerplate; of an item without such grams: the same prompt and answers. Boilerplate: a gram of more than
max(10, 1 %) of the file's rows. Case does not count.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SIMILARITY = 0.9
SHARE = 0.5
MIN_SHINGLES = 20
SHINGLE_CHARACTERS = 5
GRAM_WORDS = 13

Row = dict[str, Any]


@dataclass(frozen=True)
class Plain:
    system: str
    prompt: str
    answers: str


def plain(row: Row, *, keeps_case: bool = False) -> Plain:
    def text_of(*roles: str) -> str:
        text = "\n".join(turn["content"] for turn in row["messages"] if turn["role"] in roles)
        return _folded(text if keeps_case else text.lower())

    return Plain(text_of("system"), text_of("user", "tool"), text_of("assistant"))


def _folded(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def repeated(rows: Sequence[Row], *, keeps_case: bool = False, counts_once: bool = False) -> dict[int, int]:
    """Each row that repeats an earlier row which stays, by place: the place of that row.

    keeps_case: of system turns and answers; counts_once: equal rows are one row where boilerplate is counted.
    The pipeline does both.
    """
    texts = [plain(row, keeps_case=keeps_case) for row in rows]
    grams = [shingles(text.prompt.lower()) for text in texts]
    counted = list(dict(zip(texts, grams, strict=True)).values()) if counts_once else grams
    own = without(grams, frequent(counted))
    first: dict[Plain, int] = {}
    holders: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    repeats: dict[int, int] = {}
    for index, text in enumerate(texts):
        if text in first:
            repeats[index] = first[text]
            continue
        first[text] = index
        if len(own[index]) < MIN_SHINGLES:
            continue
        keys = [(text.system, text.answers, gram) for gram in own[index]]
        shared = Counter(other for key in keys for other in holders.get(key, ()))
        alike = [
            other for other, count in shared.items() if _jaccard(count, own[index], own[other]) >= SIMILARITY
        ]
        if alike:
            repeats[index] = min(alike)
            continue
        for key in keys:
            holders[key].append(index)
    return repeats


def _jaccard(shared: int, left: Collection[str], right: Collection[str]) -> float:
    return shared / (len(left) + len(right) - shared)


def contaminated(rows: Sequence[Row], holdout: Sequence[Row], *, counts_once: bool = False) -> dict[int, int]:
    """Each row that holds a holdout item, by place: the place of the item."""
    texts, items = [plain(row) for row in rows], [plain(row) for row in holdout]
    grams = [word_grams(f"{text.prompt}\n{text.answers}") for text in texts]
    counted = list(dict(zip(texts, grams, strict=True)).values()) if counts_once else grams
    boilerplate = frequent(counted) | frequent(
        [word_grams(f"{item.prompt}\n{item.answers}") for item in items]
    )
    own = without([word_grams(item.prompt) for item in items], boilerplate)
    items_with: dict[Hashable, list[int]] = defaultdict(list)
    for index, item_grams in enumerate(own):
        for gram in item_grams:
            items_with[gram].append(index)
    wholes = {(item.prompt, item.answers): index for index, item in enumerate(items) if not own[index]}
    leaks = {}
    for index, row_grams in enumerate(grams):
        held = Counter(item for gram in row_grams for item in items_with.get(gram, ()))
        hits = [item for item, count in held.items() if count >= SHARE * len(own[item])]
        whole = wholes.get((texts[index].prompt, texts[index].answers))
        if hits or whole is not None:
            leaks[index] = min(hits) if hits else int(whole or 0)
    return leaks


def shingles(text: str) -> set[str]:
    return {
        text[start : start + SHINGLE_CHARACTERS]
        for start in range(max(1, len(text) - SHINGLE_CHARACTERS + 1))
    }


def word_grams(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[start : start + GRAM_WORDS]) for start in range(len(words) - GRAM_WORDS + 1)}


def frequent(rows: Sequence[Iterable[Hashable]]) -> set[Any]:
    counts = Counter(gram for row in rows for gram in row)
    limit = max(10, len(rows) // 100)
    return {gram for gram, count in counts.items() if count > limit}


def without(rows: Iterable[set[Any]], boilerplate: set[Any]) -> list[set[Any]]:
    return [row - boilerplate for row in rows]
