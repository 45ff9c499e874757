"""A verdict on a mutant holds while the tests that it came from are the same."""

import pytest

from bench.mutant_tests import contents_of_tests, digest_of, without_changed

FILES = {
    "tests/builders.py": "a helper of all tests",
    "tests/unit/one/test_first.py": "a test",
    "tests/unit/one/test_second.py": "another test",
    "tests/unit/one/world.py": "a helper",
    "tests/unit/two/test_third.py": "a test of another folder",
}
FIRST, SECOND, THIRD = (path for path in FILES if "test_" in path)


@pytest.fixture
def tree(tmp_path):
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("tests/unit/one/test_first.py", {FIRST}),
        ("tests/unit/one/world.py", {FIRST, SECOND}),
        ("tests/unit/one/rows.json", {FIRST, SECOND}),
        ("tests/unit/two/world.py", {THIRD}),
        ("tests/builders.py", {FIRST, SECOND, THIRD}),
        ("tests/unit/common.py", {FIRST, SECOND, THIRD}),
        ("tests/unit/one/__pycache__/test_first.pyc", set()),
        ("tests/integration/test_other.py", set()),
    ],
)
def test_a_file_changes_the_tests_that_may_import_it(tree, path, changed):
    before = contents_of_tests(tree)
    assert set(before) == {FIRST, SECOND, THIRD}
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text("other text")
    now = contents_of_tests(tree)
    assert {test for test in now if now[test] != before[test]} == changed


def test_what_changed_tests_reach_is_looked_at_again():
    stats = {
        "duration_by_test": {f"{FIRST}::test_a": 1.0, f"{SECOND}::test_b[1]": 2.0, f"{THIRD}::test_c": 3.0},
        "tests_by_mangled_function_name": {"x_f": [f"{FIRST}::test_a", f"{SECOND}::test_b[1]"], "x_g": []},
        "stats_time": 6.0,
    }
    kept = without_changed(stats, {FIRST: "a", SECOND: "b", THIRD: "c"}, {FIRST: "a", SECOND: "other"})
    assert kept == {
        "duration_by_test": {f"{FIRST}::test_a": 1.0},
        "tests_by_mangled_function_name": {"x_f": [f"{FIRST}::test_a"], "x_g": []},
        "stats_time": 6.0,
    }


def test_a_function_keeps_its_digest_while_its_files_are_the_same():
    contents = {FIRST: "a", SECOND: "b"}
    digest = digest_of([f"{FIRST}::test_a"], contents)
    assert digest == digest_of([f"{FIRST}::test_b", f"{FIRST}::test_a"], contents | {SECOND: "other"})
    assert digest != digest_of([f"{FIRST}::test_a"], contents | {FIRST: "other"})
    assert digest != digest_of([f"{FIRST}::test_a", f"{SECOND}::test_c"], contents)
