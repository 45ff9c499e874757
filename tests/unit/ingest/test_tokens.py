"""Masks and limits on token ids; the tokenizer itself is tested with the pipeline as a whole."""

import numpy as np
import pytest

from services.ingest.pipeline.formats import Turn
from services.ingest.pipeline.rules import BadRow, FileRefused
from services.ingest.pipeline.tokens import (
    Encoded,
    require_marker,
    weighted,
    within_limit,
    without_tail,
)
from shared.chat.rendering import Rendering


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
