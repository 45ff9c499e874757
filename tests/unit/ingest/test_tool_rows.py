"""Rows with tools: each rule once, what is accepted, and how such rows are compared."""

from typing import Any

import pytest

from schemas.specification import DatasetFormat
from services.ingest.pipeline.examine import Accepted
from services.ingest.pipeline.rules import FIXES
from services.ingest.pipeline.text import row_text
from tests.unit.ingest.builders import assistant, calls, chat, examine, parse, problem_of, system, tool, user
from tests.unit.shared.chat.conversations import CLOCK, WEATHER, call, result, tool_row

PREFERENCE = DatasetFormat.PREFERENCE


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


# rule, field, part of what is shown, row
ROWS: list[tuple[str, str, str, Any]] = [
    ("field.type", "tools", "object with function, type", chat(tools=WEATHER)),
    ("tools.shape", "tools[0]", "'get'", chat(tools=["get"])),
    ("tools.shape", "tools[0]", "expected a field function", chat(tools=[{"type": "function", "name": "get"}])),
    ("tools.shape", "tools[0].function", "'get'", chat(tools=[{"type": "function", "function": "get"}])),
    ("tools.shape", "tools[0].function.parameters", "'city'", chat(tools=[function(name="get", parameters="city")])),
    ("tools.shape", "functions[1].description", "7", chat(functions=[{"name": "a"}, {"name": "b", "description": 7}])),
    ("tools.type", "tools[1].type", "'custom'", chat(tools=[WEATHER, {"type": "custom", "custom": {"name": "c"}}])),
    ("tools.name", "tools[0].function.name", "'get weather'", chat(tools=[function(name="get weather")])),
    ("tools.name", "tools[0].function.name", "null", chat(tools=[function(description="x")])),
    ("tools.duplicate", "tools[1].function.name", "'get_weather'", chat(tools=[WEATHER, WEATHER])),
    ("tools.duplicate", "functions[0].name", "'get_weather'", chat(tools=[WEATHER], functions=[WEATHER["function"]])),
    ("text.surrogate", "tools[0].function", r"\ud800", chat(tools=[function(name="get", description="\ud800")])),
    ("field.type", "parallel_tool_calls", "'no'", tool_row(parallel_tool_calls="no")),
    ("field.type", "messages[1].tool_calls", "object with", chat(user(), assistant(None, tool_calls=call()))),
    ("tools.role", "messages[0].tool_calls", "user", chat(user(tool_calls=[call()]), assistant())),
    ("tools.role", "messages[0].function_call", "user", chat(user(function_call={"name": "a", "arguments": "{}"}), assistant())),
    ("tools.type", "messages[1].tool_calls[0].type", "'custom'", chat(user(), calls({"id": "1", "type": "custom", "custom": {}}))),
    ("tools.shape", "messages[1].tool_calls[0]", "7", chat(user(), calls(7))),
    ("tools.name", "messages[1].tool_calls[0].function.name", "''", chat(user(), calls(call("")))),
    ("tools.id", "messages[1].tool_calls[0].id", "7", chat(user(), calls(call(id=7)))),
    ("tools.id", "messages[1].tool_calls", "'call00001', 'call00001'", chat(user(), calls(call(), call()))),
    ("tools.arguments", "messages[1].tool_calls[0].function.arguments", "column 2", chat(user(), calls(function(name="a", arguments="{city: 1}")))),
    ("tools.arguments", "messages[1].tool_calls[0].function.arguments", "list of 1", chat(user(), calls(function(name="a", arguments="[1]")))),
    ("tools.arguments", "messages[1].tool_calls[0].function.arguments", "2 times", chat(user(), calls(function(name="a", arguments='{"a": 1, "a": 2}')))),
    ("tools.arguments", "messages[1].tool_calls[0].function.arguments", "NaN", chat(user(), calls(function(name="a", arguments='{"a": NaN}')))),
    ("tools.arguments", "messages[1].tool_calls[0].function.arguments", "32 levels", chat(user(), calls(function(name="a", arguments='{"a":' + "[" * 32 + "]" * 32 + "}")))),
    ("tools.arguments", "messages[1].tool_calls[0].function.arguments", "null", chat(user(), calls(function(name="a")))),
    ("tools.arguments", "messages[1].function_call.arguments", "''", chat(user(), assistant(None, function_call={"name": "a", "arguments": ""}))),
    ("text.surrogate", "messages[1].tool_calls[0].function.arguments", r"\ud800", chat(user(), calls(function(name="a", arguments=r'{"a": "\ud800"}')))),
    ("tools.unknown_name", "messages[1].tool_calls[0].function.name", "'get_rain'", tool_row(call("get_rain"))),
    ("tools.parallel", "messages[1].tool_calls", "2 calls", tool_row(call(), call(id="2"), parallel_tool_calls=False)),
    ("tools.unanswered", "messages[1].tool_calls", "'2'", chat(user(), calls(call(), call(id="2")), result(), assistant())),
    ("chat.role_order", "messages[2].role", "assistant after assistant", chat(user(), calls(call()), assistant())),
    ("tools.unanswered", "messages[1].tool_calls", "'call00001'", chat(user(), calls(call()), user(), assistant())),
    ("tools.unasked", "messages[2].tool_call_id", "'other', expected one of 'call00001'", chat(user(), calls(call()), result(to="other"), assistant())),
    ("tools.unasked", "messages[2].tool_call_id", "no tool_call_id", chat(user(), calls(call()), tool(), assistant())),
    ("tools.unasked", "messages[3].tool_call_id", "expected one of none", chat(user(), calls(call()), result(), result(), assistant())),
    ("tools.unasked", "messages[2].tool_call_id", "'call00001', expected one of none", chat(user(), assistant(), result(), assistant())),
    ("chat.role_order", "messages[1].role", "tool after user", chat(user(), result(), assistant())),
    ("field.type", "messages[2].content", "null", chat(user(), calls(call()), result(None), assistant())),
    ("chat.part_type", "messages[2].content[0].type", "'image_url'", chat(user(), calls(call()), result([{"type": "image_url"}]), assistant())),
    ("chat.ends_with_assistant", "messages[2].role", "tool", chat(user(), calls(call()), result())),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "field", "found", "row"), ROWS)
def test_a_bad_row_is_reported_by_field_rule_value_and_fix(
    rule: str, field: str, found: str, row: Any
) -> None:
    problem = problem_of(row)
    assert (problem.field, problem.rule, problem.fix) == (field, rule, FIXES[rule])
    assert found in problem.found


@pytest.mark.parametrize(
    "row",
    [
        tool_row(),
        tool_row(call(), call("get_time", {}, id="call00002"), parallel_tool_calls=True),
        tool_row(parallel_tool_calls=False),
        tool_row(content="Let me look."),
        tool_row(tools=None),
        tool_row(tools=[]),
        chat(user(), calls(call()), result(""), assistant()),
        chat(user(), calls(call()), result([{"type": "text", "text": "a"}]), user(), assistant()),
        chat(user(), calls(call(), weight=0), result(), assistant(weight=1)),
        chat(user(), calls(call())),
        chat(user(), assistant("", tool_calls=[call()])),
        chat(user(), {"role": "assistant", "tool_calls": [call()]}),
        chat(user(), assistant(tool_calls=[]), user(), assistant(tool_calls=None, function_call=None)),
        # As data sets have it: no ids, arguments as an object, names of any tool server.
        chat(user(), calls(function(name="math.sum", arguments={"a": 1})), tool(), assistant()),
        chat(user(), assistant("<tool_call>{}</tool_call>"), tool(), tool(), assistant()),
        chat(
            user(),
            assistant(None, function_call={"name": "a", "arguments": "{}"}),
            {"role": "function", "name": "a", "content": "1"},
            assistant(),
            functions=[{"name": "a"}],
        ),
    ],
)
def test_a_row_with_tools_is_accepted_and_nothing_of_it_is_left_unread(row: Any) -> None:
    (accepted,) = examine(row)
    assert isinstance(accepted, Accepted), accepted
    assert accepted.ignored_fields == ()


@pytest.mark.parametrize(
    ("changed", "is_equal"),
    [
        (tool_row(), True),
        (tool_row(call(id="x")), True),
        (tool_row(call(arguments={"days": 3, "city": "Paris"})), True),
        (tool_row(call(arguments={"city": "Paris", "days": 4})), False),
        (tool_row(call(arguments={"city": "Rome", "days": 3})), False),
        (tool_row(call("get_time")), False),
        (tool_row(call(), call(id="2")), False),
        (tool_row(content="Look:"), False),
        (tool_row(tools=[WEATHER]), False),
        (tool_row(tools=[CLOCK, WEATHER]), False),
    ],
)
def test_rows_that_differ_in_their_calls_or_tools_are_no_duplicates(changed: Any, is_equal: bool) -> None:
    assert (row_text(parse(changed).turns).digest == row_text(parse(tool_row()).turns).digest) is is_equal


def test_calls_end_the_answer_and_definitions_the_system_turn() -> None:
    row = tool_row(content="Look:")
    row["messages"].insert(0, system("Be brief."))
    row["tools"] = [{"type": "function", "function": {"name": "get_weather"}}]
    turns = parse(row).turns
    assert [(turn.role, turn.content) for turn in turns[:3]] == [
        ("system", 'Be brief.\n{"function": {"name": "get_weather"}, "type": "function"}'),
        ("user", "What is the weather in Paris?"),
        ("assistant", 'Look:\n{"arguments": {"city": "Paris", "days": 3}, "name": "get_weather"}'),
    ]


def test_definitions_are_the_system_turn_where_there_is_none() -> None:
    first, *others = parse(tool_row(tools=[WEATHER], messages=[user(), assistant()])).turns
    assert (first.role, first.field) == ("system", "tools")
    assert [turn.role for turn in others] == ["user", "assistant"]


PROMPT = [user(), calls(call()), result()]


@pytest.mark.parametrize(
    "row",
    [
        {
            "input": {"messages": PROMPT, "tools": [WEATHER], "parallel_tool_calls": True},
            "preferred_output": [assistant("Sunny.")],
            "non_preferred_output": [assistant(None, tool_calls=[call()])],
        },
        {
            "prompt": [{"role": "developer", "content": "d"}, user([{"type": "text", "text": "u"}])],
            "tools": [WEATHER],
            "chosen": [assistant(None, tool_calls=[call()])],
            "rejected": [assistant(None, tool_calls=[call(arguments={"city": "Rome"})])],
        },
        {"prompt": "p", "chosen": [assistant([{"type": "text", "text": "a"}])], "rejected": "b"},
    ],
)
def test_preference_rows_hold_the_same_messages(row: Any) -> None:
    (accepted,) = examine(row, expected=PREFERENCE)
    assert isinstance(accepted, Accepted), accepted
    assert accepted.ignored_fields == ()


@pytest.mark.parametrize(
    ("rule", "field", "row"),
    [
        (
            "tools.unknown_name",
            "chosen[0].tool_calls[0].function.name",
            {"prompt": [user()], "tools": [CLOCK], "chosen": [calls(call())], "rejected": "b"},
        ),
        (
            "tools.unanswered",
            "prompt[1].tool_calls",
            {"prompt": [user(), calls(call(), call(id="2")), result()], "chosen": "a", "rejected": "b"},
        ),
        (
            "tools.parallel",
            "preferred_output[0].tool_calls",
            {
                "input": {"messages": [user()], "parallel_tool_calls": False},
                "preferred_output": [calls(call(), call(id="2"))],
                "non_preferred_output": [assistant("b")],
            },
        ),
        (
            "preference.equal",
            "rejected",
            {"prompt": "p", "chosen": [calls(call())], "rejected": [calls(call(id="2"))]},
        ),
    ],
)
def test_preference_rows_keep_the_same_rules(rule: str, field: str, row: Any) -> None:
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    _, problem = examine(good, row, expected=PREFERENCE)
    assert not isinstance(problem, Accepted)
    assert (problem.rule, problem.field) == (rule, field)
