"""How mutmut runs the tests of a mutant here: collected once for all of them, and the shortest first."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from _pytest.config import _prepareconfig
from mutmut.__main__ import collect_or_load_stats
from mutmut.mutation.data import SourceFileMutationData
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd, walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name
from mutmut.workers.isolation import MutantRunner

from bench.mutant_tests import contents_of_tests, digest_of, without_changed

STATS = Path("mutants/mutmut-stats.json")
TESTS = Path("mutants/tests-of-verdicts.json")
"""Digests of the test files, and of the tests that reach each function, when the verdicts were reached."""


class CollectedOnce(PytestRunner):
    """Collects in the process that workers are forked from; mutmut's own starts pytest and collects each time."""

    _session: pytest.Session | None = None

    def warm_up(self) -> None:
        """No worker copies what was collected, for tests/conftest.py keeps it from garbage collection."""
        self._collect()

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """Return 0 where all tests pass, otherwise 1."""
        session = self._session or self._collect()
        items = {item.nodeid: item for item in session.items}
        session.items = shortest_first([items[test] for test in tests] or session.items)
        with change_cwd("mutants"), TemporaryDirectory() as folder:
            os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
            try:
                session.config.hook.pytest_runtestloop(session=session)
            except (session.Failed, session.Interrupted, pytest.exit.Exception, KeyboardInterrupt):
                return 1
        return int(session.testsfailed > 0)

    def _collect(self) -> pytest.Session:
        selection = [*self._pytest_add_cli_args, *self._pytest_add_cli_args_test_selection]
        with change_cwd("mutants"):
            config = _prepareconfig(["--rootdir=.", "--tb=no", "-x", "-q", "-s", *selection])
            session = self._session = pytest.Session.from_config(config)
            config._do_configure()  # noqa: SLF001
            config.hook.pytest_sessionstart(session=session)
            session.perform_collect()
        return session


def shortest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """By the power of ten of their time: within one, tests of a module stay together and share its fixtures."""
    durations = state().duration_by_test
    return sorted(items, key=lambda item: math.ceil(math.log10(max(durations.get(item.nodeid, 1.0), 0.001))))


def drop_old_verdicts(runner: MutantRunner) -> None:
    """Have mutmut look again what the tests of changed files reach, and drop verdicts that came from other tests."""
    contents = contents_of_tests(Path())
    before = json.loads(TESTS.read_text()) if TESTS.exists() else {"files": {}, "functions": {}}
    if STATS.exists():
        STATS.write_text(
            json.dumps(without_changed(json.loads(STATS.read_text()), before["files"], contents))
        )
    collect_or_load_stats(runner, apply_config_invalidation=True)
    reached = state().tests_by_mangled_function_name
    now = {function: digest_of(tests, contents) for function, tests in reached.items() if tests}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for mutant in data.exit_code_by_key:
            function = mangled_name_from_mutant_name(mutant)
            if before["functions"].get(function) != now.get(function):
                data.exit_code_by_key[mutant] = None
        data.save()
    TESTS.write_text(json.dumps({"files": contents, "functions": now}))
