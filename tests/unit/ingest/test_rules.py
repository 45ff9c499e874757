"""One bad row for each rule; the report names line, field, rule, what was found, and the fix."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from schemas.specification import DatasetFormat
from services.ingest.pipeline.examine import Accepted
from services.ingest.pipeline.rules import FIXES
from shared.chat import conversation
from shared.strict_json import SHOWN_CHARACTERS, shown
from tests.unit.ingest.builders import assistant, chat, examine, problem_of, system, tool, user

PROMPT = DatasetFormat.PROMPT_COMPLETION
PREFERENCE = DatasetFormat.PREFERENCE
TEXT = DatasetFormat.TEXT

GOOD = {
    PROMPT: {"prompt": "2 + 2 =", "completion": " 4"},
    PREFERENCE: {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"},
    TEXT: {"text": "Once upon a time."},
}
OPENAI_PREFERENCE = {
    "input": {"messages": [user()], "tools": []},
    "preferred_output": [assistant("a")],
    "non_preferred_output": [assistant("b")],
}

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def text_part(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


# rule, field, part of what is shown, row
CHAT_ROWS: list[tuple[str, str, str, Any]] = [
    ("json.invalid", "row", "column 15", b'{"messages": [}'),
    ("json.invalid", "row", "NaN", b'{"messages": NaN}'),
    ("json.invalid", "row", "4,300", b'{"messages": ' + b"9" * 4000 + b"9" * 301 + b"}"),
    ("json.utf8", "row", "0xff at byte 15", b'{"messages": "\xff"}'),
    ("json.not_object", "row", "list of 2", b"[1, 2]"),
    ("json.not_object", "row", "true", b"true"),
    ("json.duplicate_key", "messages", "2 times", b'{"messages": [], "messages": []}'),
    ("json.depth", "row", "32", {"messages": [user(), assistant()], "deep": json.loads("[" * 32 + "]" * 32)}),
    ("json.depth", "row", "32 levels", b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}"),
    ("format.mixed", "row", "prompt_completion in a file of chat", GOOD[PROMPT]),
    ("field.missing", "messages", "object with id", {"id": 1}),
    ("field.type", "messages", "'hello', expected a list", {"messages": "hello"}),
    ("chat.no_messages", "messages", "empty", {"messages": []}),
    ("chat.message_type", "messages[1]", "'hi'", chat(user(), "hi")),
    ("field.missing", "messages[0].role", "content", chat({"content": "x"})),
    ("field.missing", "messages[1].content", "role", chat(user(), {"role": "assistant"})),
    ("chat.role_unknown", "messages[0].role", "'human'", chat({"role": "human", "content": "x"})),
    ("chat.role_unknown", "messages[0].role", "7", chat({"role": 7, "content": "x"})),
    ("chat.system_first", "messages[1].role", "system after user", chat(user(), system(), assistant())),
    (
        "chat.system_first",
        "messages[1].role",
        "system after system",
        chat(system(), system(), user(), assistant()),
    ),
    (
        "chat.role_order",
        "messages[0].role",
        "assistant after the start",
        chat(assistant(), user(), assistant()),
    ),
    ("chat.role_order", "messages[1].role", "assistant after system", chat(system(), assistant())),
    (
        "chat.role_order",
        "messages[2].role",
        "assistant after assistant",
        chat(user(), assistant(), assistant()),
    ),
    ("chat.role_order", "messages[1].role", "tool after user", chat(user(), tool(), assistant())),
    ("chat.ends_with_assistant", "messages[2].role", "user", chat(user(), assistant(), user())),
    ("chat.content_empty", "messages[1].content", r"' \n'", chat(user(), assistant(" \n"))),
    ("field.type", "messages[1].content", "null, expected a string", chat(user(), assistant(None))),
    ("field.missing", "messages[0].content[0].text", "type", chat(user([{"type": "text"}]), assistant())),
    (
        "field.type",
        "messages[0].content[0].text",
        "7",
        chat(user([{"type": "text", "text": 7}]), assistant()),
    ),
    ("field.type", "messages[0].content[1]", "'b'", chat(user([text_part("a"), "b"]), assistant())),
    (
        "chat.part_type",
        "messages[0].content[1].type",
        "'image_url'",
        chat(user([text_part("a"), IMAGE]), assistant()),
    ),
    ("chat.part_type", "messages[0].content[0].type", "'input_audio'", chat(user([AUDIO]), assistant())),
    (
        "chat.part_type",
        "messages[0].content[0].type",
        "'file'",
        chat(user([{"type": "file", "file": {}}]), assistant()),
    ),
    (
        "chat.part_type",
        "messages[0].content[0].type",
        "'refusal'",
        chat(user([refusal_part("no")]), assistant()),
    ),
    ("chat.part_type", "messages[1].audio", "audio", chat(user(), assistant(None, audio={"id": "a"}))),
    ("chat.content_empty", "messages[0].content", "''", chat(user([]), assistant())),
    (
        "chat.content_empty",
        "messages[0].content",
        r"'\n'",
        chat(user([text_part(""), text_part("")]), assistant()),
    ),
    ("chat.refusal", "messages[1].refusal", "'no'", chat(user(), assistant("yes", refusal="no"))),
    ("field.type", "messages[0].name", "7", chat(user(name=7), assistant())),
    ("text.surrogate", "messages[0].content", r"\ud800", chat(user([text_part("a\ud800")]), assistant())),
    ("text.surrogate", "messages[0].content", r"\ud800", chat(user("a\ud800b"), assistant())),
    ("chat.weight", "messages[1].weight", "2", chat(user(), assistant(weight=2))),
    ("chat.weight", "messages[1].weight", "true", chat(user(), assistant(weight=True))),
    ("chat.weight", "messages[1].weight", "0.5", chat(user(), assistant(weight=0.5))),
    ("chat.weight", "messages[0].weight", "0 on a user message", chat(user(weight=0), assistant())),
]

OTHER_ROWS: list[tuple[DatasetFormat, str, str, str, Any]] = [
    (PROMPT, "field.missing", "completion", "prompt", {"prompt": "x"}),
    (PROMPT, "field.empty", "completion", "''", {"prompt": "x", "completion": ""}),
    (PROMPT, "field.type", "prompt", "3", {"prompt": 3, "completion": "x"}),
    (PREFERENCE, "field.missing", "rejected", "chosen", {"prompt": "x", "chosen": "y"}),
    (PREFERENCE, "preference.equal", "rejected", "'y'", {"prompt": "x", "chosen": "y", "rejected": "y"}),
    (
        PREFERENCE,
        "preference.prompt_end",
        "prompt[1].role",
        "assistant",
        {"prompt": [user(), assistant()], "chosen": "a", "rejected": "b"},
    ),
    (
        PREFERENCE,
        "preference.one_answer",
        "chosen",
        "list of 2",
        {"prompt": "x", "chosen": [assistant(), assistant()], "rejected": "b"},
    ),
    (
        PREFERENCE,
        "preference.one_answer",
        "rejected[0].role",
        "user",
        {"prompt": "x", "chosen": "a", "rejected": [user()]},
    ),
    (PREFERENCE, "field.missing", "input", "preferred", {"preferred_output": [], "non_preferred_output": []}),
    (PREFERENCE, "field.type", "input", "'x'", OPENAI_PREFERENCE | {"input": "x"}),
    (PREFERENCE, "tools.shape", "input.tools[0]", "1", OPENAI_PREFERENCE | {"input": {"tools": [1]}}),
    (TEXT, "field.empty", "text", r"'\t'", {"text": "\t"}),
    (TEXT, "field.type", "text", "object with a", {"text": {"a": 1}}),
]


@pytest.mark.parametrize(("rule", "field", "found", "row"), CHAT_ROWS)
def test_a_bad_chat_row_is_reported_by_line_field_rule_value_and_fix(
    rule: str, field: str, found: str, row: Any
) -> None:
    problem = problem_of(row, max_row_bytes=100_000)
    assert (problem.line, problem.field, problem.rule, problem.fix) == (2, field, rule, FIXES[rule])
    assert found in problem.found
    assert len(problem.found) <= SHOWN_CHARACTERS + len(", expected a list of messages")


@pytest.mark.parametrize(("expected", "rule", "field", "found", "row"), OTHER_ROWS)
def test_a_bad_row_of_another_format_is_reported_alike(
    expected: DatasetFormat, rule: str, field: str, found: str, row: Any
) -> None:
    good, problem = examine(GOOD[expected], row, expected=expected)
    assert isinstance(good, Accepted)
    assert (problem.line, problem.field, problem.rule, problem.fix) == (2, field, rule, FIXES[rule])
    assert found in problem.found


def test_every_row_of_a_file_without_a_known_format_is_reported() -> None:
    (problem,) = examine({"question": "x", "answer": "y"}, expected=None)
    assert (problem.rule, problem.found) == ("format.unknown", "object with answer, question")


@pytest.mark.parametrize(
    "messages",
    [
        (user(), assistant()),
        (system(), user(), assistant()),
        (user(), user(), assistant()),
        (user(), assistant(), tool(), assistant()),
        (user(), assistant(), user(), assistant()),
        (user(), assistant(weight=0), user(), assistant(weight=1)),
    ],
)
def test_a_conversation_in_order_is_accepted(messages: tuple[dict[str, Any], ...]) -> None:
    (row,) = examine(chat(*messages))
    assert isinstance(row, Accepted)


@pytest.mark.parametrize(
    "row",
    [
        GOOD[PREFERENCE],
        OPENAI_PREFERENCE,
        {"prompt": [user()], "chosen": [assistant("a")], "rejected": [assistant("b")]},
    ],
)
def test_both_shapes_of_preference_rows_are_read(row: Any) -> None:
    (accepted,) = examine(row, expected=PREFERENCE)
    assert isinstance(accepted, Accepted)


def test_fields_that_no_rule_reads_are_named_and_not_an_error() -> None:
    (row,) = examine(chat(user(mood="good"), assistant(), id=7, tools=[]))
    assert isinstance(row, Accepted)
    assert row.ignored_fields == ("id", "messages[].mood")


def test_depth_32_is_the_last_that_is_accepted() -> None:
    (row,) = examine(chat(user(), assistant(), deep=json.loads("[" * 31 + "]" * 31)))
    assert isinstance(row, Accepted)


def test_text_in_any_script_is_accepted() -> None:
    (row,) = examine(chat(user("¿Qué? 你好 🎉 \u0000"), assistant("Ω")))
    assert isinstance(row, Accepted)


@pytest.mark.parametrize("value", ["x" * 10_000, ["x"] * 10_000, {"k" * 500: 1}, 10**400, "\ud800" * 99])
def test_a_shown_value_is_short_and_can_be_written_as_utf8(value: Any) -> None:
    assert 0 < len(shown(value).encode()) <= SHOWN_CHARACTERS + 2


def test_every_rule_of_conversations_is_in_the_table_that_says_how_to_fix_it() -> None:
    rules = re.compile(r'"((?:chat|field|template|text|tools)\.[a-z_]+)"')
    folder = Path(conversation.__file__).parent
    rule_names = {rule for path in folder.glob("*.py") for rule in rules.findall(path.read_text())}
    assert len(rule_names) > 20
    assert rule_names <= FIXES.keys()
