"""The four row formats: which one a row has, and the row as turns once it keeps the format's rules."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from schemas.specification import DatasetFormat, format_of_row
from services.ingest.pipeline.rules import BadRow
from shared.chat.conversation import BadMessage, ChatMessage, Conversation
from shared.chat.messages import (
    TOOL_FIELDS,
    read_answer,
    read_conversation,
    required,
    text_of,
    unread_fields,
)
from shared.strict_json import cut, shown

SIDES = ("chosen", "rejected")


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece of a row's text as it is compared. Roles outside chat: prompt, completion, chosen, rejected, text.

    The content of an assistant turn ends with its tool calls, each a line of JSON with sorted keys, so that two rows
    with different calls differ. The definitions of tools end the system turn, or are one where there is none.
    """

    role: str
    content: str
    field: str
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class Example:
    line: int
    turns: tuple[Turn, ...]
    ignored_fields: tuple[str, ...] = ()
    conversation: Conversation | None = None
    """Conversation that the template renders: a chat row's, or that of a preference row of messages with the chosen
    answer. None for rows of text."""
    rejected: Conversation | None = None
    """Conversation of a preference row of messages with the rejected answer."""

    @property
    def sides(self) -> tuple["Example", "Example"]:
        """Return a preference row as two rows of one answer each, the chosen one first."""
        if self.conversation is not None and self.rejected is not None:
            return self._of(self.conversation), self._of(self.rejected)
        prompt, *answers = self.turns
        chosen, rejected = (
            replace(self, turns=(prompt, replace(answer, role="completion"))) for answer in answers
        )
        return chosen, rejected

    def _of(self, conversation: Conversation) -> "Example":
        return replace(self, turns=turns_of(conversation), conversation=conversation, rejected=None)


@dataclass(frozen=True, slots=True)
class Parsed:
    turns: tuple[Turn, ...]
    ignored_fields: tuple[str, ...]
    conversation: Conversation | None = None
    rejected: Conversation | None = None


def parse_example(row: dict[str, Any], *, expected: DatasetFormat | None, line: int) -> Example:
    """Return the row as turns; no format is expected where no row of the file has one. Raises BadRow."""
    row_format = format_of_row(row)
    if expected is None:
        raise BadRow("format.unknown", "row", shown(row))
    if row_format is not None and row_format is not expected:
        raise BadRow("format.mixed", "row", f"{row_format} in a file of {expected}")
    try:
        parsed = PARSERS[expected](row)
    except BadMessage as error:
        raise BadRow(error.rule, error.field, error.found) from None
    return Example(line, parsed.turns, parsed.ignored_fields, parsed.conversation, parsed.rejected)


def turns_of(conversation: Conversation) -> tuple[Turn, ...]:
    """Return the conversation as turns, in the form in which rows are compared."""
    turns = [Turn(each.role, each.text, each.field, each.is_trained) for each in conversation.messages]
    if conversation.tools:
        first = turns.pop(0) if turns[0].role == "system" else Turn("system", "", "tools")
        text = "\n".join(filter(None, (first.content, conversation.tools_text)))
        turns.insert(0, Turn("system", text, first.field))
    return tuple(turns)


def _chat(row: dict[str, Any]) -> Parsed:
    conversation = read_conversation(row, "messages")
    last = conversation.messages[-1]
    if last.role != "assistant":
        field = f"messages[{len(conversation.messages) - 1}].role"
        raise BadMessage("chat.ends_with_assistant", field, last.role)
    extra = [cut(f"messages[].{key}") for key in unread_fields(row["messages"])]
    ignored = (*_unread(row, "messages", *TOOL_FIELDS), *extra)
    return Parsed(turns_of(conversation), ignored, conversation)


def _prompt_completion(row: dict[str, Any]) -> Parsed:
    turns = tuple(_text_turn(row, field) for field in ("prompt", "completion"))
    return Parsed(turns, _unread(row, "prompt", "completion"))


def _preference(row: dict[str, Any]) -> Parsed:
    if "preferred_output" in row:
        request = required(row, "input")
        if not isinstance(request, dict):
            raise BadMessage("field.type", "input", f"{shown(request)}, expected an object with messages")
        asked: Conversation | None = _asked(request, "messages", "input.")
        fields, read = ("preferred_output", "non_preferred_output"), {"input"}
    else:
        request, prompt = row, required(row, "prompt")
        asked = None if isinstance(prompt, str) else _asked(row, "prompt")
        fields, read = ("chosen", "rejected"), {"prompt", *TOOL_FIELDS}
    answers = [_answer(row, field, request) for field in fields]
    if answers[0].text == answers[1].text:
        raise BadMessage("preference.equal", fields[1], shown(answers[1].text))
    ignored = _unread(row, *fields, *read)
    sides = [Turn(role, each.text, each.field) for role, each in zip(SIDES, answers, strict=True)]
    if asked is None:
        _require_text(answers)
        return Parsed((_text_turn(row, "prompt"), *sides), ignored)
    return Parsed((*turns_of(asked), *sides), ignored, *(asked.answered(answer) for answer in answers))


def _text(row: dict[str, Any]) -> Parsed:
    return Parsed((_text_turn(row, "text"),), _unread(row, "text"))


PARSERS: dict[DatasetFormat, Callable[[dict[str, Any]], Parsed]] = {
    DatasetFormat.CHAT: _chat,
    DatasetFormat.PROMPT_COMPLETION: _prompt_completion,
    DatasetFormat.PREFERENCE: _preference,
    DatasetFormat.TEXT: _text,
}


def _asked(holder: Mapping[str, Any], field: str, prefix: str = "") -> Conversation:
    """Read a conversation that waits for an answer. Raises BadMessage."""
    conversation = read_conversation(holder, field, prefix)
    last = conversation.messages[-1].role
    if last not in ("user", "tool"):
        path = f"{prefix}{field}[{len(conversation.messages) - 1}].role"
        raise BadMessage("preference.prompt_end", path, last)
    return conversation


def _answer(row: Mapping[str, Any], field: str, request: Mapping[str, Any]) -> ChatMessage:
    value = required(row, field)
    if isinstance(value, str):
        return ChatMessage("assistant", text_of(value, field), field)
    if not isinstance(value, list) or len(value) != 1:
        raise BadMessage("preference.one_answer", field, shown(value))
    message = read_answer(value[0], f"{field}[0]", request)
    if message.role != "assistant":
        raise BadMessage("preference.one_answer", f"{field}[0].role", message.role)
    return message


def _require_text(answers: Iterable[ChatMessage]) -> None:
    """Refuse calls behind a prompt that is a text: it is completed without the template, which alone writes calls."""
    for answer in answers:
        if answer.tool_calls:
            call = f"a call of {answer.tool_calls[0].name} behind a prompt that is a text"
            raise BadMessage("preference.call", answer.field, call)


def _text_turn(row: Mapping[str, Any], field: str) -> Turn:
    return Turn(field, text_of(required(row, field), field), field)


def _unread(row: Mapping[str, Any], *read: str) -> tuple[str, ...]:
    return tuple(sorted(map(cut, set(row) - set(read))))
