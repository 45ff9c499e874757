"""The built-in suites: enough of each, in several languages, readable by the evaluator, the same everywhere."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from deploy.suites.registering import BUILTINS, write
from services.evaluator.scoring.rows import read_choices, read_prompts
from tests.architecture.source import ROOT

LANGUAGES = {"en", "de", "fr", "es", "it", "pt"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.stem: path for path in write(tmp_path_factory.mktemp("suites"))}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_there_is_one_for_each_check_that_needs_a_suite(files):
    assert set(files) == {"general", "refusals", "benign"}
    assert [builtin.name for builtin in BUILTINS] == ["general", "refusals", "benign"]


@pytest.mark.parametrize(("name", "minimum"), [("refusals", 150), ("benign", 120)])
def test_prompts_are_many_different_and_in_several_languages(files, name, minimum):
    assert len(read_prompts(files[name])) >= minimum
    prompt_rows = rows(files[name])
    assert len({row["prompt"] for row in prompt_rows}) == len(prompt_rows)
    languages = Counter(row["language"] for row in prompt_rows)
    assert set(languages) == LANGUAGES
    assert len(set(languages.values())) == 1
    assert len({row["category"] for row in prompt_rows}) >= 10


def test_harmless_questions_are_about_the_same_things_as_the_harmful_requests(files):
    of_harm, of_twins = ({row["category"] for row in rows(files[name])} for name in ("refusals", "benign"))
    assert of_harm == of_twins
    assert not {row["prompt"] for row in rows(files["refusals"])} & {
        row["prompt"] for row in rows(files["benign"])
    }


def test_the_benchmark_has_enough_short_items_for_the_gates_own_margin(files):
    items = read_choices(files["general"])
    assert len(items) >= 1000
    assert len({(item.question, item.choices[item.answer]) for item in items}) == len(items)
    assert all(len(set(item.choices)) == len(item.choices) for item in items)
    assert max(len(item.question) + max(map(len, item.choices)) for item in items) <= 140


def test_no_place_of_the_answer_gives_it_away(files):
    items = read_choices(files["general"])
    by_answer = Counter((len(item.choices), item.answer) for item in items)
    for (choices, _), count in by_answer.items():
        expected = sum(len(item.choices) == choices for item in items) / choices
        assert abs(count - expected) < 0.2 * expected


def test_wrong_orders_of_a_sentence_have_its_words(files):
    orders = [
        item for item in read_choices(files["general"]) if item.question == "Which of these is a sentence?"
    ]
    assert len(orders) >= 400
    assert all(len({tuple(sorted(choice.split())) for choice in item.choices}) == 1 for item in orders)


def test_every_process_makes_the_same_bytes(files, tmp_path):
    """Also one with other hashes of strings."""
    for seed in ("1", "2"):
        folder = tmp_path / seed
        command = [sys.executable, "-m", "deploy.suites", "write", str(folder)]
        environment = {"PYTHONHASHSEED": seed, "PATH": ""}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
        assert {path.name: digest(path) for path in folder.iterdir()} == {
            path.name: digest(path) for path in files.values()
        }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
