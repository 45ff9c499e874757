"""A conversation as one value, whatever shape its row had; all services read and render this value."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Tool = dict[str, Any]
"""A tool is `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`, in this order."""


class BadMessage(ValueError):
    """A conversation breaks a rule. `rule` is a stable word, `field` a path into the row."""

    def __init__(self, rule: str, field: str, found: str) -> None:
        super().__init__(f"{rule} at {field}: {found}")
        self.rule = rule
        self.field = field
        self.found = found


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    id: str | None = None
    """Id of the call; None if the row gives none, as in older shapes."""

    @property
    def text(self) -> str:
        """Return a text that is equal for equal calls, whatever their ids and the order of their arguments."""
        return json.dumps(
            {"arguments": self.arguments, "name": self.name}, sort_keys=True, ensure_ascii=False
        )

    def for_template(self) -> dict[str, Any]:
        known = {} if self.id is None else {"id": self.id}
        return known | {
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    """One of the roles that templates know: system, user, assistant or tool."""
    content: str
    """Text, empty if an assistant message only calls tools; templates get the empty text in serving too."""
    field: str
    """Path of the content in the row."""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_trained: bool = True

    @property
    def text(self) -> str:
        """Return the content and, on lines of their own, the calls."""
        return "\n".join(
            [*([self.content] if self.content else []), *(call.text for call in self.tool_calls)]
        )

    def with_texts(self, change: Callable[[Any], Any]) -> "ChatMessage":
        return replace(
            self,
            content=change(self.content),
            name=change(self.name),
            tool_call_id=change(self.tool_call_id),
            tool_calls=tuple(
                ToolCall(change(call.name), change(call.arguments), change(call.id))
                for call in self.tool_calls
            ),
        )

    def for_template(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()

    def answered(self, answer: "str | ChatMessage") -> "Conversation":
        """Return the conversation with an answer of the assistant added, which alone is trained."""
        if isinstance(answer, str):
            answer = ChatMessage("assistant", answer, "answer")
        return replace(self, messages=(*self.messages, answer)).last_alone()

    def last_alone(self) -> "Conversation":
        """Return the conversation as the gate reads it: messages before the last are history and not trained."""
        *earlier, last = self.messages
        return replace(self, messages=(*(replace(each, is_trained=False) for each in earlier), last))

    def with_texts(self, change: Callable[[Any], Any]) -> "Conversation":
        """Return the conversation with `change` applied to the row's own values; roles and types are the format's."""
        return Conversation(
            tuple(message.with_texts(change) for message in self.messages),
            tuple(
                tool | {"function": {field: change(value) for field, value in tool["function"].items()}}
                for tool in self.tools
            ),
        )

    @property
    def tools_text(self) -> str:
        return "\n".join(json.dumps(tool, sort_keys=True, ensure_ascii=False) for tool in self.tools)

    @property
    def uses_tools(self) -> bool:
        return bool(self.tools) or any(
            message.tool_calls or message.role == "tool" for message in self.messages
        )


def question(text: str) -> Conversation:
    """Return a conversation that consists of one message of the user."""
    return Conversation((ChatMessage("user", text, "prompt"),))
