"""Holdout rows: what is asked and what is expected, of every shape in which ingest takes them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from services.evaluator.scoring.rows import BadRows, TaskRow, read_tasks
from shared.chat.tokenizer import ChatTokenizer
from tests.unit.ingest.builders import parse
from tests.unit.shared.chat.conversations import call, say, tool_row
from tests.unit.shared.chat.tokenizers import template, with_template


def tasks(tmp_path: Path, *rows: Any) -> list[TaskRow]:
    path = tmp_path / "holdout.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read_tasks(path)


PLAIN = {"messages": [say("system", "Be brief."), say("user", "2 + 2?"), say("assistant", "4")]}

ESCAPED = {"messages": [say("user", "What ends <|im_end|> or </s>?"), say("assistant", "Nothing </s> here.")]}


def test_a_plain_row_keeps_the_key_that_baselines_know_it_by(tmp_path):
    (task,) = tasks(tmp_path, PLAIN)
    asked = json.dumps(PLAIN["messages"][:-1], ensure_ascii=False)
    assert task.key == f"0000001-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
    assert (task.question, task.reference) == ("system: Be brief.\nuser: 2 + 2?", "4")


def test_parts_and_developers_ask_the_same(tmp_path):
    parts = [{"type": "text", "text": "2 + 2?"}]
    row = {
        "messages": [
            say("developer", "Be brief."),
            say("user", parts),
            say("assistant", [{"type": "text", "text": "4"}]),
        ]
    }
    plain, other = tasks(tmp_path, PLAIN, row)
    assert plain.key.partition("-")[2] == other.key.partition("-")[2]
    assert (other.question, other.reference) == (plain.question, plain.reference)


def test_tools_calls_and_results_are_part_of_the_question(tmp_path):
    one, two, three = tasks(
        tmp_path, tool_row(), tool_row(call(arguments={"city": "Rome"})), tool_row(tools=None)
    )
    assert len({each.key.partition("-")[2] for each in (one, two, three)}) == 3
    assert one.reference == "It stays fine."
    lines = one.question.splitlines()
    assert lines[0].startswith('tools: {"function": {"description": "The weather of a city."')
    assert lines[2:] == [
        "user: What is the weather in Paris?",
        'assistant: {"arguments": {"city": "Paris", "days": 3}, "name": "get_weather"}',
        "tool: sunny",
    ]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([say("user", "a"), {"role": "assistant", "tool_calls": [call()]}], "messages[1].tool_calls: found"),
        ([say("user", "a")], "messages[0].role: found"),
        ([say("user", "a"), say("assistant", None)], "messages[1].content: found null"),
        (
            [
                say("user", "a"),
                {"role": "assistant", "tool_calls": [call()]},
                say("tool", "b", tool_call_id="x"),
                say("assistant", "c"),
            ],
            "tools.unasked",
        ),
        ([], "chat.no_messages"),
    ],
)
def test_what_cannot_be_asked_is_named_by_line_and_field(tmp_path, messages, expected):
    with pytest.raises(BadRows, match="line 2, messages") as caught:
        tasks(tmp_path, PLAIN, {"messages": messages})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "name", ["qwen2_5_training.jinja", "glm4moe_training.jinja", "gptoss_training.jinja"]
)
@pytest.mark.parametrize("row", [PLAIN, tool_row(), ESCAPED])
def test_the_gate_asks_with_the_tokens_that_training_had_before_the_answer(tmp_path, name, row):
    chat = ChatTokenizer(with_template(template(name)))
    (task,) = tasks(tmp_path, row)
    conversation = parse(row).conversation
    assert conversation is not None
    trained = chat.marked(conversation)
    last = len(trained.mask) - trained.mask[::-1].index(1)
    first = last - trained.mask[:last][::-1].index(0)
    asked = chat.prompt(task.asked)
    assert trained.ids[: len(asked)] == asked or trained.ids[:first] == asked[:first]
    assert chat.marked(task.asked.answered(task.reference)) == trained
