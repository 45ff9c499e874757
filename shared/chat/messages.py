"""Strict reading of messages in the shape of OpenAI's chat API; errors name rule, field and found value."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.chat.conversation import BadMessage, ChatMessage, Conversation
from shared.chat.tools import check_calls, read_calls, read_tools
from shared.strict_json import shown

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Maps roles of rows to the roles that templates know. `function` is the older name of `tool`."""

# The roles that may come before each role; None is the start.
FOLLOWS: dict[str, frozenset[str | None]] = {
    "system": frozenset({None}),
    "user": frozenset({None, "system", "user", "assistant", "tool"}),
    "assistant": frozenset({"user", "tool"}),
    "tool": frozenset({"assistant", "tool"}),
}
PARTS = {"text": "text", "refusal": "refusal"}
"""Maps types of content parts that are text to the field that holds it."""
PART_SEPARATOR = "\n"
"""Separator of the text parts of one message, as vLLM joins them for templates that want a string."""

TOOL_FIELDS = frozenset({"tools", "functions", "parallel_tool_calls"})
"""Fields beside the messages that define which tools may be called and how."""
MESSAGE_FIELDS = {
    "system": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset(
        {"role", "content", "name", "weight", "refusal", "audio", "tool_calls", "function_call"}
    ),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
}


def read_conversation(holder: Mapping[str, Any], field: str, prefix: str = "") -> Conversation:
    """Read the messages in `holder[field]` with the tools beside them. Raises BadMessage.

    `prefix` is the path of `holder` in the row, ending in a full stop, or empty.
    """
    tools = read_tools(holder, prefix)
    path = f"{prefix}{field}"
    messages = read_messages(required(holder, field, prefix), path)
    paths = [f"{path}[{index}]" for index in range(len(messages))]
    check_calls(messages, paths, tools, one_at_a_time=holder.get("parallel_tool_calls") is False)
    return Conversation(messages, tools)


def read_answer(value: Any, path: str, holder: Mapping[str, Any]) -> ChatMessage:
    """Read one message that answers a conversation whose tools are in `holder`. Raises BadMessage."""
    message = read_message(value, path)
    one_at_a_time = holder.get("parallel_tool_calls") is False
    check_calls([message], [path], read_tools(holder, ""), one_at_a_time=one_at_a_time)
    return message


def read_messages(value: Any, path: str) -> tuple[ChatMessage, ...]:
    """Read a list of at least one message with roles in an allowed order. Raises BadMessage."""
    if not isinstance(value, list):
        raise BadMessage("field.type", path, f"{shown(value)}, expected a list of messages")
    if not value:
        raise BadMessage("chat.no_messages", path, "empty list")
    messages = tuple(read_message(message, f"{path}[{index}]") for index, message in enumerate(value))
    _check_order(messages, path)
    return messages


def read_message(message: Any, path: str) -> ChatMessage:
    """Read one message; `path` is its place in the row. Raises BadMessage."""
    if not isinstance(message, dict):
        raise BadMessage("chat.message_type", path, shown(message))
    name = required(message, "role", f"{path}.")
    if not isinstance(name, str) or name not in ROLES:
        raise BadMessage("chat.role_unknown", f"{path}.role", shown(name))
    role = ROLES[name]
    calls = read_calls(message, role, path)
    content, field = _content(message, role, path, is_optional=bool(calls))
    return ChatMessage(
        role,
        content,
        field,
        name=_optional_text(message, "name", path),
        tool_calls=calls,
        tool_call_id=_optional_text(message, "tool_call_id", path) if role == "tool" else None,
        is_trained=_weight(message, role, path) == 1,
    )


def unread_fields(messages: Any) -> list[str]:
    """Return the sorted names of the fields of raw messages that are not read."""
    extra = {key for message in messages for key in set(message) - MESSAGE_FIELDS[ROLES[message["role"]]]}
    return sorted(extra)


def required(holder: Mapping[str, Any], field: str, prefix: str = "") -> Any:
    if field not in holder:
        raise BadMessage("field.missing", f"{prefix}{field}", shown(dict(holder)))
    return holder[field]


def text_of(value: Any, path: str, empty_rule: str = "field.empty") -> str:
    """Return the value. Raises BadMessage unless it is a string that is not blank and that UTF-8 can encode."""
    if not isinstance(value, str):
        raise BadMessage("field.type", path, f"{shown(value)}, expected a string")
    if not value.strip():
        raise BadMessage(empty_rule, path, shown(value))
    return _encodable(value, path)


def _content(message: Mapping[str, Any], role: str, path: str, *, is_optional: bool) -> tuple[str, str]:
    """Return the message's text and its path."""
    content, refusal, field = message.get("content"), None, f"{path}.content"
    if role == "assistant":
        refusal = message.get("refusal")
        if message.get("audio") is not None:
            raise BadMessage("chat.part_type", f"{path}.audio", "audio")
    if refusal is not None and content is not None:
        raise BadMessage("chat.refusal", f"{path}.refusal", shown(refusal))
    if refusal is not None:
        content, field = refusal, f"{path}.refusal"
    if content is None and is_optional:
        return "", field
    if "content" not in message and refusal is None:
        raise BadMessage("field.missing", field, shown(dict(message)))
    text = _joined(content, role, field)
    # The answer of a tool may be empty, and a call needs no words.
    if not text.strip() and not is_optional and role != "tool":
        raise BadMessage("chat.content_empty", field, shown(text))
    return _encodable(text, field), field


def _joined(content: Any, role: str, path: str) -> str:
    if isinstance(content, list):
        return PART_SEPARATOR.join(
            _part(part, role, f"{path}[{index}]") for index, part in enumerate(content)
        )
    if not isinstance(content, str):
        raise BadMessage("field.type", path, f"{shown(content)}, expected a string or a list of parts")
    return content


def _part(part: Any, role: str, path: str) -> str:
    if not isinstance(part, dict):
        raise BadMessage("field.type", path, f"{shown(part)}, expected an object with type and text")
    kind = required(part, "type", f"{path}.")
    allowed = PARTS if role == "assistant" else {"text"}
    if not isinstance(kind, str) or kind not in allowed:
        raise BadMessage("chat.part_type", f"{path}.type", shown(kind))
    text = required(part, PARTS[kind], f"{path}.")
    if not isinstance(text, str):
        raise BadMessage("field.type", f"{path}.{PARTS[kind]}", f"{shown(text)}, expected a string")
    return text


def _optional_text(message: Mapping[str, Any], field: str, path: str) -> str | None:
    value = message.get(field)
    return None if value is None else text_of(value, f"{path}.{field}")


def _weight(message: Mapping[str, Any], role: str, path: str) -> int:
    weight = message.get("weight", 1)
    if type(weight) is not int or weight not in (0, 1):
        raise BadMessage("chat.weight", f"{path}.weight", shown(weight))
    if "weight" in message and role != "assistant":
        raise BadMessage("chat.weight", f"{path}.weight", f"{weight} on a {role} message")
    return weight


def _encodable(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadMessage("text.surrogate", path, shown(text)) from None
    return text


def _check_order(messages: Sequence[ChatMessage], path: str) -> None:
    previous: str | None = None
    for index, message in enumerate(messages):
        if previous not in FOLLOWS[message.role]:
            rule = "chat.system_first" if message.role == "system" else "chat.role_order"
            raise BadMessage(rule, f"{path}[{index}].role", f"{message.role} after {previous or 'the start'}")
        previous = message.role
