"""The verdict on a file as a whole, and what is listed of its rows."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from schemas.dataset import FileRole
from schemas.report import Cluster, Duplicate
from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline import counts as module
from services.ingest.pipeline.counts import FileCounts, refusal_of
from services.ingest.pipeline.duplicates import Kept, Match
from services.ingest.pipeline.rules import FIXES, HARD_RULES, BadRow, FileRefused
from services.ingest.pipeline.verdict import DatasetVerdict
from tests.unit.ingest.builders import chat, examine


def some_counts(role: FileRole = "training", *, good: int = 90, bad: int = 0, **changes: Any) -> FileCounts:
    fields = {"format": DatasetFormat.CHAT, "rows": good + bad, "kept": good} | changes
    counts = FileCounts(role, "0" * 64, **fields)
    for line in range(bad):
        counts.reject(BadRow("chat.role_order", "messages[0].role", "assistant").at(role, line + 1))
    return counts


def counts_of_dropped(**dropped: int) -> FileCounts:
    """Of 90 good rows, so many were dropped by each filter; each repeats one of three rows."""
    counts = some_counts()
    (row,) = examine(chat())
    for why, count in dropped.items():
        for number in range(count):
            counts.drop(replace(row, excerpt="Dear Sir"), why, f"line {number % 3} of the training file")  # type: ignore[arg-type]
    return counts


def code_of(counts: FileCounts, **policy: Any) -> str | None:
    refusal = refusal_of(counts, DatasetPolicy(**policy))
    return refusal and refusal.code


@pytest.mark.parametrize(
    ("counts", "policy", "code"),
    [
        (some_counts(), {}, None),
        (some_counts(good=0), {}, "empty"),
        (some_counts(good=0, bad=3, format=None), {}, "wrong_format"),
        (some_counts(good=90, bad=10), {}, None),
        (some_counts(good=89, bad=11), {}, "too_many_bad_rows"),
        (some_counts(good=89, bad=11), {"max_bad_ratio": 0.2}, None),
        (some_counts(good=99, bad=1), {"bad_rows": "reject_file"}, "bad_rows"),
        (some_counts("holdout", good=99, bad=1), {}, "bad_rows"),
        (some_counts(contaminated=1), {}, None),
        (some_counts(contaminated=1), {"contamination": "reject_file"}, "contaminated"),
        (some_counts(kept=0), {}, "empty"),
        (some_counts(dropped=Counter(near_duplicates=18)), {}, None),
        (counts_of_dropped(near_duplicates=19), {}, "too_many_dropped"),
        (counts_of_dropped(exact_duplicates=19), {}, "too_many_dropped"),
        (counts_of_dropped(contamination=19), {}, "too_many_dropped"),
        (counts_of_dropped(near_duplicates=15, contamination=15), {}, None),
        (counts_of_dropped(near_duplicates=19), {"max_dropped_ratio": 0.3}, None),
        (counts_of_dropped(near_duplicates=1), {"max_dropped_ratio": 0}, "too_many_dropped"),
    ],
)
def test_the_verdict_follows_from_counts_and_policy(
    counts: FileCounts, policy: dict[str, Any], code: str | None
) -> None:
    assert code_of(counts, **policy) == code


def test_the_refusal_says_how_many_of_how_many_which_rules_and_the_limit() -> None:
    refusal = refusal_of(some_counts(good=10, bad=30), DatasetPolicy())
    assert refusal is not None
    assert refusal.message == (
        "30 of 40 rows of the training file are bad (chat.role_order 30): 75.0%, at most 10.0% "
        "(policy.max_bad_ratio)"
    )


def test_a_filter_that_takes_much_says_what_it_took_and_what_the_rows_share() -> None:
    refusal = refusal_of(counts_of_dropped(near_duplicates=45, contamination=1), DatasetPolicy())
    assert refusal is not None
    assert refusal.message == (
        "45 of 90 rows of the training file are near duplicates of earlier rows (policy.near_duplicates): 50.0%, "
        "at most 20.0% (policy.max_dropped_ratio). Largest groups: 15 rows like line 0 of the training file, "
        "15 rows like line 1 of the training file, 15 rows like line 2 of the training file. "
        "Most frequent shared text, in 45 rows: 'Dear Sir'"
    )


@pytest.mark.parametrize("policy", [{}, {"bad_rows": "drop", "max_bad_ratio": 1.0}])
def test_one_row_that_breaks_a_hard_rule_refuses_the_file_and_is_named(policy: Any) -> None:
    counts = some_counts(bad=1)
    description = "behind 'A' 'b', expected '<think>' as where the answer is asked for"
    for line in (7, 9):
        problem = BadRow("template.generation_prompt", "messages[1].content", description)
        counts.reject(problem.at("training", line))
    refusal = refusal_of(counts, DatasetPolicy(**policy))
    assert refusal is not None
    assert refusal.code == "template.generation_prompt"
    assert refusal.message == (
        f"line 7 of the training file, messages[1].content: {description}; 2 of 91 rows: {FIXES['template.generation_prompt']}"
    )


def test_hard_rules_are_rules() -> None:
    assert FIXES.keys() >= HARD_RULES


def test_lists_are_capped_and_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LISTED", 2)
    counts = some_counts(bad=5)
    (row,) = examine(chat())
    for line in (7, 8, 9):
        counts.add_duplicate(replace(row, line=line), Match(Kept("training", 1), 0.95, is_exact=False))
    report = counts.report()
    assert (len(report.problems), report.rejected_rows, report.rejected_by_rule) == (
        2,
        5,
        {"chat.role_order": 5},
    )
    assert report.near_duplicates == 3
    assert report.clusters == (
        Cluster(
            kept_file="training",
            kept_line=1,
            duplicates=(Duplicate(line=7, similarity=0.95), Duplicate(line=8, similarity=0.95)),
        ),
    )


def test_a_repeated_holdout_row_counts_as_such_and_not_as_a_duplicate() -> None:
    (row,) = examine(chat())
    of_holdout = Match(Kept("holdout", 1), 1.0, is_exact=True)
    training, holdout = some_counts(), some_counts("holdout")
    for counts in (training, holdout):
        counts.add_duplicate(row, of_holdout)
    assert (training.of_holdout, training.exact) == (1, 0)
    assert (holdout.of_holdout, holdout.exact) == (0, 1)


def test_all_files_are_judged_and_the_training_file_is_named_first() -> None:
    verdict = DatasetVerdict(DatasetPolicy())
    with verdict.of("holdout", "0" * 64):
        raise FileRefused("not_jsonl", "the holdout file is gzip")
    with verdict.of("training", "1" * 64) as counts:
        counts.format = DatasetFormat.CHAT
    assert verdict.code == "empty"
    assert verdict.message == "the training file has no rows; the holdout file is gzip"


def test_findings_without_a_refusal_are_ready() -> None:
    assert (DatasetVerdict(DatasetPolicy()).code, DatasetVerdict(DatasetPolicy()).message) == ("ready", "")
