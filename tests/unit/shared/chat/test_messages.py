"""Rows built and checked by the official client's own types are read as they are meant."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionContentPartRefusalParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionMessageParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionToolUnionParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat.completion_create_params import Function as LegacyFunction
from openai.types.shared_params import FunctionDefinition
from pydantic import TypeAdapter, ValidationError

from shared.chat.conversation import BadMessage, ChatMessage, Conversation, ToolCall
from shared.chat.encoding import Marked, TokenEncoder
from shared.chat.messages import read_conversation
from shared.chat.rendering import Renderer
from shared.chat.special import SpecialTokens
from tests.unit.shared.chat.tokenizers import llama_3_1, template, with_template

MESSAGES: TypeAdapter[list[ChatCompletionMessageParam]] = TypeAdapter(list[ChatCompletionMessageParam])
TOOLS: TypeAdapter[list[ChatCompletionToolUnionParam]] = TypeAdapter(list[ChatCompletionToolUnionParam])
FUNCTIONS: TypeAdapter[list[LegacyFunction]] = TypeAdapter(list[LegacyFunction])

System = ChatCompletionSystemMessageParam
Developer = ChatCompletionDeveloperMessageParam
User = ChatCompletionUserMessageParam
Assistant = ChatCompletionAssistantMessageParam
Tool = ChatCompletionToolMessageParam
Text = ChatCompletionContentPartTextParam
Refusal = ChatCompletionContentPartRefusalParam


def a_call(name: str, arguments: str, given_id: str) -> ChatCompletionMessageFunctionToolCallParam:
    return ChatCompletionMessageFunctionToolCallParam(
        id=given_id, type="function", function={"name": name, "arguments": arguments}
    )


def a_tool(name: str, **parameters: Any) -> ChatCompletionToolUnionParam:
    function = FunctionDefinition(
        name=name,
        description=f"Does {name}.",
        strict=True,
        parameters={"type": "object", "properties": parameters},
    )
    return {"type": "function", "function": function}


CITY = {"city": {"type": "string"}}
ROWS: dict[str, dict[str, Any]] = {
    "strings": {"messages": [System(role="system", content="s"), User(role="user", content="u"), Assistant(role="assistant", content="a")]},
    "developer": {"messages": [Developer(role="developer", content="s"), User(role="user", content="u", name="Ada"), Assistant(role="assistant", content="a", name="bot")]},
    "parts": {
        "messages": [
            Developer(role="developer", content=[Text(type="text", text="s1"), Text(type="text", text="s2")]),
            User(role="user", content=[Text(type="text", text="u1"), Text(type="text", text="u2")]),
            Assistant(role="assistant", content=[Text(type="text", text="a1"), Refusal(type="refusal", refusal="a2")]),
        ]
    },
    "refusal": {"messages": [User(role="user", content="u"), Assistant(role="assistant", content=None, refusal="I will not.")]},
    "tools": {
        "tools": [a_tool("get_weather", **CITY), a_tool("get_time")],
        "parallel_tool_calls": True,
        "messages": [
            User(role="user", content="Weather and time in Paris?"),
            Assistant(role="assistant", content=None, tool_calls=[a_call("get_weather", '{"city": "Paris"}', "call00001"), a_call("get_time", "{}", "call00002")]),
            Tool(role="tool", content=[Text(type="text", text="sunny"), Text(type="text", text="23 C")], tool_call_id="call00001"),
            Tool(role="tool", content="noon", tool_call_id="call00002"),
            Assistant(role="assistant", content="Sunny, and it is noon."),
        ],
    },
    "a call as the answer": {
        "tools": [a_tool("get_weather", **CITY)],
        "parallel_tool_calls": False,
        "messages": [
            User(role="user", content="Weather in Paris?"),
            Assistant(role="assistant", tool_calls=[a_call("get_weather", '{"city": "Paris"}', "call00001")]),
        ],
    },
    "functions": {
        "functions": [LegacyFunction(name="get_weather", description="d", parameters={"type": "object", "properties": CITY})],
        "messages": [
            User(role="user", content="Weather in Paris?"),
            Assistant(role="assistant", content=None, function_call={"name": "get_weather", "arguments": '{"city": "Paris"}'}),
            ChatCompletionFunctionMessageParam(role="function", name="get_weather", content="sunny"),
            Assistant(role="assistant", content="Sunny."),
        ],
    },
}  # fmt: skip

ONE_CALL = {"llama_3_1": "single tool-calls", "gptoss_training.jinja": "leaves out the call of get_time"}
"""Templates that take one call a message, and what they do with more: one raises, one leaves the others out."""


def checked(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as a line of a file has it, once the client's types have accepted it."""
    for message in MESSAGES.validate_python(row["messages"]):
        for parts in (message.get("content"), message.get("tool_calls")):
            # Iterables are checked as they are read.
            list(parts or ()) if not isinstance(parts, str) else None
    if "tools" in row:
        TOOLS.validate_python(row["tools"])
    if "functions" in row:
        FUNCTIONS.validate_python(row["functions"])
    line: dict[str, Any] = json.loads(json.dumps(row))
    return line


def read(name: str) -> Conversation:
    return read_conversation(checked(ROWS[name]), "messages")


def test_the_clients_types_refuse_what_is_none_of_theirs() -> None:
    with pytest.raises(ValidationError):
        checked({"messages": [{"role": "user", "content": [{"type": "text"}]}]})


def test_a_developer_is_the_system_and_names_stay() -> None:
    first, second, third = read("developer").messages
    assert first == ChatMessage("system", "s", "messages[0].content")
    assert second.for_template() == {"role": "user", "content": "u", "name": "Ada"}
    assert third.for_template() == {"role": "assistant", "content": "a", "name": "bot"}


def test_parts_are_joined_by_a_line_break() -> None:
    assert [message.content for message in read("parts").messages] == ["s1\ns2", "u1\nu2", "a1\na2"]


def test_a_refusal_is_what_the_assistant_says() -> None:
    answer = read("refusal").messages[-1]
    assert (answer.content, answer.field) == ("I will not.", "messages[1].refusal")


def test_calls_have_their_arguments_as_objects_and_no_text_is_an_empty_one() -> None:
    conversation = read("tools")
    assert conversation.messages[1].for_template() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call00001",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
            },
            {"id": "call00002", "type": "function", "function": {"name": "get_time", "arguments": {}}},
        ],
    }
    assert conversation.messages[2].for_template() == {
        "role": "tool",
        "content": "sunny\n23 C",
        "tool_call_id": "call00001",
    }
    assert [tool["function"]["name"] for tool in conversation.tools] == ["get_weather", "get_time"]


def test_definitions_have_their_fields_in_the_order_of_the_api() -> None:
    (tool,) = read("a call as the answer").tools
    assert list(tool) == ["type", "function"]
    assert list(tool["function"]) == ["name", "description", "parameters", "strict"]


def test_functions_are_the_older_shape_of_tools() -> None:
    conversation = read("functions")
    assert conversation.tools[0]["function"]["name"] == "get_weather"
    assert conversation.messages[1].tool_calls == (ToolCall("get_weather", {"city": "Paris"}),)
    assert conversation.messages[2].for_template() == {
        "role": "tool",
        "content": "sunny",
        "name": "get_weather",
    }


@pytest.mark.parametrize("name", list(ROWS))
@pytest.mark.parametrize("text", ["qwen2_5_training.jinja", "qwen3_training.jinja", "glm4moe_training.jinja", "gptoss_training.jinja", "llama_3_1"])  # fmt: skip
def test_every_shape_is_rendered_by_the_templates_of_released_models(name: str, text: str) -> None:
    tokenizer = with_template(llama_3_1() if text == "llama_3_1" else template(text))
    special = SpecialTokens(tokenizer)
    given = read(name)
    if name == "tools" and text in ONE_CALL:
        with pytest.raises(BadMessage, match=ONE_CALL[text]):
            Renderer(tokenizer, special).render(given)
        return
    (marked,) = TokenEncoder(tokenizer, special).conversations([Renderer(tokenizer, special).render(given)])
    assert isinstance(marked, Marked)
    trained = tokenizer.decode([token for token, bit in zip(marked.ids, marked.mask, strict=True) if bit])
    for message in given.messages:
        if message.role == "assistant":
            assert message.content in trained
            assert all(call.name in trained for call in message.tool_calls)
        else:
            assert f"\n{message.content}\n" not in trained
