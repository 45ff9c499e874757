"""Rows as OpenAI's files have them."""

import json
from typing import Any

from shared.chat.conversation import Conversation
from shared.chat.messages import read_conversation

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str = "get_weather", arguments: Any = None, **more: Any) -> dict[str, Any]:
    text = json.dumps({"city": "Paris", "days": 3} if arguments is None else arguments)
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": text}, **more}


def result(content: Any = "sunny", to: str = "call00001") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": to}


def tool_row(*calls: dict[str, Any], content: Any = None, **changes: Any) -> dict[str, Any]:
    """A question, a call of a tool, its result and the answer."""
    asked = list(calls) or [call()]
    return {
        "tools": [WEATHER, CLOCK],
        "messages": [
            say("user", "What is the weather in Paris?"),
            {"role": "assistant", "content": content, "tool_calls": asked},
            *(result(to=each["id"]) for each in asked),
            say("assistant", "It stays fine."),
        ],
    } | changes


def conversation(*messages: dict[str, Any], **row: Any) -> Conversation:
    return read_conversation({"messages": list(messages), **row}, "messages")


def of_row(row: dict[str, Any]) -> Conversation:
    return read_conversation(row, "messages")
