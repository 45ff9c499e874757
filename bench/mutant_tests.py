"""What is in the unit tests: a verdict on a mutant holds while the tests that it came from are the same.

mutmut itself looks whether the mutated function changed, and never at the tests.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def contents_of_tests(root: Path) -> dict[str, str]:
    """Digest of each unit test file with what it may import: the helpers of its folder and those of all tests."""
    common = [*sorted((root / "tests").glob("*.py")), *sorted((root / "tests/unit").glob("*.py"))]
    contents = {}
    for folder in sorted(path for path in (root / "tests/unit").iterdir() if path.is_dir()):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        tests = [path for path in files if path.match("test_*.py")]
        helpers = hashlib.sha256(b"".join(path.read_bytes() for path in common + files if path not in tests))
        for path in tests:
            digest = helpers.copy()
            digest.update(path.read_bytes())
            contents[path.relative_to(root).as_posix()] = digest.hexdigest()[:12]
    return contents


def without_changed(
    stats: Mapping[str, Any], before: Mapping[str, str], now: Mapping[str, str]
) -> dict[str, Any]:
    """Statistics of mutmut without the tests of files that changed: it looks again what these reach."""

    def is_same(test: str) -> bool:
        return before.get(_file_of(test)) == now.get(_file_of(test))

    return dict(stats) | {
        "duration_by_test": {test: time for test, time in stats["duration_by_test"].items() if is_same(test)},
        "tests_by_mangled_function_name": {
            function: [test for test in tests if is_same(test)]
            for function, tests in stats["tests_by_mangled_function_name"].items()
        },
    }


def digest_of(tests: Iterable[str], contents: Mapping[str, str]) -> str:
    """Digest of the tests that reach a function: another one where a file of them changed, or one more reaches it."""
    files = sorted({_file_of(test) for test in tests})
    return hashlib.sha256("".join(f"{file} {contents[file]}\n" for file in files).encode()).hexdigest()[:12]


def _file_of(test: str) -> str:
    return test.partition("::")[0]
