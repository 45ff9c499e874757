"""The generated reference: types in words, and pages that have everything of what they describe."""

import re
from pathlib import Path

import pytest

from deploy.reference import __main__ as reference
from deploy.reference.markdown import fields, type_of
from deploy.reference.pages import command_line, pages
from schemas.topics import TOPICS
from services.evaluator.settings import Settings

DEFINITIONS = {
    "Part": {"properties": {"size": {"type": "integer"}}},
    "Kind": {"enum": ["a", "b"], "type": "string"},
}


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 64.0}, "integer (≥ 1, ≤ 64)"),
        ({"type": "number", "exclusiveMaximum": 0.5}, "number (< 0.5)"),
        ({"type": "string", "pattern": "^a|b$"}, "string (`^a|b$`)"),
        ({"type": "string", "format": "password", "writeOnly": True}, "secret"),
        ({"const": "auto", "type": "string"}, "`auto`"),
        ({"enum": ["spot", 1], "type": "string"}, "`spot` or `1`"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 3}, "list of string (≤ 3 items)"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "map to boolean"),
        ({"$ref": "#/$defs/Part"}, "[Part](#part)"),
        ({"$ref": "#/$defs/Kind"}, "`a` or `b`"),
        ({}, "any"),
    ],
)
def test_a_type_is_described_in_words(field: dict, words: str):
    assert type_of(field, DEFINITIONS) == words


def test_a_cell_keeps_the_table_in_one_piece():
    schema = {"properties": {"a": {"type": "string", "description": "one\nor | two"}}, "required": ["a"]}
    assert fields(schema, {}).splitlines()[2] == "| `a` | string | required | one or \\| two |"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return pages()


def test_every_setting_has_its_variable(texts: dict[str, str]):
    common = re.findall(r"`<SERVICE>_(\w+)`", texts["settings"])
    own = [name.upper() for name in Settings.model_fields if name.upper() not in common]
    assert [name for name in own if f"`EVALUATOR_{name}`" not in texts["settings"]] == ["TIMING", "TLS"]


def test_every_command_has_a_section(texts: dict[str, str]):
    nouns = command_line().commands
    paths = [
        f"## retune {' '.join(path)}\n"
        for noun, command in nouns.items()
        for path in ([(noun, verb) for verb in getattr(command, "commands", {})] or [(noun,)])
    ]
    assert [path for path in paths if path not in texts["cli"]] == []


def test_every_message_and_topic_is_described(texts: dict[str, str]):
    messages = {message.type for topic in TOPICS for message in topic.messages}
    assert [name for name in messages if f"\n## {name}\n" not in texts["messages"]] == []
    assert [topic.name for topic in TOPICS if f"| `{topic.name}` |" not in texts["topics"]] == []


def test_no_page_names_the_home_of_who_made_it(texts: dict[str, str]):
    assert [name for name, text in texts.items() if str(Path.home()) in text] == []


def test_a_stale_page_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    folder = tmp_path / "docs/reference"
    monkeypatch.setattr(reference, "pages", lambda: {"job": "new"})
    monkeypatch.setattr(reference, "FOLDER", folder)
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    assert reference.main(["--check"]) == 1
    assert reference.main([]) == 0
    assert (folder / "job.md").read_text() == "new"
    assert reference.main(["--check"]) == 0
    (folder / "job.md").write_text("old")
    assert reference.main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "out of date: docs/reference/job.md"
