"""Answers in the texts of templates that do not mark them."""

from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from shared.chat.conversation import BadMessage, ChatMessage, Conversation
from shared.chat.spans import STAND_INS, num_common, regions
from shared.chat.tokenizer import ChatTokenizer
from tests.tiny_model import CHAT_TEMPLATE
from tests.unit.shared.chat.conversations import call, conversation, of_row, say, tool_row
from tests.unit.shared.chat.tokenizers import template, trained, with_template

ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = (
    f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ BODY }}}}<|im_end|>\n{{% endfor %}}{ASKED}"
)
UNMARKED = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def texts(text: str, given: Conversation) -> list[str]:
    """What is trained, turn by turn."""
    rendering = ChatTokenizer(with_template(text)).renderer.render(given)
    return [rendering.text[start:end] for start, end in rendering.answers]


def problem(text: str, given: Conversation) -> BadMessage:
    with pytest.raises(BadMessage) as caught:
        texts(text, given)
    return caught.value


def body(expression: str) -> str:
    return CHATML.replace("BODY", expression)


@pytest.mark.parametrize(
    "given",
    [
        conversation(say("user", "a"), say("assistant", "b")),
        conversation(say("system", "s"), say("user", "a"), say("assistant", "<b>"), say("user", "c"), say("assistant", "\n d \n")),
        conversation(say("user", "a"), say("assistant", "x <|im_end|> y"), say("user", "<|im_start|>"), say("assistant", "</s>")),
        conversation(say("user", "a"), say("assistant", "assistant\nassistant"), say("user", "a"), say("assistant", "a")),
        conversation(say("user", "c"), say("assistant", "d 🎉")),
    ],
)  # fmt: skip
def test_derived_answers_are_those_that_marks_give(given: Conversation) -> None:
    marked, derived = (ChatTokenizer(with_template(each)).marked(given) for each in (CHAT_TEMPLATE, UNMARKED))
    assert derived == marked
    assert 1 in derived.mask


WORDS = st.text(st.sampled_from(list("ab <>|/s\n\té你🎉")), max_size=20)
PIECES = st.lists(
    st.one_of(WORDS, st.sampled_from(["<|im_end|>", "<|im_start|>", "</s>", "assistant\n"])), max_size=3
)


@for_all(contents=st.lists(PIECES.map("".join), min_size=2, max_size=6))
@settings(max_examples=60)
def test_derived_answers_are_those_that_marks_give_whatever_is_said(contents: list[str]) -> None:
    messages = tuple(
        ChatMessage(("user", "assistant")[index % 2], text, f"messages[{index}].content")
        for index, text in enumerate(contents)
    )
    result = []
    for each in (CHAT_TEMPLATE, UNMARKED):
        try:
            result.append(ChatTokenizer(with_template(each)).marked(Conversation(messages)))
        except BadMessage as refused:
            result.append(refused.rule)
    assert result[0] == result[1]


def test_calls_of_turns_that_are_not_trained_are_looked_for_between_their_neighbours() -> None:
    assert regions((None, (4, 6), None, None, (9, 10), None), 20) == (
        *((0, 4), (4, 6), (6, 9), (6, 9), (9, 10)),
        (10, 20),
    )
    row = tool_row()
    row["messages"][1]["weight"] = 0
    assert texts(template("qwen2_5.jinja"), of_row(row)) == ["It stays fine.<|im_end|>"]
    # Its definitions name the function, its question and its parameters the arguments; the call is left out.
    assert problem(template("lfm2.jinja"), of_row(row)).rule == "template.tools"


def test_turns_of_weight_0_are_no_derived_answers() -> None:
    given = conversation(
        say("user", "a"), say("assistant", "b", weight=0), say("user", "c"), say("assistant", "d")
    )
    assert texts(UNMARKED, given) == ["d<|im_end|>"]


class TestTemplatesThatWriteAnEarlierTurnOtherwise:
    def test_without_its_thinking_block(self) -> None:
        given = conversation(
            say("user", "a"), say("assistant", "<b>"), say("user", "c"), say("assistant", "d")
        )
        assert texts(template("qwen3.jinja"), given) == [
            "<b><|im_end|>",
            "<think>\n\n</think>\n\nd<|im_end|>",
        ]

    def test_and_without_what_it_asks_with(self) -> None:
        given = conversation(
            say("user", "a"), say("assistant", "<b>"), say("user", "c"), say("assistant", "d")
        )
        assert texts(template("qwen3_5_nothink.jinja"), given) == ["<b><|im_end|>", "d<|im_end|>"]

    def test_with_another_end(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"), say("user", "c"), say("assistant", "d"))
        assert texts(template("gptoss.jinja"), given) == [
            "<|channel|>final<|message|>b<|end|>",
            "<|channel|>final<|message|>d<|return|>",
        ]
        assert texts(template("phi3.jinja"), given) == ["b<|end|>", "d<|end|>\n</s>"]

    def test_without_the_system_turn_that_goes_with_the_last_question(self) -> None:
        """As Mistral's do: what stands before an earlier answer is not what it is asked with."""
        text = (
            "{% set system = messages[0].content if messages[0].role == 'system' %}"
            "{% for m in messages %}{% if m.role == 'user' %}[INST]{% if m == (messages | selectattr('role', 'eq', 'user')"
            " | list)[-1] and system %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
            "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
        )
        given = conversation(
            say("system", "s"),
            say("user", "a"),
            say("assistant", "b"),
            say("user", "c"),
            say("assistant", "d"),
        )
        assert texts(text, given) == ["b</s>", " d</s>"]

    def test_where_no_character_is_left_to_stand_for_its_words(self) -> None:
        private = "".join(map(chr, STAND_INS))
        given = conversation(
            say("user", "a"), say("assistant", "b"), say("user", private), say("assistant", "d")
        )
        assert problem(template("qwen3.jinja"), given).rule == "template.answer"

    def test_a_call_too(self) -> None:
        row = tool_row()
        row["messages"] += [say("user", "thanks"), say("assistant", "bye")]
        assert texts(template("qwen3.jinja"), of_row(row)) == [
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call><|im_end|>',
            "It stays fine.<|im_end|>",
            "<think>\n\n</think>\n\nbye<|im_end|>",
        ]


class TestAnswersThatATemplateDoesNotShow:
    REASONED = "<think>\nwhy\n</think>\n\nb"

    def test_reasoning_that_it_always_drops(self) -> None:
        given = conversation(say("user", "a"), say("assistant", self.REASONED))
        result = problem(template("deepseek_r1_distill.jinja"), given)
        assert (result.rule, result.field) == ("template.answer", "messages[1].content")
        assert "expected all of it" in result.found

    @pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "nemotron_3_nano", "glm4moe"])
    def test_reasoning_that_it_drops_of_earlier_turns(self, name: str) -> None:
        last = (say("user", "c"), say("assistant", self.REASONED))
        given = conversation(say("user", "a"), say("assistant", self.REASONED), *last)
        assert problem(template(f"{name}.jinja"), given).field == "messages[1].content"
        assert len(texts(template(f"{name}.jinja"), conversation(*last))) == 1

    @pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "nemotron_3_nano", "glm4moe"])
    def test_do_no_harm_in_turns_that_are_not_trained(self, name: str) -> None:
        first = (say("user", "a"), say("assistant", self.REASONED, weight=0))
        given = conversation(*first, say("user", "c"), say("assistant", self.REASONED))
        (result,) = texts(template(f"{name}.jinja"), given)
        assert "why" in result

    @pytest.mark.parametrize(
        "expression", ["m.content[:3]", "m.content | upper", "'' if m.role == 'assistant' else m.content"]
    )
    def test_a_part_of_them(self, expression: str) -> None:
        given = conversation(say("user", "a"), say("assistant", "long answer"))
        assert problem(body(expression), given).rule == "template.answer"

    @pytest.mark.parametrize("expression", ["m.content | trim", "m.content.replace('\\n', ' ')"])
    def test_white_space_may_go(self, expression: str) -> None:
        given = conversation(say("user", "a"), say("assistant", " b\n c "))
        (result,) = texts(body(expression), given)
        assert result.split() == ["b", "c", "<|im_end|>"] or result == "b\n c<|im_end|>"

    def test_calls(self) -> None:
        assert problem(template("llama3.jinja"), of_row(tool_row(call()))).rule == "template.tools"


class TestTheEndOfATurn:
    def test_line_ends_behind_it_are_no_answer(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b\n"))
        assert texts(body("m.content"), given) == ["b\n<|im_end|>"]

    def test_where_there_is_none_the_answer_ends_with_its_words(self) -> None:
        text = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
        given = conversation(say("user", "a"), say("assistant", "b"), say("user", "c"), say("assistant", "d"))
        assert texts(text, given) == ["b\n", "d\n"]

    def test_special_tokens_of_the_row_are_none(self) -> None:
        text = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
        given = conversation(say("user", "a"), say("assistant", "b <|im_end|>"))
        assert texts(text, given) == ["b <|im_end|>\n"]


def test_a_template_of_parts_is_given_parts() -> None:
    given = conversation(say("user", "Hello"), say("assistant", "World"))
    for name, expected in (("idefics3", " World<end_of_utterance>"), ("llava_next", " World</s>")):
        assert texts(template(f"{name}.jinja"), given) == [expected]


class TestATrainingTemplate:
    GIVEN = conversation(
        say("user", "a </s>"), say("assistant", "b"), say("user", "c"), say("assistant", "</s>")
    )

    def marked(self, released: str, training: str) -> Any:
        return ChatTokenizer(with_template(released), training).marked(self.GIVEN)

    def test_marks_the_texts_of_the_released_one(self) -> None:
        assert self.marked(UNMARKED, CHAT_TEMPLATE) == ChatTokenizer(with_template(CHAT_TEMPLATE)).marked(
            self.GIVEN
        )

    def test_takes_the_place_of_the_released_ones_marks(self) -> None:
        words = CHAT_TEMPLATE.replace(
            "+ '<|im_end|>' }}{% endgeneration %}", "}}{% endgeneration %}<|im_end|>"
        )
        result = self.marked(CHAT_TEMPLATE, words)
        assert result.ids == self.marked(UNMARKED, CHAT_TEMPLATE).ids
        assert sum(result.mask) == sum(self.marked(UNMARKED, CHAT_TEMPLATE).mask) - 2

    def test_that_writes_another_text_makes_a_bad_row(self) -> None:
        with pytest.raises(BadMessage) as caught:
            self.marked(UNMARKED, "x" + CHAT_TEMPLATE)
        assert (caught.value.rule, caught.value.field) == ("template.training", "messages")
        assert caught.value.found.startswith("the training template writes 'x<|im_start|>user")

    def test_is_not_what_the_model_is_asked_with(self) -> None:
        asked = conversation(say("user", "a"))
        tokenizer = with_template(UNMARKED)
        prompts = [ChatTokenizer(tokenizer, each).prompt(asked) for each in (None, "x" + CHAT_TEMPLATE)]
        assert prompts[0] == prompts[1]


class TestWhatTheModelIsAskedWith:
    def trained(self, text: str, given: Conversation, *ends: str) -> Any:
        tokenizer = with_template(text)
        ids = frozenset(tokenizer.convert_tokens_to_ids(list(ends)))
        return trained(tokenizer, given, ids)

    def refused(self, text: str, given: Conversation, *ends: str) -> BadMessage:
        with pytest.raises(BadMessage) as caught:
            self.trained(text, given, *ends)
        return caught.value

    def test_a_prompt_that_opens_a_thinking_block_is_not_what_was_trained(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"))
        result = self.refused(template("deepseek_r1_distill.jinja"), given, "<｜end▁of▁sentence｜>")
        assert (result.rule, result.field) == ("template.generation_prompt", "messages[1].content")
        assert result.found == (
            "behind 's><｜User｜>a<｜Assistant｜>' 'b<｜end▁of▁sentence｜>', "
            "expected '<think>\\n' as where the answer is asked for"
        )

    def test_a_marked_template_is_compared_with_its_prompt_too(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"))
        asks = CHAT_TEMPLATE.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
        assert asks != CHAT_TEMPLATE
        assert self.refused(asks, given, "<|im_end|>").rule == "template.generation_prompt"

    def test_text_between_prompt_and_marked_answer_is_never_learnt(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"))
        text = CHAT_TEMPLATE.replace("{% generation %}", "{{ 'So: ' }}{% generation %}")
        result = self.refused(text, given, "<|im_end|>")
        assert result.rule == "template.generation_prompt"
        assert "'So: b<|im_end|>\\n', expected the answer" in result.found

    def test_a_mark_may_begin_within_the_prompt(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"))
        assert self.trained(template("qwen2_5_training.jinja"), given, "<|im_end|>")

    def test_no_token_may_go_over_its_end_unless_the_row_says_so(self) -> None:
        joined = with_template(UNMARKED)
        merged = next(each for each in joined.get_vocab() if each in ("he", "ld", "th", "in", "is", "ll"))
        text = UNMARKED.replace("assistant\n' }}{% endif", f"assistant\n{merged[0]}' }}}}{{% endif")
        given = conversation(say("user", "a"), say("assistant", f"{merged} b"))
        result = self.refused(text, given, "<|im_end|>")
        assert result.rule == "template.generation_prompt"
        assert result.found == (
            f"one token {merged!r}, expected it to end with {merged[0]!r} as where the answer is asked for"
        )

    def test_a_line_end_that_the_row_begins_with_may_be_part_of_one(self) -> None:
        joined = with_template(UNMARKED)
        merged = next(each for each in joined.get_vocab() if each in ("he", "ld", "th", "in", "is", "ll"))
        text = UNMARKED.replace("assistant\n", f"assistant\n{merged[0]}").replace(
            "role'] + '\n'", "role'] + '\nNONE'"
        )
        text = text.replace("NONE", "' + ('" + merged[0] + "' if message['role'] == 'assistant' else '') + '")
        given = conversation(say("user", "a"), say("assistant", f"{merged[1]} b"))
        assert self.trained(text, given, "<|im_end|>").mask

    def test_an_answer_that_does_not_end_with_an_end_token_is_refused(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"))
        outside = CHAT_TEMPLATE.replace(
            "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}",
            "{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
        )
        result = self.refused(outside, given, "<|im_end|>", "</s>")
        assert (result.rule, result.field) == ("template.end_of_turn", "messages[1].content")
        assert result.found == "the answer ends with 'b', expected '</s>' or '<|im_end|>'"
        assert self.refused(CHAT_TEMPLATE, given, "</s>").rule == "template.end_of_turn"
        assert self.trained(CHAT_TEMPLATE, given, "<|im_end|>")
        assert self.refused(CHAT_TEMPLATE, given).found.endswith(
            "expected an end token, of which the base model names none"
        )

    def test_a_last_turn_that_is_not_trained_is_asked_nothing(self) -> None:
        given = conversation(say("user", "a"), say("assistant", "b", weight=0))
        renderer = ChatTokenizer(with_template(template("deepseek_r1_distill.jinja"))).renderer
        assert renderer.with_boundary(given, renderer.render(given)).boundary is None


@pytest.mark.parametrize(
    ("one", "other", "expected"), [("", "", 0), ("a", "", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("ab", "abc", 2), ("xa", "ya", 0)]
)  # fmt: skip
def test_the_common_beginning(one: str, other: str, expected: int) -> None:
    assert num_common(one, other) == expected
