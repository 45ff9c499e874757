"""Reference answers that are longer than the gate lets a model answer."""

import json
from pathlib import Path

from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline.answers import count_long_answers

CHAT, PAIRS = DatasetFormat.CHAT, DatasetFormat.PROMPT_COMPLETION
BUDGET = 8


class Words:
    """A token for each word; the models' own tokenizers are used by the pipeline's tests."""

    def __call__(self, texts: list[str], *, add_special_tokens: bool, verbose: bool) -> dict:
        assert not add_special_tokens
        return {"input_ids": [list(range(len(text.split()))) for text in texts]}


def answered(answer: str) -> dict:
    return {
        "messages": [{"role": "user", "content": "alpha " * 50}, {"role": "assistant", "content": answer}]
    }


def count(tmp_path: Path, rows: list, expected: DatasetFormat = CHAT) -> int:
    path = tmp_path / "holdout.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return count_long_answers(
        path, expected=expected, policy=DatasetPolicy(), tokenizer=Words(), budget=BUDGET
    )


def words(number: int) -> str:
    return " ".join(["alpha"] * number)


def test_answers_count_and_questions_do_not(tmp_path):
    rows = [answered(words(length)) for length in (1, BUDGET, BUDGET + 1, 3 * BUDGET)]
    assert count(tmp_path, rows) == 2


def test_completions_are_answers_too(tmp_path):
    rows = [{"prompt": "alpha", "completion": words(length)} for length in (2, 20, 30)]
    assert count(tmp_path, rows, PAIRS) == 2


def test_rows_that_the_gate_will_not_ask_are_not_counted(tmp_path):
    long = words(50)
    rows = ["{", "", answered(""), {"prompt": "alpha", "completion": long}, answered(long)]
    assert count(tmp_path, rows) == 1


def test_many_rows_are_counted_in_batches(tmp_path):
    rows = [answered(words(5 + 5 * (number % 2))) for number in range(1000)]
    assert count(tmp_path, rows) == 500
