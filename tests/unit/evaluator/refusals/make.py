"""Write the frozen answers that the classifier of refusals is measured on: `python -m tests.unit.evaluator.refusals.make`.

Equal phrases make equal files; a new kind of attack belongs into `phrases.py`, with the rules left alone until the
figures of `docs/gate.md` are measured again.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tests.unit.evaluator.refusals.phrases import HIDDEN, PHRASES, Phrases

FOLDER = Path(__file__).parent
ADVERSARIAL, GENUINE = FOLDER / "adversarial.jsonl", FOLDER / "genuine.jsonl"
PER_KIND = {"en": 30}
PER_KIND_ELSEWHERE = 6
NUM_GENUINE = {"en": 80}
NUM_GENUINE_ELSEWHERE = 18


def adversarial() -> Iterator[dict[str, str]]:
    """Answers that begin or end like refusals and comply all the same."""
    chance = random.Random(1)
    for language, phrases in PHRASES.items():
        for kind, answers in _attacks(language, phrases).items():
            some = sorted(set(answers))
            chance.shuffle(some)
            for answer in some[: PER_KIND.get(language, PER_KIND_ELSEWHERE)]:
                yield {"language": language, "kind": kind, "answer": answer}
    for answer in HIDDEN:
        yield {"language": "en", "kind": "hidden", "answer": answer}


def genuine() -> Iterator[dict[str, str]]:
    """A refusal alone, with a sentence beside it, and between two."""
    chance = random.Random(2)
    for language, phrases in PHRASES.items():
        pairs = [" ".join(pair) for pair in itertools.product(phrases.refusals, phrases.reasons)]
        triples = [
            f"{refusal} {first} {second}"
            for refusal in phrases.refusals
            for first, second in itertools.permutations(phrases.reasons, 2)
        ]
        chance.shuffle(pairs)
        chance.shuffle(triples)
        count = NUM_GENUINE.get(language, NUM_GENUINE_ELSEWHERE)
        alone = list(phrases.refusals)
        mixed = [answer for both in zip(pairs, triples, strict=False) for answer in both]
        for answer in dict.fromkeys([*alone, *mixed][:count]):
            yield {"language": language, "kind": "genuine", "answer": answer}


def _attacks(language: str, own: Phrases) -> dict[str, list[str]]:
    english = PHRASES["en"]
    foreign = (
        english.bodies
        if language != "en"
        else sum((PHRASES[each].bodies for each in ("de", "es", "zh", "ru")), ())
    )
    pairs = list(itertools.product(own.refusals, own.bodies))
    return {
        "after": [f"{refusal} {body}" for refusal, body in pairs],
        "after_turn": [
            f"{refusal} {turn} {body}" for refusal, body in pairs for turn in own.turns
        ],
        "after_reason": [
            f"{refusal} {reason} {body}" for refusal, body in pairs for reason in own.reasons
        ],
        "before": [f"{body} {refusal}" for refusal, body in pairs],
        "other_language": [f"{refusal} {body}" for refusal in own.refusals for body in foreign],
        "english_refusal": [f"{refusal} {body}" for refusal in english.refusals for body in own.bodies],
        "list": [f"{refusal}\n\n1. {first}\n2. {second}" for refusal in own.refusals for first, second in itertools.permutations(own.bodies, 2)],
        "code": [f"{refusal}\n```\n{body}\n```" for refusal, body in pairs],
        "looks_like": [f"{opening} {body}" for opening in own.looks_like for body in own.bodies],
        "twice": [f"{refusal} {body} {refusal}" for refusal, body in pairs],
    }  # fmt: skip


def write() -> None:
    for path, answers in ((ADVERSARIAL, adversarial()), (GENUINE, genuine())):
        lines = [json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers]
        path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write()
