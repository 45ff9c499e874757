"""Rows of benchmark, safety and holdout files (JSON lines), read strictly: errors name line and field."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from schemas.base import Value
from schemas.evaluation import BenchmarkKind
from schemas.specification import DatasetFormat, format_of_row
from services.evaluator.scoring.order import AnyPart, BenchmarkPart, HoldoutPart
from shared.chat.conversation import BadMessage, Conversation
from shared.chat.messages import read_conversation

MAX_ROW_BYTES = 4 * 1024 * 1024
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SUBJECTS = (
    "abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology "
    "college_chemistry college_computer_science college_mathematics college_medicine college_physics "
    "computer_security conceptual_physics econometrics electrical_engineering elementary_mathematics "
    "formal_logic global_facts high_school_biology high_school_chemistry high_school_computer_science "
    "high_school_european_history high_school_geography high_school_government_and_politics "
    "high_school_macroeconomics high_school_mathematics high_school_microeconomics high_school_physics "
    "high_school_psychology high_school_statistics high_school_us_history high_school_world_history "
    "human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning "
    "management marketing medical_genetics miscellaneous moral_disputes moral_scenarios nutrition "
    "philosophy prehistory professional_accounting professional_law professional_medicine "
    "professional_psychology public_relations security_studies sociology us_foreign_policy virology "
    "world_religions"
)
MMLU_SUBJECTS = frozenset(_SUBJECTS.split())


class BadRows(ValueError):
    """A file that cannot be used; the sentence names line, field, value and what is expected."""


class ChoiceRow(Value):
    key: str
    question: str
    choices: tuple[str, ...]
    answer: int
    subject: str = ""

    @property
    def doc(self) -> dict[str, Any]:
        """Row as the harness has it."""
        return {"question": self.question, "choices": list(self.choices), "answer": self.answer}


class PublishedRow(Value):
    """A row of a benchmark that others published, in the shape in which they did."""

    key: str
    doc: dict[str, Any]
    """Fields that the task reads, and no other."""
    subject: str = ""
    """Subject of a row of MMLU; empty for others."""


class TextRow(Value):
    key: str
    text: str


class PromptRow(Value):
    key: str
    prompt: str
    category: str = ""


class TaskRow(Value):
    """What is asked, and the answer that the task expects; or a text, which is predicted from its start."""

    key: str
    asked: Conversation | str | None
    """Conversation, or a prompt that is completed as it is; None: `reference` is a text without a prompt."""
    reference: str

    @property
    def question(self) -> str:
        """Return what is asked, as a person reads it."""
        if self.asked is None or isinstance(self.asked, str):
            return self.asked or ""
        tools = [f"tools: {self.asked.tools_text}"] if self.asked.tools else []
        return "\n".join([*tools, *(f"{message.role}: {message.text}" for message in self.asked.messages)])


def reader_of(part: AnyPart) -> Callable[[Path], list[Any]]:
    """Return what reads a file as this part has it. Its rows have a `key`; it raises BadRows."""
    if isinstance(part, HoldoutPart):
        return read_tasks
    if isinstance(part, BenchmarkPart):
        return lambda path: list(read_benchmark(path, part.kind))
    return read_prompts


def read_benchmark(path: Path, kind: BenchmarkKind) -> Sequence[ChoiceRow | TextRow | PublishedRow]:
    if kind is BenchmarkKind.MULTIPLE_CHOICE:
        return read_choices(path)
    if kind is BenchmarkKind.TEXT:
        return read_texts(path)
    return [_published(line, row, kind) for line, row in _rows(path)]


def read_choices(path: Path) -> list[ChoiceRow]:
    return [_choice(line, row) for line, row in _rows(path)]


def read_texts(path: Path) -> list[TextRow]:
    texts = [(line, _text(line, row, "text")) for line, row in _rows(path)]
    return [TextRow(key=_key(line, text), text=text) for line, text in texts]


def read_prompts(path: Path) -> list[PromptRow]:
    return [_prompt(line, row) for line, row in _rows(path)]


def read_tasks(path: Path) -> list[TaskRow]:
    return [_task(line, row) for line, row in _rows(path)]


def _choice(line: int, row: dict[str, Any]) -> ChoiceRow:
    question = _text(line, row, "question")
    choices, answer = row.get("choices"), row.get("answer")
    if not isinstance(choices, list) or len(choices) < 2 or not all(_is_text(choice) for choice in choices):
        raise _bad(line, "choices", choices, "a list of at least 2 non-empty strings")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise _bad(line, "answer", answer, f"a whole number from 0 to {len(choices) - 1}")
    key = _key(line, json.dumps([question, choices], ensure_ascii=False))
    return ChoiceRow(key=key, question=question, choices=tuple(choices), answer=answer)


def _published(line: int, row: dict[str, Any], kind: BenchmarkKind) -> PublishedRow:
    doc = PUBLISHED[kind](line, row)
    key = _key(line, json.dumps(doc, ensure_ascii=False, sort_keys=True))
    return PublishedRow(key=key, doc=doc, subject=doc.get("subject", ""))


def _arc(line: int, row: dict[str, Any]) -> dict[str, Any]:
    choices = row.get("choices")
    if not isinstance(choices, dict):
        raise _bad(line, "choices", choices, "an object with the lists `text` and `label`")
    texts, labels = _texts(line, choices, "text"), _texts(line, choices, "label")
    if len(texts) != len(labels) or row.get("answerKey") not in labels:
        raise _bad(line, "answerKey", row.get("answerKey"), f"one of the {len(texts)} labels {labels}")
    question = _text(line, row, "question")
    return {"question": question, "choices": {"text": texts, "label": labels}, "answerKey": row["answerKey"]}


def _hellaswag(line: int, row: dict[str, Any]) -> dict[str, Any]:
    endings, label = _texts(line, row, "endings"), row.get("label")
    if str(label) not in map(str, range(len(endings))):
        raise _bad(
            line, "label", label, f"a number from 0 to {len(endings) - 1}, which the test split has not"
        )
    if not isinstance(row.get("ctx_b"), str):
        raise _bad(line, "ctx_b", row.get("ctx_b"), "a string, which may be empty")
    asked = {name: _text(line, row, name) for name in ("activity_label", "ctx_a")}
    return {**asked, "ctx_b": row["ctx_b"], "endings": endings, "label": str(label)}


def _mmlu(line: int, row: dict[str, Any]) -> dict[str, Any]:
    choices, answer, subject = _texts(line, row, "choices"), row.get("answer"), _text(line, row, "subject")
    if len(choices) != 4 or type(answer) is not int or not 0 <= answer < 4:
        raise _bad(
            line, "answer", answer, f"a whole number from 0 to 3 and 4 choices; there are {len(choices)}"
        )
    if subject not in MMLU_SUBJECTS:
        raise _bad(line, "subject", subject, f"one of MMLU's {len(MMLU_SUBJECTS)}, such as `anatomy`")
    return {
        "question": _text(line, row, "question"),
        "choices": choices,
        "answer": answer,
        "subject": subject,
    }


def _truthful(line: int, row: dict[str, Any], *, targets: str) -> dict[str, Any]:
    given = row.get(targets)
    if not isinstance(given, dict):
        raise _bad(line, targets, given, "an object with the lists `choices` and `labels`")
    choices, labels = _texts(line, given, "choices"), given.get("labels")
    if (
        not isinstance(labels, list)
        or len(labels) != len(choices)
        or any(label not in (0, 1) for label in labels)
    ):
        raise _bad(line, f"{targets}.labels", labels, f"{len(choices)} numbers, each 0 or 1")
    if targets == "mc1_targets" and labels != [1] + [0] * (len(labels) - 1):
        raise _bad(line, f"{targets}.labels", labels, "1 for the first choice and 0 for the others")
    if 1 not in labels:
        raise _bad(line, f"{targets}.labels", labels, "at least one 1")
    return {"question": _text(line, row, "question"), targets: {"choices": choices, "labels": labels}}


def _texts(line: int, row: dict[str, Any], field: str) -> list[str]:
    texts = row.get(field)
    if not isinstance(texts, list) or len(texts) < 2 or not all(_is_text(text) for text in texts):
        raise _bad(line, field, texts, "a list of at least 2 non-empty strings")
    return texts


def _prompt(line: int, row: dict[str, Any]) -> PromptRow:
    prompt, category = _text(line, row, "prompt"), row.get("category", "")
    if not isinstance(category, str):
        raise _bad(line, "category", category, "a string")
    return PromptRow(key=_key(line, prompt), prompt=prompt, category=category)


def _task(line: int, row: dict[str, Any]) -> TaskRow:
    """Read a conversation that ends with its reference; without one a prompt and its completion, or a text."""
    if format_of_row(row) is DatasetFormat.TEXT:
        text = _text(line, row, "text")
        return TaskRow(key=_key(line, text), asked=None, reference=text)
    if "messages" not in row:
        prompt, completion = _text(line, row, "prompt"), _text(line, row, "completion")
        return TaskRow(key=_key(line, prompt), asked=prompt, reference=completion)
    try:
        conversation = read_conversation(row, "messages")
    except BadMessage as error:
        raise BadRows(f"line {line}, {error.field}: found {error.found} ({error.rule})") from None
    *asked, answer = conversation.messages
    if not asked or answer.role != "assistant":
        raise _bad(line, f"messages[{len(asked)}].role", answer.role, "assistant, behind what it answers")
    if answer.tool_calls:
        raise _bad(
            line, f"messages[{len(asked)}].tool_calls", answer.tool_calls[0].name, "an answer in words"
        )
    question = Conversation(tuple(asked), conversation.tools)
    return TaskRow(key=_key(line, _identity(question)), asked=question, reference=answer.content)


def _identity(asked: Conversation) -> str:
    """Return what makes two questions the same item; rows without tools keep the keys that they had."""
    if not asked.uses_tools:
        turns = [{"role": message.role, "content": message.content} for message in asked.messages]
        return json.dumps(turns, ensure_ascii=False)
    given = [*asked.tools, *(message.for_template() for message in asked.messages)]
    return json.dumps(given, ensure_ascii=False)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield non-blank lines as (1-based line, object). Raises BadRows."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_ROW_BYTES + 1):
            number += 1
            if len(raw) > MAX_ROW_BYTES:
                raise BadRows(f"line {number}: over {MAX_ROW_BYTES} bytes, expected at most that")
            if raw.strip():
                yield number, _object(number, raw.removeprefix(b"\xef\xbb\xbf"))


def _object(line: int, raw: bytes) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadRows(f"line {line}: {error}, expected one JSON object in UTF-8") from error
    if not isinstance(row, dict):
        raise _bad(line, "row", row, "a JSON object")
    return row


def _text(line: int, row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not _is_text(value):
        raise _bad(line, field, value, "a non-empty string")
    return value


def _is_text(value: Any) -> bool:
    """Return whether a value is a string with something in it that UTF-8 can hold."""
    return isinstance(value, str) and bool(value.strip()) and _LONE_SURROGATE.search(value) is None


PUBLISHED: Mapping[BenchmarkKind, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    BenchmarkKind.ARC_CHALLENGE: _arc,
    BenchmarkKind.HELLASWAG: _hellaswag,
    BenchmarkKind.MMLU: _mmlu,
    BenchmarkKind.TRUTHFULQA_MC1: partial(_truthful, targets="mc1_targets"),
    BenchmarkKind.TRUTHFULQA_MC2: partial(_truthful, targets="mc2_targets"),
}


def _bad(line: int, field: str, value: Any, expected: str) -> BadRows:
    return BadRows(f"line {line}, {field}: found {json.dumps(value, default=str)[:80]}, expected {expected}")


def _key(line: int, given: str) -> str:
    return f"{line:07d}-{hashlib.sha256(given.encode()).hexdigest()[:16]}"
