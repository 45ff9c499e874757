"""What tests note comes out as the rows of a document. Needs no stack."""

import json

from tests.chaos import scale
from tests.chaos.figures import describe, seen, table
from tests.chaos.progress import line

DOCUMENT = """\
Words.

| row | test | seen | violations |
|---|---|---|---|
| away | `chaos/test_outages.py` (broker killed, broker away) | by hand | 0 |

| row | test | seen | violations |
|---|---|---|---|
| all at once | `chaos/test_soak.py` (soak) | by hand | none |

| other | table |
|---|---|
| `soak` | x |
"""
PRINTED = """\
| row | test | seen | violations |
|---|---|---|---|
| away | `chaos/test_outages.py` (broker killed, broker away) | broker killed (3 times): seconds 0.7 (0.3–1.5); \
broker away: not in this file | 0 |

| row | test | seen | violations |
|---|---|---|---|
| all at once | `chaos/test_soak.py` (soak) | soak: faults 1,044, missed 3 | none |"""


def test_what_was_noted_is_the_column_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAOS_FIGURES", str(tmp_path / "figures.jsonl"))
    for seconds in (0.3, 1.5, 0.7):
        scale.note("broker killed", seconds=seconds)
    scale.note("soak", faults=1044, missed=3)
    lines = (tmp_path / "figures.jsonl").read_text().splitlines()
    assert table(DOCUMENT, seen(lines)) == PRINTED
    noted = json.loads(lines[-1])
    assert noted["test"] == "tests/chaos/test_figures.py::test_what_was_noted_is_the_column_seen"
    assert (noted["scale"], noted["seed"], bool(noted["commit"])) == (scale.Scale.CHANGE, scale.seed(), True)


def test_figures_of_different_sizes_are_short():
    assert describe("x", [{"a": 0.0123, "b_seconds": 4.26, "c": 1234.5, "d": 7}]) == (
        "x: a 0.012, b seconds 4.3, c 1,234, d 7"
    )


def test_progress_is_in_whole_seconds_and_ends_at_its_end():
    assert line(83.7, 300, {"jobs": 12, "faults": 15}) == " 27% 0:01:23<0:03:37 12 jobs, 15 faults"
    assert line(301, 300, {}) == "100% 0:05:00<0:00:00 "
