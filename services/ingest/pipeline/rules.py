"""Every rule that a row must keep: its id and how to mend a row that breaks it."""

import json
from typing import Any

from schemas.dataset import FileRole, RowProblem

RULES_VERSION = 3
"""Rises with every change of a rule, of a normalisation or of the layout: it is part of a version's id."""

SHOWN_CHARACTERS = 80

FIXES: dict[str, str] = {
    "json.too_large": "split the row, or raise policy.max_row_bytes",
    "json.utf8": "save the file as UTF-8",
    "json.invalid": "write one complete JSON object on each line",
    "json.depth": "nest objects and lists at most 32 levels deep",
    "json.not_object": "make the line a JSON object, for example {'messages': [...]}",
    "json.duplicate_key": "keep one of the equal keys",
    "format.unknown": "use messages; prompt and completion; prompt, chosen and rejected; or text",
    "format.mixed": "give all rows of a file the same format, or upload two files",
    "field.missing": "add the field",
    "field.type": "write the field with the expected type",
    "field.empty": "write text that is not only white space, or remove the row",
    "text.surrogate": r"replace the lone surrogate \ud800-\udfff by the character that was meant",
    "text.special_token": "remove the special token from the text; the template adds it where it belongs",
    "chat.no_messages": "put at least one user and one assistant message into the list",
    "chat.message_type": "make each message an object with role and content",
    "chat.role_unknown": "use one of the roles system, user, assistant, tool",
    "chat.system_first": "move the system message to the front; only one is allowed",
    "chat.role_order": "put a user (or tool) turn before each assistant turn, and a tool turn only after one",
    "chat.ends_with_assistant": "end the conversation with the assistant's answer, or remove the last turns",
    "chat.content_empty": "write the message's text, or remove the message",
    "chat.weight": "use the integer 0 or 1, on assistant messages only",
    "chat.tools": "remove tools and tool calls: training on them is not available yet",
    "preference.prompt_end": "end the prompt with a user turn",
    "preference.one_answer": "give exactly one assistant message as the answer",
    "preference.equal": "give two different answers, or remove the row",
    "template.render": "rewrite the row as the base model's chat template asks",
    "tokens.over_length": "shorten the row, raise policy.window_tokens or set policy.over_length to truncate",
    "tokens.no_loss_token": "keep at least one assistant token with weight 1 within the window",
    "tokens.weight": "remove weight: the base model's template does not mark each assistant turn by itself",
}


class BadRow(Exception):
    """A row breaks a rule. `found` is the offending value or a sentence about it, already short."""

    def __init__(self, rule: str, field: str, found: str) -> None:
        assert rule in FIXES, f"rule {rule} is not in the table"
        super().__init__(f"{rule} at {field}: {found}")
        self.rule = rule
        self.field = field
        self.found = found

    def at(self, file: FileRole, line: int) -> RowProblem:
        return RowProblem(
            file=file, line=line, field=self.field, rule=self.rule, found=self.found, fix=FIXES[self.rule]
        )


class FileRefused(Exception):
    """The file as a whole cannot become a dataset. `code` is a stable word for machines."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def shown(value: Any) -> str:
    """A value as people see it in a report: its type where it is large, cut where it is long."""
    if isinstance(value, dict):
        return cut(f"object with {', '.join(sorted(map(str, list(value)[:10]))) or 'no field'}")
    if isinstance(value, list):
        return f"list of {len(value)}"
    if isinstance(value, str):
        return cut(repr(value[: SHOWN_CHARACTERS + 1]))
    return cut(json.dumps(value))


def cut(text: str) -> str:
    printable = text.encode(errors="backslashreplace").decode()
    return printable if len(printable) <= SHOWN_CHARACTERS else f"{printable[: SHOWN_CHARACTERS - 1]}…"
