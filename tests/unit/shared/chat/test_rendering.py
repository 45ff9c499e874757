"""What a template leaves out is a problem of the row, and no day changes what it makes of a row."""

from typing import Any

import pytest

from shared.chat.conversation import BadMessage, Conversation
from shared.chat.rendering import Renderer
from shared.chat.special import SpecialTokens
from tests.unit.shared.chat.conversations import call, conversation, of_row, say, tool_row
from tests.unit.shared.chat.tokenizers import llama_3_1, template, with_template

CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}BODY<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}
{% endfor %}"""
SHOWS_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
SHOWS_CALLS = "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"


def renderer(text: str) -> Renderer:
    tokenizer = with_template(text)
    return Renderer(tokenizer, SpecialTokens(tokenizer))


def problem(text: str, given: Conversation) -> tuple[str, str, str]:
    with pytest.raises(BadMessage) as caught:
        renderer(text).render(given)
    return caught.value.rule, caught.value.field, caught.value.found


class TestToolsThatATemplateLeavesOut:
    @pytest.mark.parametrize(
        ("body", "field", "what"),
        [
            ("{{ m.content }}", "messages[1].tool_calls[0].function", "the call of get_weather"),
            ("{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}", "messages[1].tool_calls[0].function.arguments", "argument city of get_weather"),
            ("{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }} city days 3{% endfor %}", "messages[1].tool_calls[0].function.arguments", "argument city of get_weather"),
            ("{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}", "messages[1].tool_calls[1].function", "the call of get_weather"),
        ],
    )  # fmt: skip
    def test_are_named(self, body: str, field: str, what: str) -> None:
        calls = (call(), call(arguments={"city": "Rome"}, id="call00002"))
        row = tool_row(*calls, content="Let me look.")
        rule, found_field, found = problem(SHOWS_TOOLS + CHATML.replace("BODY", body), of_row(row))
        assert (rule, found_field) == ("template.tools", field)
        assert found == f"the base model's template leaves out {what}"

    def test_words_beside_a_call_are_named(self) -> None:
        body = SHOWS_CALLS.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}")
        row = of_row(tool_row(content="Let me look."))
        assert problem(SHOWS_TOOLS + CHATML.replace("BODY", body), row) == (
            "template.tools",
            "messages[1].content",
            "the base model's template leaves out the text of the assistant message",
        )

    def test_a_call_outside_of_what_is_trained_is_left_out_too(self) -> None:
        body = "{% endgeneration %}" + SHOWS_CALLS + "{% generation %}{{ m.content }}"
        rule, field, _ = problem(SHOWS_TOOLS + CHATML.replace("BODY", body), of_row(tool_row()))
        assert (rule, field) == ("template.tools", "messages[1].tool_calls[0].function")

    def test_definitions_that_change_nothing_are_left_out(self) -> None:
        rule, field, found = problem(CHATML.replace("BODY", SHOWS_CALLS), of_row(tool_row()))
        assert (rule, field) == ("template.tools", "tools")
        assert found.endswith("the definition of get_weather")

    def test_a_result_that_is_not_shown_is_left_out(self) -> None:
        text = SHOWS_TOOLS + CHATML.replace("BODY", SHOWS_CALLS).replace("{{ m.content }}<|im_end|>{% endif", "{{ m.content if m.role != 'tool' }}<|im_end|>{% endif")  # fmt: skip
        rule, field, _ = problem(text, of_row(tool_row()))
        assert (rule, field) == ("template.tools", "messages[2].content")

    def test_nothing_is_left_out_where_all_is_shown(self) -> None:
        rendering = renderer(SHOWS_TOOLS + CHATML.replace("BODY", SHOWS_CALLS)).render(of_row(tool_row()))
        assert len(rendering.answers) == 2

    @pytest.mark.parametrize(
        "value", [1.5, True, None, [], {}, 'a\n"b" é', [1, {"deep": ["x"]}], "\x00", 10**20, " padded "]
    )
    def test_arguments_of_any_kind_are_recognised(self, value: Any) -> None:
        row = tool_row(call(arguments={"city": value}))
        for text in (
            template("qwen2_5_training.jinja"),
            template("qwen3_5_think_training.jinja"),
            llama_3_1(),
        ):
            assert renderer(text).render(of_row(row)).answers


class TestTemplatesThatRaise:
    def test_llama_3_1_takes_one_call_at_a_time(self) -> None:
        given = of_row(tool_row(call(), call(id="call00002")))
        assert problem(llama_3_1(), given) == (
            "template.render",
            "messages",
            "This model only supports single tool-calls at once!",
        )

    @pytest.mark.parametrize(
        "expression",
        [
            "m.content + 1",
            "1 // 0",
            "m.missing.deeper",
            "raise_exception('no')",
            "messages[99].role",
            "'x'.encode('punycode2')",
        ],
    )
    def test_any_error_is_a_problem_of_the_row(self, expression: str) -> None:
        text = "{% for m in messages %}{% generation %}{{ EXPRESSION }}{% endgeneration %}{% endfor %}"
        given = conversation(say("user", "a"), say("assistant", "b"))
        rule, field, found = problem(text.replace("EXPRESSION", expression), given)
        assert (rule, field) == ("template.render", "messages")
        assert found


class TestTheDay:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
            ("{{ strftime_now('%Y-%m-%d %H:%M') }}", "2024-07-26 00:00"),
        ],
    )
    def test_a_template_gets_the_same_one_for_ever(self, text: str, expected: str) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"))
        assert renderer(text).render(given, add_generation_prompt=True).text == expected

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("llama3_2.jinja", "Today Date: 26 Jul 2024"),
            ("gptoss_training.jinja", "Current date: 2024-07-26"),
        ],
    )
    def test_released_templates_that_ask_get_it(self, name: str, expected: str) -> None:
        given = conversation(say("user", "a"), say("assistant", "b"))
        assert expected in renderer(template(name)).render(given).text


def test_a_prompt_is_rendered_up_to_where_the_answer_begins() -> None:
    row = tool_row()
    given = of_row(row | {"messages": row["messages"][:-1]})
    rendered = renderer(template("qwen2_5_training.jinja")).render(given, add_generation_prompt=True)
    assert rendered.text.endswith(
        "<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
