"""Every released template does what docs/chat-templates.md says."""

from functools import cache
from pathlib import Path

import pytest

from bench.ingest.templates import WRITTEN, expected, line, targets, tokenizer_for, verdict
from shared.chat.probes import PROBES, problems
from shared.chat.rendering import Renderer
from shared.chat.special import SpecialTokens
from shared.chat.tokenizer import ChatTokenizer
from tests.unit.shared.chat.tokenizers import released_names, template, with_template

DOCS = Path(__file__).parents[3] / "docs" / "chat-templates.md"
WITHOUT_END = frozenset({"glm4moe"})
"""Templates that write no token behind an answer."""


@cache
def documented() -> dict[str, str]:
    lines = [each for each in DOCS.read_text().splitlines() if each.startswith("| ")]
    return {each.split(" | ")[0].removeprefix("| "): each for each in lines}


def test_at_least_40_released_templates_are_looked_at() -> None:
    assert len(released_names()) >= 40
    assert set(released_names()) == WRITTEN.keys()


@pytest.mark.parametrize("name", released_names())
def test_the_table_says_what_the_template_does(name: str) -> None:
    assert documented()[name] == line(verdict(name))


@pytest.mark.parametrize("kind", ["one turn", "several turns"])
@pytest.mark.parametrize("name", sorted(set(released_names()) - WITHOUT_END))
def test_the_targets_are_the_answers_with_their_end(name: str, kind: str) -> None:
    assert targets(name, kind) == expected(name, kind)


@pytest.mark.parametrize("name", released_names())
def test_the_tokens_are_those_of_the_released_template(name: str) -> None:
    tokenizer = tokenizer_for(name)
    renderer = Renderer(tokenizer, SpecialTokens(tokenizer))
    for kind in ("one turn", "several turns", "code", "unicode", "white space"):
        conversation = PROBES[kind]
        whole = tokenizer(renderer.plain(conversation), add_special_tokens=False)["input_ids"]
        assert ChatTokenizer(tokenizer).marked(conversation).ids == whole


def test_a_model_that_can_be_trained_on_all_has_no_problem() -> None:
    tokenizer = with_template(template("qwen2_5.jinja"))
    assert problems(tokenizer, frozenset(tokenizer.convert_tokens_to_ids(["<|im_end|>"]))) == {}


def test_each_kind_that_cannot_be_trained_on_has_its_reason() -> None:
    tokenizer = with_template(template("gemma.jinja"))
    reasons = problems(tokenizer, frozenset(tokenizer.convert_tokens_to_ids(["<end_of_turn>"])))
    assert {kind: each.found for kind, each in reasons.items()} == {
        "system": "System role not supported",
        "tools": "Conversation roles must alternate user/assistant/user/assistant/...",
    }
    assert problems(tokenizer, frozenset()).keys() == PROBES.keys()
