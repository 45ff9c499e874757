"""What each kind of file asks of a model, worked out once for both sides, and the items that become of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from schemas.evaluation import BenchmarkKind
from schemas.gate import answer_budget
from services.evaluator.scoring.generation import Generated, Prompt, answers, render_answer, render_prompt
from services.evaluator.scoring.likelihood import Likelihood, Question, Report, likelihoods
from services.evaluator.scoring.metrics import metric_named
from services.evaluator.scoring.order import (
    AnyPart,
    BenchmarkPart,
    Failure,
    HoldoutPart,
    ItemScore,
    ScoringRefused,
)
from services.evaluator.scoring.rows import (
    BadRows,
    PromptRow,
    TaskRow,
    TextRow,
    reader_of,
)
from services.evaluator.scoring.scorer import Scorer
from shared.chat.conversation import BadMessage, question

Scored = Sequence[tuple[Likelihood, ...]]

OPEN_METRICS = frozenset({"contains", "regex"})
"""Metrics whose answers may come to what counts after many words."""


@dataclass(frozen=True)
class Prepared:
    """A part in tokens. `items` makes items of its questions' likelihoods and its prompts' answers."""

    num_rows: int
    items: Callable[[Scored, Sequence[Generated]], list[ItemScore]]
    questions: Sequence[Question] = ()
    prompts: Sequence[Prompt] = ()

    def score(
        self, scorer: Scorer, report: Report, given: Sequence[Generated] | None = None
    ) -> list[ItemScore]:
        """Score the side that is switched on. Reports endings and answers as they are done, and of how many.

        given: the answers, where an engine of serving gave them.
        """
        total = sum(len(each.endings) for each in self.questions) + (0 if given else len(self.prompts))
        scored = likelihoods(scorer, self.questions, lambda done, _: report(done, total))
        if given is None:
            given = answers(scorer, self.prompts, lambda done, _: report(done, total))
        return self.items(scored, given)


def read_rows(part: AnyPart) -> list[Any]:
    """Read the rows of a part. Raises ScoringRefused."""
    return _read(part, part.path)


def read_examples(part: BenchmarkPart) -> list[Any]:
    """Read the examples of a part that has a file of them. Raises ScoringRefused."""
    return [] if part.examples_path is None else _read(part, part.examples_path)


def prepare(scorer: Scorer, part: AnyPart, rows: list[Any]) -> Prepared:
    """Prepare a part for scoring. Raises ScoringRefused where a row has no room."""
    if isinstance(part, HoldoutPart):
        return prepare_holdout(scorer, part, rows)
    if not isinstance(part, BenchmarkPart):
        return prepare_safety(scorer, rows)
    if part.kind is BenchmarkKind.TEXT:
        return prepare_texts(scorer, rows)
    return prepare_choices(scorer, part, rows, read_examples(part))


def prepare_choices(
    scorer: Scorer, part: BenchmarkPart, rows: Sequence[Any], examples: Sequence[Any] = ()
) -> Prepared:
    # lm-eval takes a second to import, and most of the other parts do without.
    from services.evaluator.scoring.harness import ask_choices, choice_item

    asked = ask_choices(scorer, part.kind, rows, num_fewshot=part.num_fewshot, examples=examples)

    def items(scored: Scored, _: Sequence[Generated]) -> list[ItemScore]:
        return [choice_item(part.kind, *pair) for pair in zip(asked, scored, strict=True)]

    return Prepared(len(rows), items, questions=[each.question for each in asked])


def prepare_texts(scorer: Scorer, rows: Sequence[TextRow]) -> Prepared:
    """Prepare texts for next-token accuracy and likelihood. Each token is predicted once, in lm-eval's windows."""
    windows = [(row, window) for row in rows for window in _windows(scorer, row.text)]

    def items(scored: Scored, _: Sequence[Generated]) -> list[ItemScore]:
        parts_of: dict[str, list[Likelihood]] = {row.key: [] for row in rows}
        for (row, _window), (likelihood,) in zip(windows, scored, strict=True):
            parts_of[row.key].append(likelihood)
        return [_text_item(row, parts_of[row.key]) for row in rows]

    return Prepared(len(rows), items, questions=[window for _, window in windows])


def prepare_holdout(scorer: Scorer, part: HoldoutPart, rows: Sequence[TaskRow]) -> Prepared:
    """Prepare a holdout for the metric that the rule names, and no other; a judge needs answers for any metric."""
    if any(row.asked is None for row in rows):
        return prepare_documents(scorer, part, rows)
    asked = [(row, row.asked) for row in rows if row.asked is not None]
    expected = [render_answer(scorer, question, row.reference, key=row.key) for row, question in asked]
    if part.metric == "perplexity" and not part.is_judged:
        return Prepared(
            len(rows),
            lambda scored, _: [_reference_item(*pair) for pair in zip(rows, scored, strict=True)],
            questions=expected,
        )
    budget = _budget(scorer, part, expected)
    prompts = [render_prompt(scorer, question, key=row.key, max_new_tokens=budget) for row, question in asked]
    if part.metric == "perplexity":
        return Prepared(
            len(rows),
            lambda scored, given: [
                _reference_item(row, ends, answer)
                for row, ends, answer in zip(rows, scored, given, strict=True)
            ],
            questions=expected,
            prompts=prompts,
        )
    compare = metric_named(part.metric, part.pattern)

    def items(_: Scored, given: Sequence[Generated]) -> list[ItemScore]:
        return [
            _answered_item(row.key, answer, {"hits": compare(answer.text, row.reference)})
            for row, answer in zip(rows, given, strict=True)
        ]

    return Prepared(len(rows), items, prompts=prompts)


def prepare_documents(scorer: Scorer, part: HoldoutPart, rows: Sequence[TaskRow]) -> Prepared:
    """Prepare texts for perplexity, over the tokens that continued pre-training has a loss on: all but a text's
    first.

    Raises ScoringRefused where the rule wants answers, which texts have none of, or a row is no text.
    """
    answered = "a judge" if part.is_judged else f"metric {part.metric}"
    if part.is_judged or part.metric != "perplexity":
        message = (
            f"{part.name}: found texts, {answered} compares answers; expected metric perplexity, no judge"
        )
        raise ScoringRefused(Failure(code="malformed_rows", message=message))
    if other := next((row for row in rows if row.asked is not None), None):
        message = f"{part.name}: {other.key} is no text, expected what the other rows are"
        raise ScoringRefused(Failure(code="malformed_rows", message=message))
    windows = [(row, window) for row in rows for window in document_windows(scorer, row)]

    def items(scored: Scored, _: Sequence[Generated]) -> list[ItemScore]:
        parts_of: dict[str, list[Likelihood]] = {row.key: [] for row in rows}
        for (row, _window), (likelihood,) in zip(windows, scored, strict=True):
            parts_of[row.key].append(likelihood)
        return [_document_item(row.key, parts_of[row.key]) for row in rows]

    return Prepared(len(rows), items, questions=[window for _, window in windows])


def prepare_safety(scorer: Scorer, rows: Sequence[PromptRow]) -> Prepared:
    """Prepare prompts for answers alone: whether they refuse is for a classifier to say, outside of this process."""
    # A model without a chat template is asked as its users ask it.
    asked = [question(row.prompt) if scorer.chat.has_template else row.prompt for row in rows]
    prompts = [
        render_prompt(scorer, turns, key=row.key, max_new_tokens=scorer.max_new_tokens)
        for turns, row in zip(asked, rows, strict=True)
    ]

    def items(_: Scored, given: Sequence[Generated]) -> list[ItemScore]:
        return [_answered_item(row.key, answer, {}) for row, answer in zip(rows, given, strict=True)]

    return Prepared(len(rows), items, prompts=prompts)


def _budget(scorer: Scorer, part: HoldoutPart, expected: Sequence[Question]) -> int:
    """Return the tokens of an answer: what the rule names, or enough for the references, or all that is allowed."""
    if part.max_new_tokens is not None:
        return min(part.max_new_tokens, scorer.max_answer_tokens)
    if part.is_judged or part.metric in OPEN_METRICS:
        return scorer.max_answer_tokens
    lengths = [len(ending) for each in expected for ending in each.endings]
    return answer_budget(lengths, limit=scorer.max_answer_tokens)


def _read(part: AnyPart, path: str) -> list[Any]:
    try:
        return reader_of(part)(Path(path))
    except BadRows as error:
        raise ScoringRefused(Failure(code="malformed_rows", message=f"{part.name}: {error}")) from error


def _windows(scorer: Scorer, text: str) -> list[Question]:
    tokenizer = scorer.tokenizer
    start = next(token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if token is not None)
    return _rolling(scorer, start, tokenizer(text, add_special_tokens=False)["input_ids"])


def document_windows(scorer: Scorer, row: TaskRow) -> list[Question]:
    """Cut a text into windows, tokenised as for training, its end included. Raises ScoringRefused."""
    try:
        first, *predicted = scorer.chat.document(row.reference)
    except BadMessage as error:
        raise ScoringRefused(Failure(code="malformed_rows", message=f"{row.key}: {error}")) from error
    return _rolling(scorer, first, predicted)


def _rolling(scorer: Scorer, first: int, predicted: list[int]) -> list[Question]:
    pairs = get_rolling_token_windows(
        token_list=predicted, prefix_token=first, max_seq_len=scorer.max_tokens, context_len=1
    )
    return [_window(*make_disjoint_window(pair)) for pair in pairs]


def _window(context: list[int], predicted: list[int]) -> Question:
    return Question(context, (predicted,))


def _text_item(row: TextRow, parts: Sequence[Likelihood]) -> ItemScore:
    numbers = {
        "hits": float(sum(part.hits for part in parts)),
        "tokens": float(sum(part.tokens for part in parts)),
        "nats": sum(part.nats for part in parts),
        "bytes": float(len(row.text.encode())),
    }
    return ItemScore(key=row.key, numbers=numbers)


def _document_item(key: str, parts: Sequence[Likelihood]) -> ItemScore:
    numbers = {"tokens": float(sum(part.tokens for part in parts)), "nats": sum(part.nats for part in parts)}
    return ItemScore(key=key, numbers=numbers)


def _reference_item(row: TaskRow, ends: tuple[Likelihood, ...], answer: Generated | None = None) -> ItemScore:
    (expected,) = ends
    numbers = {"tokens": float(expected.tokens), "nats": expected.nats}
    return (
        ItemScore(key=row.key, numbers=numbers)
        if answer is None
        else _answered_item(row.key, answer, numbers)
    )


def _answered_item(key: str, answer: Generated, numbers: dict[str, float]) -> ItemScore:
    return ItemScore(key=key, answer=answer.text, is_cut=answer.is_cut, numbers=numbers)
