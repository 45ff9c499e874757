"""Datasets for models as they are released: templates that mark nothing, and those that cannot be trained with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.layout import TRAINING_TEMPLATE
from tests.integration.test_ingest_pipeline import WORDS, Bench, rows
from tests.tiny_model import CHAT_TEMPLATE

RELEASED = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def change_template(bench: Bench, change: Callable[[str], str]) -> None:
    (bench.tokenizer / "chat_template.jinja").write_text(change(CHAT_TEMPLATE))


async def test_a_template_that_refuses_every_row_says_why(bench: Bench) -> None:
    change_template(bench, lambda _: "{{ raise_exception('roles must alternate') }}")
    outcome = await bench.run(rows(3))
    assert outcome.code == "too_many_bad_rows"
    assert {each.found for each in outcome.file("training").problems} == {"roles must alternate"}


async def test_a_template_without_marks_makes_the_same_parts(bench: Bench) -> None:
    marked = await bench.run(rows(3))
    change_template(bench, lambda _: RELEASED)
    derived = await bench.run(rows(3))
    assert (derived.code, marked.code) == ("ready", "ready")
    parts = [
        {name for name in outcome.digests() if name.startswith("parts/")} for outcome in (marked, derived)
    ]
    assert parts[0] == parts[1]
    assert parts[0]


async def test_a_model_without_a_template_takes_prompt_and_completion_alone(bench: Bench) -> None:
    (bench.tokenizer / "chat_template.jinja").unlink()
    pairs = [{"prompt": f"What is {word}?", "completion": f"It is {word}."} for word in WORDS]
    outcome = await bench.run(pairs)
    assert outcome.code == "ready"
    outcome = await bench.run(rows(3))
    assert outcome.code == "template.missing"
    outcome = await bench.run(pairs, holdout=rows(3))
    assert outcome.code == "bad_rows"
    assert {each.rule for each in outcome.file("holdout").problems} == {"template.missing"}


async def test_a_training_template_marks_the_texts_of_the_served_one(bench: Bench) -> None:
    marked = await bench.run(rows(3))
    change_template(bench, lambda _: RELEASED)
    (bench.tokenizer / TRAINING_TEMPLATE).write_text(CHAT_TEMPLATE)
    outcome = await bench.run(rows(3))
    assert outcome.code == "ready"
    assert outcome.examples() == marked.examples()


async def test_a_training_template_of_another_text_makes_bad_rows(bench: Bench) -> None:
    other = CHAT_TEMPLATE.replace("{{ message['content']", "{{ ' ' + message['content']")
    (bench.tokenizer / TRAINING_TEMPLATE).write_text(other)
    outcome = await bench.run(rows(3), holdout=rows(3, seed=2))
    assert outcome.code == "too_many_bad_rows"
    assert {each.rule for each in outcome.file("training").problems} == {"template.training"}
    assert {each.rule for each in outcome.file("holdout").problems} == {"template.training"}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            lambda text: text.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}"),
            "template.generation_prompt",
            "line 1 of the training file, messages[1].content: behind ",
        ),
        (
            lambda text: text.replace(
                "'<|im_end|>' }}{% endgeneration %}", "'' }}{% endgeneration %}<|im_end|>"
            ),
            "template.end_of_turn",
            "line 1 of the training file, messages[1].content: the answer ends with ",
        ),
    ],
)
async def test_a_dataset_that_teaches_what_is_never_asked_or_no_end_is_refused(
    bench: Bench, change: Callable[[str], str], code: str, message: str
) -> None:
    change_template(bench, change)
    outcome = await bench.run(rows(3))
    assert outcome.code == code
    assert outcome.answer.message.startswith(message)
    assert "; 3 of 3 rows: " in outcome.answer.message
