"""What may reach a replica that other tenants share."""

import json

import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolMessageParam,
)
from openai.types.shared_params import FunctionDefinition, ResponseFormatJSONObject, ResponseFormatJSONSchema

from services.gateway.errors import ApiError
from services.gateway.inference import ChatRequest, CompletionRequest
from services.gateway.routes.chat import checked

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION = {"model": "tiny", "prompt": "hello"}


def a_tool(**changes: object) -> dict:
    """As the official client types it, with everything that it may have."""
    parameters: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"type": "string", "default": None}, "days": {"enum": [1, None]}},
        "required": ["city"],
    }
    fields = {"name": "weather", "description": "Of a city.", "parameters": parameters, "strict": True}
    function = FunctionDefinition(**fields | changes)  # type: ignore[typeddict-item]
    return dict(ChatCompletionFunctionToolParam(type="function", function=function))


def nested(levels: int) -> dict:
    return {"properties": nested(levels - 1)} if levels else {}


TOOL = a_tool()
CALL = dict(
    ChatCompletionMessageFunctionToolCallParam(
        id="call-1", type="function", function={"name": "weather", "arguments": '{"city": "Bonn"'}
    )
)
PART = {"type": "text", "text": "rain"}
CALLING = dict(ChatCompletionAssistantMessageParam(role="assistant", tool_calls=[CALL]))
RESULT = dict(ChatCompletionToolMessageParam(role="tool", tool_call_id="call-1", content="rain"))
THIS = dict(ChatCompletionNamedToolChoiceParam(type="function", function={"name": "weather"}))
THE_OTHER = dict(ChatCompletionNamedToolChoiceParam(type="function", function={"name": "traffic"}))


def chat(**changes: object) -> dict:
    return checked(json.dumps(CHAT | changes).encode(), ChatRequest).model_dump(
        exclude_none=True, by_alias=True
    )


def completion(**changes: object) -> dict:
    return checked(json.dumps(COMPLETION | changes).encode(), CompletionRequest).body("tiny")


def refused(ask, **changes: object) -> tuple[str | None, str | None]:
    try:
        ask(**changes)
    except ApiError as error:
        refusal = error
    else:
        pytest.fail(f"{ask.__name__} admits {changes}")
    assert refusal.status == 400
    error = refusal.body["error"]
    assert error["param"] is None or error["param"] in error["message"]
    return error["param"], error["code"]


@pytest.mark.parametrize(
    "name",
    [
        "prompt_logprobs", "use_beam_search", "prompt_embeds", "vllm_xargs", "kv_transfer_params", "lora_request",
        "lora_name", "guided_json", "guided_regex", "structured_outputs", "chat_template", "cache_salt", "priority",
        "request_id", "allowed_token_ids", "logits_processors", "mm_processor_kwargs", "colour",
    ],
)  # fmt: skip
def test_what_is_not_in_the_list_is_refused_whatever_its_value(name):
    for value in (0, False, None, {}, [], "x", 1):
        for ask in (chat, completion):
            assert refused(ask, **{name: value}) == (name, "unknown_parameter"), f"{ask.__name__}: {value!r}"


@pytest.mark.parametrize(
    ("ask", "changes"),
    [
        (completion, {"echo": True}),
        (completion, {"echo": 0}),
        (completion, {"best_of": 2}),
        (completion, {"suffix": "end"}),
        (chat, {"functions": [{"name": "f"}]}),
        (chat, {"function_call": {"name": "f"}}),
        (chat, {"modalities": ["text", "audio"]}),
        (chat, {"audio": {"voice": "alloy"}}),
        (chat, {"web_search_options": {}}),
        (chat, {"store": True}),
    ],
)
def test_openais_options_that_no_replica_has_are_not_available_yet(ask, changes):
    assert refused(ask, **changes) == (next(iter(changes)), "not_available_yet")


@pytest.mark.parametrize(
    ("ask", "changes", "param"),
    [
        (chat, {"n": 0}, "n"),
        (chat, {"n": 9}, "n"),
        (chat, {"n": True}, "n"),
        (chat, {"n": "2"}, "n"),
        (chat, {"max_tokens": 0}, "max_tokens"),
        (chat, {"max_completion_tokens": 10**9}, "max_completion_tokens"),
        (chat, {"temperature": 2.5}, "temperature"),
        (chat, {"top_p": 0}, "top_p"),
        (chat, {"presence_penalty": -3}, "presence_penalty"),
        (chat, {"repetition_penalty": 0}, "repetition_penalty"),
        (chat, {"top_k": -2}, "top_k"),
        (chat, {"min_p": 1.5}, "min_p"),
        (chat, {"seed": 2**63}, "seed"),
        (chat, {"logit_bias": {"many": 1}}, "logit_bias.many"),
        (chat, {"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
        (chat, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        (chat, {"stop": [1]}, "stop"),
        (chat, {"top_logprobs": 21}, "top_logprobs"),
        (chat, {"logprobs": 5}, "logprobs"),
        (chat, {"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        (chat, {"messages": []}, "messages"),
        (chat, {"messages": "hello"}, "messages"),
        (chat, {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        (
            chat,
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]},
            "messages.0.tool_call_id",
        ),
        (
            chat,
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            "messages.0.tool_calls",
        ),
        (chat, {"messages": [CALLING | {"tool_calls": [CALL] * 129}]}, "messages.0.tool_calls"),
        (chat, {"messages": [CALLING | {"tool_calls": [CALL | {"id": ""}]}]}, "messages.0.tool_calls.0.id"),
        (chat, {"tools": "weather"}, "tools"),
        (chat, {"tools": [TOOL] * 129}, "tools"),
        (chat, {"tools": [a_tool(name="no spaces")]}, "tools.0.function.name"),
        (chat, {"tools": [a_tool(parameters=[])]}, "tools.0.function.parameters"),
        (chat, {"tools": [a_tool(parameters={"x": "y" * 65_536})]}, "tools.0.function.parameters"),
        (chat, {"tools": [a_tool(parameters=nested(40))]}, "tools.0.function.parameters"),
        (chat, {"tool_choice": "required"}, "tool_choice"),
        (chat, {"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        (chat, {"tools": [TOOL], "tool_choice": THE_OTHER}, "tool_choice"),
        (
            chat,
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": ""}}},
            "tool_choice.function.name",
        ),
        (chat, {"response_format": {"type": "yaml"}}, "response_format.type"),
        (chat, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            chat,
            {"response_format": {"type": "text", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
        ),
        (
            chat,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}},
            "response_format.json_schema.schema",
        ),
        (chat, {"metadata": {"k": "v" * 513}}, "metadata.k"),
        (chat, {"model": 1}, "model"),
        (completion, {"logprobs": 21}, "logprobs"),
        (completion, {"prompt": []}, "prompt"),
        (completion, {"prompt": ["x"] * 17}, "prompt"),
        (completion, {"prompt": [1, -1]}, "prompt"),
        (completion, {"prompt": [1, True]}, "prompt"),
        (completion, {"prompt": [[]]}, "prompt"),
        (completion, {"prompt": [2**31]}, "prompt"),
        (completion, {"prompt": {"x": 1}}, "prompt"),
    ],
)
def test_values_out_of_bounds_are_named(ask, changes, param):
    assert refused(ask, **changes) == (param, "invalid_value")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice.type",
        ),
        (
            {"messages": [CALLING | {"tool_calls": [CALL | {"type": "custom"}]}]},
            "messages.0.tool_calls.0.type",
        ),
    ],
)
def test_tools_that_are_no_functions_are_not_available_yet(changes, param):
    assert refused(chat, **changes) == (param, "not_available_yet")


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages.0.tool_call_id",
            "missing_required_parameter",
        ),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "missing_required_parameter"),
        ({"tools": [a_tool(colour="red")]}, "tools.0.function.colour", "unknown_parameter"),
        (
            {"response_format": {"type": "json_object", "strict": True}},
            "response_format.strict",
            "unknown_parameter",
        ),
    ],
)
def test_what_a_tool_a_turn_or_a_format_lacks_or_has_too_much_is_named(changes, param, code):
    assert refused(chat, **changes) == (param, code)


def test_content_that_is_not_text_is_refused():
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/secret"}}
    changes = {"messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]}
    assert refused(chat, **changes) == ("messages.0.content", "not_available_yet")


@pytest.mark.parametrize(
    ("raw", "param", "code"),
    [
        (b"{", None, "invalid_json"),
        (b"[" * 100_000, None, "invalid_json"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', None, "invalid_json"),
        (b"[]", None, "invalid_value"),
        (b'{"messages": []}', "model", "missing_required_parameter"),
        (b'{"model": "tiny"}', "messages", "missing_required_parameter"),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
            "temperature",
            "invalid_value",
        ),
    ],
)
def test_a_body_that_cannot_be_a_request_is_refused(raw, param, code):
    with pytest.raises(ApiError) as caught:
        checked(raw, ChatRequest)
    assert (caught.value.body["error"]["param"], caught.value.body["error"]["code"]) == (param, code)


class TestWhatReachesAReplica:
    def test_is_what_was_asked(self):
        asked = {
            "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 5, "n": 2, "stop": "x", "seed": 1, "stream": True,
            "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 5, "logit_bias": {"5": -100.0},
            "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "frequency_penalty": 0.1,
            "presence_penalty": 0.1, "max_tokens": 7,
        }  # fmt: skip
        assert chat(**asked) == CHAT | asked

    @pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1, 2], [3]]])
    def test_has_the_prompt_as_it_came(self, prompt):
        assert completion(prompt=prompt)["prompt"] == prompt

    def test_leaves_out_what_is_for_us_or_asks_for_nothing(self):
        asked = {
            "user": "u-1", "metadata": {"k": "v"}, "store": False, "tools": [], "tool_choice": "none", "temperature": None,
            "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "p",
        }  # fmt: skip
        assert chat(**asked) == CHAT
        assert completion(echo=False, best_of=1, suffix=None) == COMPLETION

    @pytest.mark.parametrize("choice", ["none", "auto", "required", THIS])
    def test_has_tools_and_the_choice_among_them_as_they_came(self, choice):
        asked = {"tools": [TOOL, {"type": "function", "function": {"name": "bare"}}], "tool_choice": choice}
        assert chat(**asked, parallel_tool_calls=False) == CHAT | asked | {"parallel_tool_calls": False}

    def test_has_calls_and_results_as_they_came(self):
        turns = [CALLING, RESULT, CALLING | {"content": "I look."}, RESULT | {"content": [PART]}]
        messages = [*CHAT["messages"], *turns]
        assert chat(messages=messages, tools=[TOOL])["messages"] == messages

    def test_takes_back_a_call_as_a_stream_gave_it(self):
        calling = CALLING | {"content": None, "tool_calls": [CALL | {"index": 0}]}
        assert chat(messages=[*CHAT["messages"], calling, RESULT])["messages"][1] == CALLING

    @pytest.mark.parametrize(
        "response_format",
        [
            {"type": "text"},
            dict(ResponseFormatJSONObject(type="json_object")),
            dict(
                ResponseFormatJSONSchema(
                    type="json_schema",
                    json_schema={
                        "name": "x",
                        "description": "An x.",
                        "strict": True,
                        "schema": {"const": None},
                    },
                )
            ),
        ],
    )
    def test_has_the_format_of_the_answer_as_it_came(self, response_format):
        assert chat(response_format=response_format) == CHAT | {"response_format": response_format}

    def test_takes_back_an_answer_as_clients_send_it(self):
        answer = {
            "role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None,
            "function_call": None, "tool_calls": [], "reasoning": None,
        }  # fmt: skip
        messages = [*CHAT["messages"], answer, {"role": "user", "content": [{"type": "text", "text": "go"}]}]
        sent = chat(messages=messages)["messages"]
        assert sent == [messages[0], {"role": "assistant", "content": "hi"}, messages[2]]
