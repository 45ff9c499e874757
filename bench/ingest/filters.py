"""What ingest's filters drop and find: real sets beside the rules written down plainly, and made-up templated sets.

Of each real set a random tenth is the holdout. 300 of its rows are planted into the rest: as they are, wrapped
again, and with another answer of three sentences before their own. DIR holds `<name>.jsonl.gz` files of chat rows, or
of preference pairs, whose prompt and chosen answer are taken.

    python -m bench.ingest.filters --data DIR [--sets gsm8k-train:5000 t0-mix-55k:6000 …] [--templated]
"""

import argparse
import gzip
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.ingest import reference
from bench.ingest.reference import GRAM_WORDS
from tests.unit.ingest.screening import Screened, screen
from tests.unit.ingest.templated import Row, all_sets

PLANTED = 300
EVERYTHING: dict[str, Any] = {"max_dropped_ratio": 1.0}
CONTAMINATION_ALONE: dict[str, Any] = {
    "contamination": "keep",
    "exact_duplicates": "keep",
    "near_duplicates": "keep",
}
REASONING = "Let us go through what is asked, note each quantity, and only then decide on the answer. " * 3


def main(data: Path | None, sets: Sequence[str], *, templated: bool) -> None:
    for name, _, rows in (each.partition(":") for each in sets if data):
        assert data is not None, "sets without --data"
        _real(name, load(data / f"{name}.jsonl.gz", int(rows)))
    if templated:
        _templated()


def load(path: Path, count: int) -> list[Row]:
    """A random choice of the rows whose messages all have text."""
    with gzip.open(path, "rt") as lines:
        rows = [_as_chat(json.loads(line)) for line in lines]
    random.Random(1).shuffle(rows)
    return [row for row in rows[:count] if all(turn["content"].strip() for turn in row["messages"])]


def _as_chat(row: Row) -> Row:
    return {"messages": row["messages"] if "messages" in row else [*row["prompt"], *row["chosen"]]}


def _real(name: str, rows: list[Row]) -> None:
    holdout, training = rows[: len(rows) // 10], rows[len(rows) // 10 :]
    print(f"\n{name}: {len(training)} training rows, {len(holdout)} holdout rows", flush=True)
    started = time.monotonic()
    alone = screen(training, **EVERYTHING)
    seconds = time.monotonic() - started
    expected = lines_of(reference.repeated(training))
    strict = lines_of(reference.repeated(training, keeps_case=True))
    strictest = lines_of(reference.repeated(training, keeps_case=True, counts_once=True))
    reasons = {
        "case of system turn or answers": expected ^ strict,
        "equal rows counted once": strict ^ strictest,
    }
    _compare("repeated", expected, repeated_lines(alone), training, reasons)
    leaks = screen(training, holdout=holdout, **CONTAMINATION_ALONE)
    expected = lines_of(reference.contaminated(training, holdout))
    near = frozenset(
        each.line for kept, group in leaks.counts.clusters.items() if kept.file == "holdout" for each in group
    )
    short = frozenset(
        each.line
        for each in leaks.counts.overlaps
        if len(_asked(holdout[each.item - 1]).split()) < GRAM_WORDS
    )
    reasons = {
        "equal rows counted once": expected
        ^ lines_of(reference.contaminated(training, holdout, counts_once=True)),
        "nearly equal to a holdout row": near,
        "a question of under 13 words, whole": short,
    }
    _compare("contaminated", expected, leaks.contaminated_lines, training, reasons)
    verdict = screen(training, holdout=holdout).verdict
    print(f"  with the default policy: {verdict.code} {verdict.message[:400]}")
    _planted(training, holdout)
    print(
        f"  rows not fully compared: {alone.counts.not_fully_compared}; {len(training) / seconds:.0f} rows/s"
    )


def lines_of(indices: Iterable[int]) -> frozenset[int]:
    return frozenset(index + 1 for index in indices)


def repeated_lines(screened: Screened) -> frozenset[int]:
    return frozenset(each.line for group in screened.counts.clusters.values() for each in group)


def _asked(row: Row) -> str:
    return " ".join(turn["content"] for turn in row["messages"] if turn["role"] == "user")


def _compare(
    what: str,
    expected: frozenset[int],
    actual: frozenset[int],
    rows: Sequence[Row],
    reasons: dict[str, frozenset[int]],
) -> None:
    share = len(actual) / len(rows)
    print(
        f"  {what}: plainly {len(expected)}, pipeline {len(actual)} ({share:.1%}), both {len(expected & actual)}"
    )
    for side, lines in (
        ("plainly alone", expected - actual),
        ("pipeline alone", actual - expected),
    ):
        for line in sorted(lines):
            why = next((reason for reason, explained in reasons.items() if line in explained), "?")
            text = " | ".join(turn["content"][-40:] for turn in rows[line - 1]["messages"][:2])
            print(f"    {side}: line {line}, {why}: {text!r}")


def _planted(training: Sequence[Row], holdout: Sequence[Row]) -> None:
    copies = list(copies_of(holdout, random.Random(2)))
    screened = screen([*training, *(row for _, row in copies)], holdout=holdout, **CONTAMINATION_ALONE)
    lines = screened.contaminated_lines
    total = Counter(kind for kind, _ in copies)
    hits = Counter(kind for line, (kind, _) in enumerate(copies, len(training) + 1) if line in lines)
    shares = ", ".join(f"{kind} {hits[kind]} of {count}" for kind, count in sorted(total.items()))
    print(f"  planted copies found: {hits.total()} of {total.total()} ({shares})")


def copies_of(holdout: Sequence[Row], rng: random.Random) -> Iterable[tuple[str, Row]]:
    for row in rng.sample(holdout, min(PLANTED, len(holdout))):
        kind = rng.choice(("verbatim", "rewrapped", "new reasoning"))
        first, *between, last = (dict(turn) for turn in row["messages"])
        if kind == "rewrapped":
            first["content"] = "  " + first["content"].replace(". ", ".\n") + " \n"
        if kind == "new reasoning":
            last["content"] = REASONING + last["content"]
        yield kind, {"messages": [first, *between, last]}


def _templated() -> None:
    print(
        f"\n{'templated set, 500 rows, holdout of 100':64} dropped without holdout, with, copies found of 100"
    )
    for name, training, holdout in all_sets():
        alone, beside = screen(training), screen(training, holdout=holdout)
        copies = [row for _, row in copies_of(holdout, random.Random(2))]
        planted = screen([*training, *copies], holdout=holdout, **CONTAMINATION_ALONE).contaminated_lines
        num_found = sum(line > len(training) for line in planted)
        print(f"{name:64} {alone.dropped:7} {beside.dropped:7} {num_found:7}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--sets", nargs="*", default=["gsm8k-train:5000", "hh-harmless-pairs:2303", "t0-mix-55k:6000"]
    )
    parser.add_argument("--templated", action="store_true")
    asked = parser.parse_args()
    main(asked.data, asked.sets, templated=asked.templated)
