"""Masks and limits on token ids, and rows through tokenizers of each kind."""

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from schemas.dataset import RowProblem
from schemas.model import NO_TEMPLATE_SHA256
from schemas.specification import DatasetFormat
from services.ingest.pipeline.formats import Turn
from services.ingest.pipeline.rules import BadRow, FileRefused
from services.ingest.pipeline.tokens import (
    Checker,
    Encoded,
    Encoder,
    pair_within_limit,
    require_template,
    sides_of,
    template_sha256,
    weighted,
    within_limit,
    without_tail,
)
from shared.chat.loading import end_tokens
from shared.chat.rendering import Rendering
from tests.tiny_model import CHAT_TEMPLATE
from tests.unit.ingest.builders import assistant, calls, chat, examine, parse, user
from tests.unit.shared.chat.conversations import call, tool_row
from tests.unit.shared.chat.tokenizers import byte_level, template, tokenizer_of, with_template

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
    ("mask", "result"),
    [
        ("00001", "none of the first 4 of 5 tokens counts towards the loss"),
        ("000", "none of 3 tokens counts towards the loss"),
        ("100", "none of 3 tokens counts towards the loss"),
    ],
)
def test_a_row_without_a_token_to_learn_is_listed(mask: str, result: str) -> None:
    problem = within_limit(row(mask), limit=4, truncates=True)
    assert isinstance(problem, BadRow)
    assert (problem.rule, problem.found) == ("tokens.no_loss_token", result)


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


def test_a_model_without_a_template_is_a_hard_error_for_chat_rows() -> None:
    with pytest.raises(FileRefused) as caught:
        require_template("")
    assert caught.value.code == "template.missing"
    require_template("{{ messages }}")


def test_text_behind_the_window_is_left_out_and_answers_end_with_it() -> None:
    rendering = Rendering("question ANSWER question ANSWER", ((9, 15), (25, 31)), guarded="q" * 31)
    assert without_tail(rendering, 31) is rendering
    assert without_tail(rendering, 30) == Rendering(
        rendering.text[:30], ((9, 15), (25, 30)), guarded="q" * 30
    )
    assert without_tail(rendering, 12) == Rendering("question ANS", ((9, 12),), guarded="q" * 12)


def encoder(kind: str = "byte_level", **options: Any) -> Encoder:
    tokenizer = options.pop("tokenizer", None) or tokenizer_of(kind)
    ends = frozenset(tokenizer.convert_tokens_to_ids(["<|im_end|>", "</s>"]))
    settings = {"expected": DatasetFormat.CHAT, "limit": 100, "truncation": False, "ends": ends}
    return Encoder(tokenizer, **settings | options)


def encoded(
    row: Any, tokenizer: Encoder, *, expected: DatasetFormat = DatasetFormat.CHAT
) -> Encoded | BadRow:
    (result,) = tokenizer.encode([parse(row, expected=expected)])
    return result


def test_each_row_has_its_own_result_in_order() -> None:
    rows = [
        chat(user("hello"), assistant("x")),
        chat(user("hello"), calls(call())),
        chat(user("</s>"), assistant("y </s>")),
        chat(user("hello " * 100), assistant("z")),
        chat(user("hello"), assistant("fine")),
    ]
    result = encoder().encode([parse(row) for row in rows])
    tokenizer = tokenizer_of("byte_level")
    assert [
        row.rule if isinstance(row, BadRow) else tokenizer.decode(row.tokens[row.mask == 1]) for row in result
    ] == ["x<|im_end|>", "template.tools", "y </s><|im_end|>", "tokens.over_length", "fine<|im_end|>"]


class TestTexts:
    TEXT = DatasetFormat.TEXT

    def test_every_token_of_a_text_counts_and_its_end_is_one(self) -> None:
        result = encoded({"text": "hello hello"}, encoder(expected=self.TEXT), expected=self.TEXT)
        assert isinstance(result, Encoded)
        tokenizer = tokenizer_of("byte_level")
        assert result.tokens.tolist() == [*tokenizer("hello hello")["input_ids"], tokenizer.eos_token_id]
        assert result.mask.all()

    def test_a_text_longer_than_the_window_stays_whole_unless_it_is_to_be_cut(self) -> None:
        row = {"text": "hello " * 300}
        whole = encoded(row, encoder(expected=self.TEXT), expected=self.TEXT)
        cut = encoded(row, encoder(expected=self.TEXT, truncation=True), expected=self.TEXT)
        assert isinstance(whole, Encoded)
        assert isinstance(cut, Encoded)
        assert (len(whole.tokens) > 300, len(cut.tokens)) == (True, 100)
        assert cut.tokens.tolist() == whole.tokens[:100].tolist()

    def test_a_special_token_in_a_text_stays_text(self) -> None:
        result = encoded({"text": "</s>"}, encoder(expected=self.TEXT), expected=self.TEXT)
        assert isinstance(result, Encoded)
        tokenizer = tokenizer_of("byte_level")
        assert tokenizer.convert_tokens_to_ids("</s>") not in result.tokens[:-1]
        assert tokenizer.decode(result.tokens[:-1]) == "</s>"


class TestPreferences:
    FORMAT = DatasetFormat.PREFERENCE
    ASKED: ClassVar = [user("a"), assistant("earlier"), user("b")]
    OPENAI: ClassVar = {
        "input": {"messages": ASKED},
        "preferred_output": [assistant("good")],
        "non_preferred_output": [assistant("quite bad")],
    }

    @pytest.mark.parametrize(
        "row", [OPENAI, {"prompt": ASKED, "chosen": [assistant("good")], "rejected": "quite bad"}]
    )
    def test_each_side_is_the_chat_with_its_answer_and_learns_that_alone(self, row: Any) -> None:
        result = encoded(row, encoder(expected=self.FORMAT, limit=200), expected=self.FORMAT)
        assert isinstance(result, Encoded)
        for side, answer in zip(sides_of(result), ("good", "quite bad"), strict=True):
            history = [self.ASKED[0], assistant("earlier", weight=0), self.ASKED[2]]
            alone = encoded(chat(*history, assistant(answer)), encoder())
            assert isinstance(alone, Encoded)
            assert (side.tokens.tolist(), side.mask.tolist()) == (alone.tokens.tolist(), alone.mask.tolist())

    def test_a_prompt_that_is_a_text_is_completed(self) -> None:
        row = {"prompt": "a:", "chosen": "good </s>", "rejected": [assistant("bad")]}
        result = encoded(row, encoder(expected=self.FORMAT), expected=self.FORMAT)
        assert isinstance(result, Encoded)
        for side, answer in zip(sides_of(result), ("good </s>", "bad"), strict=True):
            alone = encoded({"prompt": "a:", "completion": answer}, encoder(expected=PROMPT), expected=PROMPT)
            assert isinstance(alone, Encoded)
            assert (side.tokens.tolist(), side.mask.tolist()) == (alone.tokens.tolist(), alone.mask.tolist())

    def test_rows_of_both_kinds_keep_their_order(self) -> None:
        rows = [{"prompt": "a:", "chosen": "good", "rejected": "bad"}, self.OPENAI] * 2
        tokenizer = encoder(expected=self.FORMAT, limit=200)
        together = tokenizer.encode([parse(row, expected=self.FORMAT) for row in rows])
        for row, result in zip(rows, together, strict=True):
            alone = encoded(row, tokenizer, expected=self.FORMAT)
            assert isinstance(result, Encoded)
            assert isinstance(alone, Encoded)
            assert result.tokens.tolist() == alone.tokens.tolist()

    @pytest.mark.parametrize(
        ("lengths", "kept"),
        [((70, 50), (50, 50)), ((90, 20), (80, 20)), ((20, 90), (20, 80)), ((60, 40), (60, 40))],
    )
    def test_both_sides_share_the_window(self, lengths: tuple[int, int], kept: tuple[int, int]) -> None:
        tokens = np.concatenate(
            [np.arange(length, dtype=np.int32) + index for index, length in enumerate(lengths)]
        )
        pair = Encoded(tokens, np.ones(len(tokens), np.uint8), border=lengths[0])
        result = pair_within_limit(pair, limit=100, truncates=True)
        assert isinstance(result, Encoded)
        for side, length, whole in zip(sides_of(result), kept, sides_of(pair), strict=True):
            assert side.tokens.tolist() == whole.tokens[:length].tolist()
        problem = pair_within_limit(pair, limit=100, truncates=False)
        assert isinstance(problem, BadRow) == (sum(lengths) > 100)

    @pytest.mark.parametrize(
        ("row", "rule", "options"),
        [
            ({"prompt": "a", "chosen": [calls(call())], "rejected": "b"}, "preference.call", {}),
            ({"prompt": "a " * 60, "chosen": "c", "rejected": "b"}, "tokens.over_length", {}),
            (
                {"prompt": "a", "chosen": "x" * 100 + "c", "rejected": "x" * 100 + "b"},
                "preference.equal",
                {"truncation": True},
            ),
            (
                {"prompt": [user()], "chosen": [assistant("a", weight=0)], "rejected": "b"},
                "tokens.no_loss_token",
                {},
            ),
        ],
    )
    def test_what_cannot_be_compared_is_a_bad_row(self, row: Any, rule: str, options: Any) -> None:
        (problem,) = examine(row, expected=self.FORMAT, encoder=encoder(expected=self.FORMAT, **options))
        assert isinstance(problem, RowProblem)
        assert problem.rule == rule

    def test_a_tokenizer_without_an_end_takes_messages_alone(self) -> None:
        tokenizer = byte_level()
        tokenizer.eos_token = None
        endless = encoder(tokenizer=tokenizer, expected=self.FORMAT, limit=200)
        text = encoded({"prompt": "a", "chosen": "c", "rejected": "b"}, endless, expected=self.FORMAT)
        assert isinstance(text, BadRow)
        assert text.rule == "tokens.no_eos"
        assert isinstance(encoded(self.OPENAI, endless, expected=self.FORMAT), Encoded)

    def test_rows_that_are_not_tokenised_are_checked_alike(self) -> None:
        check = Checker(tokenizer_of("byte_level"))
        assert check(parse(self.OPENAI, expected=self.FORMAT)) is None
        problem = Checker(tokenizer_of("unigram"))(
            parse({"prompt": "a", "chosen": "b", "rejected": "</s>"}, expected=self.FORMAT)
        )
        assert problem is not None
        assert problem.rule == "text.special_token"


UNMARKED = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def test_a_template_without_marks_makes_the_same_tokens_and_targets() -> None:
    rows = [
        chat(user("hello"), assistant("x")),
        chat(user("hello"), assistant("x", weight=0), user("again"), assistant("</s> y\n")),
        chat(user("hello"), calls(call())),
        chat(user("a"), assistant("hello " * 200)),
    ]
    marked, derived = (
        encoder(tokenizer=with_template(each)).encode([parse(row) for row in rows])
        for each in (CHAT_TEMPLATE, UNMARKED)
    )
    assert [each.rule for each in derived if isinstance(each, BadRow)] == [
        "template.tools",
        "tokens.over_length",
    ]
    for one, other in zip(marked, derived, strict=True):
        if isinstance(one, Encoded):
            assert isinstance(other, Encoded)
            assert (one.tokens.tolist(), one.mask.tolist()) == (other.tokens.tolist(), other.mask.tolist())


def test_an_answer_that_the_model_is_not_asked_for_so_is_a_bad_row() -> None:
    chatty = encoder(tokenizer=with_template(template("deepseek_r1_distill.jinja")))
    result = encoded(chat(user("a"), assistant("b")), chatty)
    assert isinstance(result, BadRow)
    assert (result.rule, result.field) == ("template.generation_prompt", "messages[1].content")


def test_an_answer_that_does_not_end_with_an_end_token_is_a_bad_row_unless_it_is_cut() -> None:
    endless = encoder(ends=frozenset())
    result = encoded(chat(user("a"), assistant("b")), endless)
    assert isinstance(result, BadRow)
    assert (result.rule, result.field) == ("template.end_of_turn", "messages[1].content")
    untrained = encoded(
        chat(user("a"), assistant("b"), user("c"), assistant("d", weight=0)), encoder(ends=frozenset())
    )
    assert isinstance(untrained, Encoded)
    cut = encoder(truncation=True)
    assert isinstance(encoded(chat(user("a"), assistant("hello " * 10_000)), cut), Encoded)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {"</s>"}),
        ({"generation_config.json": {"eos_token_id": None}}, {"</s>"}),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 0}}, {"</s>"}),
        ({"generation_config.json": {"eos_token_id": 4}}, {"</s>", "<|im_end|>"}),
        ({"generation_config.json": {"eos_token_id": [4, 3]}}, {"</s>", "<|im_start|>", "<|im_end|>"}),
        ({"config.json": {"eos_token_id": 4}}, {"</s>", "<|im_end|>"}),
    ],
)
def test_a_model_stops_at_what_its_configuration_names(
    tmp_path: Path, files: dict[str, Any], expected: set[str]
) -> None:
    tokenizer = tokenizer_of("byte_level")
    first = tokenizer.convert_tokens_to_ids("<s>")
    for name, content in files.items():
        ids = content.get("eos_token_id")
        if ids is not None:
            content["eos_token_id"] = [first + each for each in ids] if isinstance(ids, list) else first + ids
        (tmp_path / name).write_text(json.dumps(content))
    result = end_tokens(tmp_path, tokenizer)
    assert set(tokenizer.convert_ids_to_tokens(sorted(result))) == expected


class TestAModelWithoutATemplate:
    def tokenizer(self) -> Any:
        tokenizer = byte_level()
        tokenizer.chat_template = None
        return tokenizer

    def test_is_trained_on_prompt_and_completion(self) -> None:
        row = {"prompt": "a", "completion": "b"}
        assert isinstance(
            encoded(row, encoder(tokenizer=self.tokenizer(), expected=PROMPT), expected=PROMPT), Encoded
        )
        assert template_sha256(self.tokenizer()) == NO_TEMPLATE_SHA256

    def test_is_not_trained_on_chat_rows(self) -> None:
        with pytest.raises(FileRefused) as caught:
            encoder(tokenizer=self.tokenizer())
        assert caught.value.code == "template.missing"

    @pytest.mark.parametrize("is_holdout", [True, False])
    def test_has_no_chat_row_in_any_file(self, is_holdout: bool) -> None:
        problem = Checker(self.tokenizer(), is_holdout=is_holdout)(parse(chat()))
        assert problem is not None
        assert (problem.rule, problem.found) == ("template.missing", "the base model has no chat template")


@pytest.mark.parametrize("text", ["hello", "a </s> b", "<s>"])
def test_a_completion_and_its_end_are_the_targets_and_text_is_text(text: str) -> None:
    row = {"prompt": f"{text}:", "completion": text}
    result = encoded(row, encoder(expected=PROMPT), expected=PROMPT)
    assert isinstance(result, Encoded)
    tokenizer = tokenizer_of("byte_level")
    assert tokenizer.decode(result.tokens[result.mask == 1]) == f"{text}</s>"
    assert tokenizer.decode(result.tokens[result.mask == 0]) == f"{text}:"
    assert result.tokens.tolist().count(tokenizer.eos_token_id) == 1


@pytest.mark.parametrize(
    "row", [{"prompt": "a </s>", "completion": "b"}, {"prompt": "a", "completion": "b </s>"}]
)
def test_a_text_that_cannot_be_kept_apart_is_a_bad_row(row: Any) -> None:
    result = encoded(row, encoder("unigram", expected=PROMPT), expected=PROMPT)
    assert isinstance(result, BadRow)
    assert result.rule == "text.special_token"


@pytest.mark.parametrize("expected", [DatasetFormat.CHAT, PROMPT])
def test_a_row_of_too_many_bytes_is_not_tokenised_to_be_too_long(expected: DatasetFormat) -> None:
    text = "hello " * 10_000
    row = {"prompt": text, "completion": "x"} if expected is PROMPT else chat(user(text), assistant())
    result = encoded(row, encoder(expected=expected), expected=expected)
    assert isinstance(result, BadRow)
    assert (result.rule, result.found.split(" tokens")[0][:8]) == ("tokens.over_length", "at least")


def test_a_row_that_is_cut_learns_what_is_left_of_its_answer() -> None:
    row = chat(user("a"), assistant("hello " * 10_000))
    result = encoded(row, encoder(truncation=True))
    whole = encoded(chat(user("a"), assistant("hello " * 200)), encoder(limit=1000))
    assert isinstance(result, Encoded)
    assert isinstance(whole, Encoded)
    assert result.tokens.tolist() == whole.tokens[:100].tolist()
    assert result.mask.tolist() == whole.mask[:100].tolist()


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
def test_the_holdout_is_compared_with_the_template_that_the_gate_asks_with(
    row: Any, rule: str | None
) -> None:
    check = Checker(tokenizer_of("byte_level"), is_holdout=True)
    problem = check(parse(row, expected=DatasetFormat.CHAT if "messages" in row else PROMPT))
    assert (problem and problem.rule) == rule


def test_earlier_answers_of_a_holdout_row_are_history_and_may_lose_their_reasoning() -> None:
    reasoned = assistant("<think>\nwhy\n</think>\n\nb")
    row = parse(chat(user("a"), reasoned, user("c"), reasoned))
    tokenizer = with_template(template("qwen3.jinja"))
    assert Checker(tokenizer, is_holdout=True)(row) is None
    problem = Checker(tokenizer)(row)
    assert problem is not None
    assert (problem.rule, problem.field) == ("template.answer", "messages[1].content")


def test_a_holdout_row_that_the_tokenizer_cannot_keep_apart_is_bad() -> None:
    check = Checker(tokenizer_of("unigram"), is_holdout=True)
    for row, expected in (
        (chat(user("</s>"), assistant()), DatasetFormat.CHAT),
        ({"prompt": "a", "completion": "</s>"}, PROMPT),
    ):
        problem = check(parse(row, expected=expected))
        assert problem is not None
        assert problem.rule == "text.special_token"
