"""`retune sweeps`: what becomes of a file, and what is printed."""

import json

from tests.unit.cli.commandline import lines, paged

TOML = """
num_trials = 4
algorithm = "grid"

[job]
model = "tiny"
training_file = "train.jsonl"
validation_file = "file-9"

[parameters.learning_rate]
choices = [1e-4, 2e-4]
"""
TRIALS = [
    {"number": 0, "state": "completed", "valid_loss": 2.0, "parameters": {"learning_rate": 1e-4},
     "cost_usd": "0.25", "job_id": "ftjob-1", "message": ""},
    {"number": 1, "state": "completed", "valid_loss": 1.5, "parameters": {"learning_rate": 2e-4},
     "cost_usd": "0.25", "job_id": "ftjob-2", "message": ""},
    {"number": 2, "state": "pruned", "valid_loss": 1.0, "parameters": {"learning_rate": 3e-4},
     "cost_usd": "0.10", "job_id": "ftjob-3", "message": "at 30 %"},
]  # fmt: skip
SWEEP = {
    "id": "sweep-1",
    "name": "rates",
    "state": "running",
    "search": {"num_trials": 4, "parameters": {"learning_rate": {}}},
    "trials_by_state": {"completed": 2, "pruned": 1},
    "best": TRIALS[1],
    "gate": "",
    "cost_usd": "0.60",
    "trials": TRIALS,
}


def test_paths_beside_the_file_are_uploaded(retune, tmp_path):
    (tmp_path / "train.jsonl").write_text("{}\n")
    (tmp_path / "sweep.toml").write_text(TOML)
    retune.answers = {"POST /files": {"id": "file-1"}, "POST /sweeps": SWEEP}
    code, out, _ = retune.run("sweeps", "create", str(tmp_path / "sweep.toml"))
    assert (code, out.strip()) == (0, "sweep-1")
    body = json.loads(retune.requests[-1].content)
    assert body["job"] == {"model": "tiny", "training_file": "file-1", "validation_file": "file-9"}
    assert body["parameters"] == {"learning_rate": {"choices": [1e-4, 2e-4]}}


def test_a_dry_run_begins_nothing(retune, tmp_path):
    (tmp_path / "train.jsonl").write_text("{}\n")
    (tmp_path / "sweep.toml").write_text(TOML)
    retune.answers = {"POST /files": {"id": "file-1"}, "POST /sweeps": SWEEP}
    code, out, _ = retune.run("sweeps", "create", str(tmp_path / "sweep.toml"), "--dry-run")
    assert (code, out.strip()) == (0, "nothing has begun: it can")
    assert retune.requests[-1].url.query == b"dry_run=true"


def test_a_file_that_is_none_is_refused_with_its_name(retune, tmp_path):
    (tmp_path / "sweep.toml").write_text("= 3")
    for name in ("sweep.toml", "none.toml"):
        code, _, err = retune.run("sweeps", "create", str(tmp_path / name))
        assert code == 1
        assert name in err


def test_the_list_has_the_best_loss_of_each(retune):
    retune.answers = {"GET /sweeps": paged(SWEEP)}
    _, out, _ = retune.run("sweeps", "list")
    assert "3 of 4" in lines(out)[1]
    assert "1.5" in lines(out)[1]


def test_trials_are_shown_the_best_first(retune):
    retune.answers = {"GET /sweeps/sweep-1": SWEEP}
    _, out, _ = retune.run("sweeps", "show", "sweep-1")
    assert [line.split()[0] for line in lines(out)[1:]] == ["1", "0", "2"]


def test_a_cancelled_one_shows_its_state(retune):
    retune.answers = {"POST /sweeps/sweep-1/cancel": SWEEP | {"state": "stopping"}}
    assert retune.run("sweeps", "cancel", "sweep-1")[1].strip() == "sweep-1: stopping"


def test_json_is_the_platforms_own_answer(retune):
    retune.answers = {"GET /sweeps/sweep-1": SWEEP}
    _, out, _ = retune.run("--json", "sweeps", "show", "sweep-1")
    assert json.loads(out) == [SWEEP]
