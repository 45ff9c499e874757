"""Masks and limits on token ids, and rows through tokenizers of each kind."""

from typing import Any

import numpy as np
import pytest

from schemas.specification import DatasetFormat
from services.ingest.pipeline.formats import Turn
from services.ingest.pipeline.rules import BadRow, FileRefused
from services.ingest.pipeline.tokens import (
    Checker,
    Encoded,
    Encoder,
    require_marker,
    weighted,
    within_limit,
    without_tail,
)
from shared.chat.rendering import Rendering
from tests.unit.ingest.builders import assistant, calls, chat, parse, user
from tests.unit.shared.chat.conversations import call, tool_row
from tests.unit.shared.chat.tokenizers import tokenizer_of

PROMPT = DatasetFormat.PROMPT_COMPLETION


def row(mask: str) -> Encoded:
    return Encoded(np.arange(len(mask), dtype=np.int32), np.array([int(bit) for bit in mask], np.uint8))


def shown(encoded: Encoded | BadRow) -> str:
    assert isinstance(encoded, Encoded), encoded
    assert len(encoded.tokens) == len(encoded.mask)
    return "".join(map(str, encoded.mask))


def answers(*weights: int) -> tuple[Turn, ...]:
    return tuple(
        turn
        for weight in weights
        for turn in (Turn("user", "q", ""), Turn("assistant", "a", "", is_trained=weight == 1))
    )


@pytest.mark.parametrize("mask", ["0011", "01"])
def test_a_row_that_fits_is_unchanged(mask: str) -> None:
    assert shown(within_limit(row(mask), limit=4, truncates=False)) == mask


def test_a_longer_row_is_bad_or_cut_at_the_end_as_the_policy_says() -> None:
    problem = within_limit(row("00111"), limit=4, truncates=False)
    assert isinstance(problem, BadRow)
    assert (problem.rule, problem.found) == ("tokens.over_length", "5 tokens, at most 4")
    assert shown(within_limit(row("00111"), limit=4, truncates=True)) == "0011"


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("00001", "none of the first 4 of 5 tokens counts towards the loss"),
        ("000", "none of 3 tokens counts towards the loss"),
        ("100", "none of 3 tokens counts towards the loss"),
    ],
)
def test_a_row_without_a_token_to_learn_is_listed(mask: str, found: str) -> None:
    problem = within_limit(row(mask), limit=4, truncates=True)
    assert isinstance(problem, BadRow)
    assert (problem.rule, problem.found) == ("tokens.no_loss_token", found)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((1, 1), "0110011"), ((0, 1), "0000011"), ((1, 0), "0110000"), ((0, 0), "0000000")],
)
def test_an_answer_of_weight_0_is_no_target(weights: tuple[int, int], expected: str) -> None:
    assert shown(weighted(row("0110011"), answers(*weights))) == expected


def test_a_mask_whose_runs_are_not_the_answers_cannot_be_weighted() -> None:
    problem = weighted(row("0000011"), answers(0, 1))
    assert isinstance(problem, BadRow)
    assert (problem.rule, problem.found) == ("tokens.weight", "1 masked runs for 2 assistant turns")


@pytest.mark.parametrize("marker", ["{% generation %}", "{%- generation -%}", "{%generation%}"])
def test_a_template_with_a_generation_block_is_accepted(marker: str) -> None:
    require_marker(f"{{{{ x }}}}{marker}y{{% endgeneration %}}")


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("", "template.missing"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "template.no_generation_marker"),
        ("{# generation #}{% if add_generation_prompt %}x{% endif %}", "template.no_generation_marker"),
    ],
)
def test_a_template_that_marks_no_answer_is_a_hard_error(template: str, code: str) -> None:
    with pytest.raises(FileRefused) as caught:
        require_marker(template)
    assert caught.value.code == code


def test_text_behind_the_window_is_left_out_and_answers_end_with_it() -> None:
    rendering = Rendering("question ANSWER question ANSWER", ((9, 15), (25, 31)), guarded="q" * 31)
    assert without_tail(rendering, 31) is rendering
    assert without_tail(rendering, 30) == Rendering(
        rendering.text[:30], ((9, 15), (25, 30)), guarded="q" * 30
    )
    assert without_tail(rendering, 12) == Rendering("question ANS", ((9, 12),), guarded="q" * 12)


def encoder(kind: str = "byte_level", **options: Any) -> Encoder:
    settings = {"expected": DatasetFormat.CHAT, "limit": 100, "over_length": "reject"}
    return Encoder(tokenizer_of(kind), **settings | options)


def encoded(
    row: Any, tokenizer: Encoder, *, expected: DatasetFormat = DatasetFormat.CHAT
) -> Encoded | BadRow:
    (found,) = tokenizer.encode([parse(row, expected=expected)])
    return found


def test_each_row_has_its_own_result_in_order() -> None:
    rows = [
        chat(user("hello"), assistant("x")),
        chat(user("hello"), calls(call())),
        chat(user("</s>"), assistant("y </s>")),
        chat(user("hello " * 100), assistant("z")),
        chat(user("hello"), assistant("fine")),
    ]
    found = encoder().encode([parse(row) for row in rows])
    tokenizer = tokenizer_of("byte_level")
    assert [
        row.rule if isinstance(row, BadRow) else tokenizer.decode(row.tokens[row.mask == 1]) for row in found
    ] == ["x<|im_end|>", "template.tools", "y </s><|im_end|>", "tokens.over_length", "fine<|im_end|>"]


@pytest.mark.parametrize("text", ["hello", "a </s> b", "<s>"])
def test_a_completion_and_its_end_are_the_targets_and_text_is_text(text: str) -> None:
    row = {"prompt": f"{text}:", "completion": text}
    found = encoded(row, encoder(expected=PROMPT), expected=PROMPT)
    assert isinstance(found, Encoded)
    tokenizer = tokenizer_of("byte_level")
    assert tokenizer.decode(found.tokens[found.mask == 1]) == f"{text}</s>"
    assert tokenizer.decode(found.tokens[found.mask == 0]) == f"{text}:"
    assert found.tokens.tolist().count(tokenizer.eos_token_id) == 1


@pytest.mark.parametrize(
    "row", [{"prompt": "a </s>", "completion": "b"}, {"prompt": "a", "completion": "b </s>"}]
)
def test_a_text_that_cannot_be_kept_apart_is_a_bad_row(row: Any) -> None:
    found = encoded(row, encoder("unigram", expected=PROMPT), expected=PROMPT)
    assert isinstance(found, BadRow)
    assert found.rule == "text.special_token"


@pytest.mark.parametrize("expected", [DatasetFormat.CHAT, PROMPT])
def test_a_row_of_too_many_bytes_is_not_tokenised_to_be_too_long(expected: DatasetFormat) -> None:
    text = "hello " * 10_000
    row = {"prompt": text, "completion": "x"} if expected is PROMPT else chat(user(text), assistant())
    found = encoded(row, encoder(expected=expected), expected=expected)
    assert isinstance(found, BadRow)
    assert (found.rule, found.found.split(" tokens")[0][:8]) == ("tokens.over_length", "at least")


def test_a_row_that_is_cut_learns_what_is_left_of_its_answer() -> None:
    row = chat(user("a"), assistant("hello " * 10_000))
    found = encoded(row, encoder(over_length="truncate"))
    whole = encoded(chat(user("a"), assistant("hello " * 200)), encoder(limit=1000))
    assert isinstance(found, Encoded)
    assert isinstance(whole, Encoded)
    assert found.tokens.tolist() == whole.tokens[:100].tolist()
    assert found.mask.tolist() == whole.mask[:100].tolist()


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (chat(), None),
        (chat(user("</s>"), assistant()), None),
        (chat(user(), calls(call())), "holdout.tool_call"),
        (tool_row(), "template.tools"),
        ({"prompt": "a", "completion": "</s>"}, None),
    ],
)
def test_the_holdout_is_held_against_the_template_that_the_gate_asks_with(row: Any, rule: str | None) -> None:
    check = Checker(tokenizer_of("byte_level"), is_holdout=True)
    problem = check(parse(row, expected=DatasetFormat.CHAT if "messages" in row else PROMPT))
    assert (problem and problem.rule) == rule


def test_a_holdout_row_that_the_tokenizer_cannot_keep_apart_is_bad() -> None:
    check = Checker(tokenizer_of("unigram"), is_holdout=True)
    for row, expected in (
        (chat(user("</s>"), assistant()), DatasetFormat.CHAT),
        ({"prompt": "a", "completion": "</s>"}, PROMPT),
    ):
        problem = check(parse(row, expected=expected))
        assert problem is not None
        assert problem.rule == "text.special_token"
