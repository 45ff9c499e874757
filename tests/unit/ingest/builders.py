"""Rows and files of one line's worth of difference."""

import io
import json
from typing import Any

from schemas.dataset import RowProblem
from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline.boilerplate import Common
from services.ingest.pipeline.examine import Accepted, Examined, Examiner
from services.ingest.pipeline.formats import Example, Turn, parse_example
from services.ingest.pipeline.lines import LineReader
from services.ingest.pipeline.text import NO_KEYS
from services.ingest.pipeline.workers import in_order

CHAT = DatasetFormat.CHAT
MAX_ROW_BYTES = 4096
NOTHING_COMMON = Common(boilerplate=NO_KEYS, repeated=NO_KEYS)


def user(content: Any = "What is a heap?", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any = "A tree kept in an array.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def calls(*listed: Any, **more: Any) -> dict[str, Any]:
    return assistant(None, tool_calls=list(listed), **more)


def system(content: Any = "Answer briefly.") -> dict[str, Any]:
    return {"role": "system", "content": content}


def tool(content: Any = "42") -> dict[str, Any]:
    return {"role": "tool", "content": content}


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages or (user(), assistant())), **more}


def examine(
    *rows: Any, expected: DatasetFormat | None = CHAT, max_row_bytes: int = MAX_ROW_BYTES, **options: Any
) -> list[Examined]:
    """Each row is an object, or the bytes of a line."""
    lines = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    reader = LineReader(
        io.BytesIO(b"\n".join(lines)), name="training", max_row_bytes=max_row_bytes, max_rows=1000
    )
    policy = DatasetPolicy(max_row_bytes=max_row_bytes)
    examiner = Examiner("training", expected, policy, NOTHING_COMMON, **options)
    return list(in_order(examiner, reader, workers=1))


def parse(row: dict[str, Any], *, expected: DatasetFormat = CHAT) -> Example:
    return parse_example(row, expected=expected, line=1)


def problem_of(row: Any, **options: Any) -> RowProblem:
    """The problem of a bad row that stands on line 2, behind a good one."""
    good, bad = examine(chat(), row, **options)
    assert isinstance(good, Accepted), good
    assert isinstance(bad, RowProblem), bad
    return bad


def an_example(*contents: str, line: int = 1) -> Example:
    """A chat of user and assistant turns in turn."""
    return Example(
        line,
        tuple(
            Turn(("user", "assistant")[index % 2], content, f"messages[{index}].content")
            for index, content in enumerate(contents)
        ),
    )
