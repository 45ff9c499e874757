"""The four row formats: which one a row has, and the row as turns once it keeps the format's rules."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schemas.specification import DatasetFormat, format_of_row
from services.ingest.pipeline.rules import BadRow, cut, shown

# Which role may come before each; None is the start.
FOLLOWS: dict[str, frozenset[str | None]] = {
    "system": frozenset({None}),
    "user": frozenset({None, "system", "user", "assistant"}),
    "assistant": frozenset({"user", "tool"}),
    "tool": frozenset({"assistant", "tool"}),
}
TOOL_FIELDS = ("tools", "functions", "tool_calls", "function_call")
MESSAGE_FIELDS = frozenset({"role", "content", "weight"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece of a row's text. Roles outside chat: prompt, completion, chosen, rejected, text."""

    role: str
    content: str
    field: str
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class Example:
    line: int
    turns: tuple[Turn, ...]
    ignored_fields: tuple[str, ...] = ()


def parse_example(row: dict[str, Any], *, expected: DatasetFormat | None, line: int) -> Example:
    """The row as turns; no format is expected where no row of the file has one. Raises BadRow."""
    found = format_of_row(row)
    if expected is None:
        raise BadRow("format.unknown", "row", shown(row))
    if found is not None and found is not expected:
        raise BadRow("format.mixed", "row", f"{found} in a file of {expected}")
    turns, ignored = PARSERS[expected](row)
    return Example(line, turns, ignored)


Parsed = tuple[tuple[Turn, ...], tuple[str, ...]]


def _chat(row: dict[str, Any]) -> Parsed:
    _refuse_tools(row, "")
    messages = _required(row, "messages")
    turns = _conversation(messages, "messages")
    if turns[-1].role != "assistant":
        raise BadRow("chat.ends_with_assistant", f"messages[{len(turns) - 1}].role", turns[-1].role)
    extra = {f"messages[].{key}" for message in messages for key in message if key not in MESSAGE_FIELDS}
    return turns, (*_unread(row, "messages"), *sorted(map(cut, extra)))


def _prompt_completion(row: dict[str, Any]) -> Parsed:
    turns = tuple(_text_turn(row, field) for field in ("prompt", "completion"))
    return turns, _unread(row, "prompt", "completion")


def _preference(row: dict[str, Any]) -> Parsed:
    if "preferred_output" in row:
        request = _required(row, "input")
        if not isinstance(request, dict):
            raise BadRow("field.type", "input", f"{shown(request)}, expected an object with messages")
        _refuse_tools(request, "input.")
        prompt = _prompt_turns(_required(request, "messages", "input."), "input.messages")
        answers, names = ("preferred_output", "non_preferred_output"), ("input",)
    else:
        prompt = _prompt_turns(_required(row, "prompt"), "prompt")
        answers, names = ("chosen", "rejected"), ("prompt",)
    chosen, rejected = (_answer(_required(row, field), field) for field in answers)
    if chosen.content == rejected.content:
        raise BadRow("preference.equal", answers[1], shown(rejected.content))
    return (*prompt, chosen, rejected), _unread(row, *answers, *names)


def _text(row: dict[str, Any]) -> Parsed:
    return (_text_turn(row, "text"),), _unread(row, "text")


PARSERS: dict[DatasetFormat, Callable[[dict[str, Any]], Parsed]] = {
    DatasetFormat.CHAT: _chat,
    DatasetFormat.PROMPT_COMPLETION: _prompt_completion,
    DatasetFormat.PREFERENCE: _preference,
    DatasetFormat.TEXT: _text,
}


def _prompt_turns(prompt: Any, path: str) -> tuple[Turn, ...]:
    if isinstance(prompt, str):
        return (Turn("prompt", _text_of(prompt, path), path),)
    turns = _conversation(prompt, path)
    if turns[-1].role != "user":
        raise BadRow("preference.prompt_end", f"{path}[{len(turns) - 1}].role", turns[-1].role)
    return turns


def _answer(answer: Any, path: str) -> Turn:
    if isinstance(answer, str):
        return Turn(path, _text_of(answer, path), path)
    if not isinstance(answer, list) or len(answer) != 1:
        raise BadRow("preference.one_answer", path, shown(answer))
    turn = _message(answer[0], f"{path}[0]")
    if turn.role != "assistant":
        raise BadRow("preference.one_answer", f"{path}[0].role", turn.role)
    return Turn(path, turn.content, turn.field)


def _conversation(messages: Any, path: str) -> tuple[Turn, ...]:
    if not isinstance(messages, list):
        raise BadRow("field.type", path, f"{shown(messages)}, expected a list of messages")
    if not messages:
        raise BadRow("chat.no_messages", path, "empty list")
    turns = tuple(_message(message, f"{path}[{index}]") for index, message in enumerate(messages))
    _check_order(turns, path)
    return turns


def _message(message: Any, path: str) -> Turn:
    if not isinstance(message, dict):
        raise BadRow("chat.message_type", path, shown(message))
    _refuse_tools(message, f"{path}.")
    role = _required(message, "role", f"{path}.")
    if not isinstance(role, str) or role not in FOLLOWS:
        raise BadRow("chat.role_unknown", f"{path}.role", shown(role))
    content = _text_of(_required(message, "content", f"{path}."), f"{path}.content", "chat.content_empty")
    return Turn(role, content, f"{path}.content", _weight(message, role, path) == 1)


def _weight(message: dict[str, Any], role: str, path: str) -> int:
    weight = message.get("weight", 1)
    if type(weight) is not int or weight not in (0, 1):
        raise BadRow("chat.weight", f"{path}.weight", shown(weight))
    if "weight" in message and role != "assistant":
        raise BadRow("chat.weight", f"{path}.weight", f"{weight} on a {role} message")
    return weight


def _check_order(turns: tuple[Turn, ...], path: str) -> None:
    previous: str | None = None
    for index, turn in enumerate(turns):
        if previous not in FOLLOWS[turn.role]:
            rule = "chat.system_first" if turn.role == "system" else "chat.role_order"
            raise BadRow(rule, f"{path}[{index}].role", f"{turn.role} after {previous or 'the start'}")
        previous = turn.role


def _refuse_tools(holder: dict[str, Any], path: str) -> None:
    for field in TOOL_FIELDS:
        if holder.get(field):
            raise BadRow("chat.tools", f"{path}{field}", shown(holder[field]))


def _required(holder: dict[str, Any], field: str, path: str = "") -> Any:
    if field not in holder:
        raise BadRow("field.missing", f"{path}{field}", shown(holder))
    return holder[field]


def _text_turn(row: dict[str, Any], field: str) -> Turn:
    return Turn(field, _text_of(_required(row, field), field), field)


def _text_of(value: Any, path: str, empty_rule: str = "field.empty") -> str:
    if not isinstance(value, str):
        raise BadRow("field.type", path, f"{shown(value)}, expected a string")
    if not value.strip():
        raise BadRow(empty_rule, path, shown(value))
    if not _is_encodable(value):
        raise BadRow("text.surrogate", path, shown(value))
    return value


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unread(row: dict[str, Any], *read: str) -> tuple[str, ...]:
    ignored = set(row) - {*read, *TOOL_FIELDS}
    return tuple(sorted(map(cut, ignored)))
