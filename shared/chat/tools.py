"""Tools of a conversation: reading of definitions and calls, and the check that each call is answered."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shared.chat.conversation import BadMessage, ChatMessage, Tool, ToolCall
from shared.strict_json import JsonProblem, read_json, shown

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
"""The characters that OpenAI allows, and those in names of tool servers and published data sets."""
DEFINITION_FIELDS = ("name", "description", "parameters", "strict")
_TYPES = {"description": str, "parameters": dict, "strict": bool}


def read_tools(holder: Mapping[str, Any], prefix: str) -> tuple[Tool, ...]:
    """Read the definitions in `tools`, or in `functions`, its older shape. Raises BadMessage."""
    if not isinstance(holder.get("parallel_tool_calls"), bool | None):
        value = holder["parallel_tool_calls"]
        raise BadMessage(
            "field.type", f"{prefix}parallel_tool_calls", f"{shown(value)}, expected true or false"
        )
    functions = [
        (_function(tool, path), f"{path}.function") for tool, path in _listed(holder, "tools", prefix)
    ]
    functions += _listed(holder, "functions", prefix)
    tools = tuple(_definition(function, path) for function, path in functions)
    names: set[str] = set()
    for tool, (_, path) in zip(tools, functions, strict=True):
        name = tool["function"]["name"]
        if name in names:
            raise BadMessage("tools.duplicate", f"{path}.name", shown(name))
        names.add(name)
    return tools


def read_calls(message: Mapping[str, Any], role: str, path: str) -> tuple[ToolCall, ...]:
    """Read the calls in `tool_calls`, or in `function_call`, its older shape. Raises BadMessage."""
    listed = _listed(message, "tool_calls", f"{path}.")
    older = message.get("function_call")
    if (listed or older) and role != "assistant":
        field = "tool_calls" if listed else "function_call"
        raise BadMessage("tools.role", f"{path}.{field}", f"on a {role} message")
    calls = [_call(call, where) for call, where in listed]
    if older is not None:
        calls.append(_function_call(older, f"{path}.function_call", None))
    return tuple(calls)


def check_calls(
    messages: Sequence[ChatMessage], paths: Sequence[str], tools: Sequence[Tool], *, one_at_a_time: bool
) -> None:
    """Raise BadMessage unless names are defined, ids differ and tool messages answer the calls before them.

    The calls of the last message need no answer: the row teaches them.
    """
    names = {tool["function"]["name"] for tool in tools}
    open_calls: list[str | None] = []
    asked_at = ""
    for message, where in zip(messages, paths, strict=True):
        if message.role == "tool":
            _answer(message, where, open_calls, has_calls=bool(asked_at))
            continue
        if open_calls:
            raise BadMessage("tools.unanswered", f"{asked_at}.tool_calls", _ids(open_calls))
        _check_names(message, where, names)
        open_calls = _check_ids(message, where, one_at_a_time=one_at_a_time)
        asked_at = where if open_calls else ""
    if open_calls and messages[-1].role == "tool":
        raise BadMessage("tools.unanswered", f"{asked_at}.tool_calls", _ids(open_calls))


def _answer(message: ChatMessage, where: str, open_calls: list[str | None], *, has_calls: bool) -> None:
    """Remove the call that is answered. Text that calls a tool in its own way is answered without ids."""
    if not has_calls and message.tool_call_id is None:
        return
    if message.tool_call_id not in open_calls:
        given = "no tool_call_id" if message.tool_call_id is None else shown(message.tool_call_id)
        raise BadMessage(
            "tools.unasked", f"{where}.tool_call_id", f"{given}, expected one of {_ids(open_calls)}"
        )
    open_calls.remove(message.tool_call_id)


def _check_names(message: ChatMessage, where: str, names: set[str]) -> None:
    for index, call in enumerate(message.tool_calls):
        if names and call.name not in names:
            raise BadMessage(
                "tools.unknown_name", f"{where}.tool_calls[{index}].function.name", shown(call.name)
            )


def _check_ids(message: ChatMessage, where: str, *, one_at_a_time: bool) -> list[str | None]:
    ids = [call.id for call in message.tool_calls]
    known = [each for each in ids if each is not None]
    if len(set(known)) != len(known):
        raise BadMessage("tools.id", f"{where}.tool_calls", _ids(ids))
    if one_at_a_time and len(ids) > 1:
        raise BadMessage("tools.parallel", f"{where}.tool_calls", f"{len(ids)} calls")
    return ids


def _ids(ids: Sequence[str | None]) -> str:
    return ", ".join("a call without id" if each is None else shown(each) for each in ids[:5]) or "none"


def _listed(holder: Mapping[str, Any], field: str, prefix: str) -> list[tuple[Any, str]]:
    """Return the entries of a list with their paths; none if the field is null or absent."""
    entries = holder.get(field)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise BadMessage("field.type", f"{prefix}{field}", f"{shown(entries)}, expected a list")
    return [(entry, f"{prefix}{field}[{index}]") for index, entry in enumerate(entries)]


def _function(entry: Any, path: str) -> Any:
    """Return the `function` of a tool or of a call."""
    if not isinstance(entry, dict):
        raise BadMessage("tools.shape", path, f"{shown(entry)}, expected an object with type and function")
    kind = entry.get("type", "function")
    if kind != "function":
        raise BadMessage("tools.type", f"{path}.type", shown(kind))
    if "function" not in entry:
        raise BadMessage("tools.shape", path, f"{shown(entry)}, expected a field function")
    return entry["function"]


def _definition(function: Any, path: str) -> Tool:
    name = _name(function, path)
    for field, kind in _TYPES.items():
        if not isinstance(function.get(field), kind | None):
            raise BadMessage(
                "tools.shape", f"{path}.{field}", f"{shown(function[field])}, expected {kind.__name__}"
            )
    given = {field: function[field] for field in DEFINITION_FIELDS if function.get(field) is not None}
    _require_encodable(given, path)
    return {"type": "function", "function": given | {"name": name}}


def _call(call: Any, path: str) -> ToolCall:
    function = _function(call, path)
    given = call.get("id")
    if given is not None and (not isinstance(given, str) or not given):
        raise BadMessage("tools.id", f"{path}.id", shown(given))
    _require_encodable(given, f"{path}.id")
    return _function_call(function, f"{path}.function", given)


def _function_call(function: Any, path: str, given_id: str | None) -> ToolCall:
    name = _name(function, path)
    return ToolCall(name, _arguments(function.get("arguments"), f"{path}.arguments"), given_id)


def _name(function: Any, path: str) -> str:
    if not isinstance(function, dict):
        raise BadMessage("tools.shape", path, f"{shown(function)}, expected an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadMessage("tools.name", f"{path}.name", shown(name))
    return name


def _arguments(given: Any, path: str) -> dict[str, Any]:
    """Read arguments from a JSON string, as in the API, or from the object itself, as in data sets."""
    value = given
    if isinstance(given, str):
        try:
            value = read_json(given)
        except JsonProblem as problem:
            raise BadMessage("tools.arguments", path, f"{shown(given)}: {problem.found}") from None
    if not isinstance(value, dict):
        raise BadMessage("tools.arguments", path, shown(value))
    _require_encodable(value, path)
    return value


def _require_encodable(value: Any, path: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadMessage("text.surrogate", path, shown(text)) from None
