"""A sweep as a file: written, read again, and the line that an error is about."""

import subprocess
import tomllib

import pytest
from pydantic import ValidationError

from services.gateway.page import snippets, sweep_files
from services.gateway.requests import CreateSweep
from shared.errors import Refused

HOSTILE = 'it\'s "$(touch x)" `y` \\ %s {{7*7}}\nnext\x7f \u2028 [job]'
TEXT = """name = "rates"  # a = b
num_trials = "many"

[job]
model = "tiny"
training_file = "train.jsonl"
[job.retune]
recipe = { method = "lora" }
[parameters."lora.rank"]
choices = [8]
[parameters.learning_rate]
low = 1
high = 0
"""


def test_the_example_is_a_sweep_that_the_route_takes():
    body = sweep_files.example("tiny", "file-a", "file-b")
    text = sweep_files.written(body)
    assert sweep_files.read(text) == body
    sweep = CreateSweep.model_validate(body)
    assert (sweep.job.model, sweep.num_trials) == ("tiny", 20)
    assert 'algorithm = "tpe"  # or "random", or "grid" for every combination\n' in text
    assert '[parameters."lora.rank"]\nchoices = [8, 16, 32]\n' in text
    assert "checkpoint = { every_steps = 50, every_seconds = 3600 }\n" in text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"a": {}, "b": {"c": {"d": {"e": {"f": [1, {"g": 2.5}]}}}}},
        {HOSTILE: HOSTILE, "list": [HOSTILE, [True, []]], "t": {HOSTILE: {"x": -1e-05}}},
        {"table": {"inner": {"z": 1}, "value": False}, "last": 1e300},
    ],
)
def test_what_is_written_is_read_as_it_was(body):
    assert tomllib.loads(sweep_files.written(body)) == body


@pytest.mark.parametrize(
    ("param", "line"),
    [
        ("num_trials", 2),
        ("job", 4),
        ("job.training_file", 6),
        ("job.validation_file", 4),
        ("job.retune.recipe.method", 8),
        ("parameters.lora.rank", 9),
        ("parameters.lora.rank.choices.choices.0", 10),
        ("parameters.learning_rate.low", 12),
        ("parameters.unknown", 9),
        ("algorithm", None),
        ("", None),
    ],
)
def test_a_parameter_has_a_line(param, line):
    assert sweep_files.line_of(TEXT, param) == line


def test_every_wrong_field_is_named_at_its_line():
    with pytest.raises(ValidationError) as caught:
        CreateSweep.model_validate(tomllib.loads(TEXT))
    problems = sweep_files.problems_of(TEXT, caught.value)
    assert [each.line for each in problems] == [11, 2]
    assert problems[0].message.startswith(
        "parameters.learning_rate: found low 1 and high 0, expected low below"
    )
    assert problems[1].message.startswith("num_trials: found 'many': ")


def test_a_value_that_may_be_several_things_is_one_problem():
    text = '[parameters.learning_rate]\nlow = "a"\nhigh = 1\n[job]\nmodel = "m"\ntraining_file = "f"\n'
    with pytest.raises(ValidationError) as caught:
        CreateSweep.model_validate(tomllib.loads(text))
    (problem,) = sweep_files.problems_of(text, caught.value)
    assert (problem.line, ", or: " in problem.message) == (2, True)
    assert problem.message.startswith("parameters.learning_rate.low: found 'a': ")


@pytest.mark.parametrize(("text", "line"), [("a = 1\nb = \n", 2), ("a = [\n", None), ("[" * 50_000, 1)])
def test_what_is_no_toml_is_refused_at_its_line(text, line):
    with pytest.raises(Refused) as caught:
        sweep_files.read(text)
    problem = sweep_files.problem_of(text, caught.value.param, caught.value.message)
    assert problem.message.startswith("not TOML: ")
    assert problem.line == line


def test_deep_nesting_is_refused():
    with pytest.raises(Refused):
        sweep_files.read("a = " + "[" * 50_000)


def test_files_that_are_paths_are_seen():
    body = {
        "job": {"training_file": "train.jsonl", "validation_file": "file-b", "retune": {"holdout_file": 3}}
    }
    assert [*sweep_files.files_that_are_paths(body)] == [("job.training_file", "train.jsonl")]


def test_the_command_writes_the_text_as_it_is(tmp_path):
    text = "name = 'END'  # $(touch x) `y` \\\n"
    command, _, last = snippets.as_sweep_command(text).rpartition("\n")
    assert last == "retune sweeps create sweep.toml"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert [each.name for each in tmp_path.iterdir()] == ["sweep.toml"]
    assert (tmp_path / "sweep.toml").read_text() == text
