"""`make mutants`: tries changed pure code against the unit tests, and writes down how each module's mutants ended.

    python -m bench.mutants                         all that have no verdict yet
    python -m bench.mutants 'services.scheduler.*'  these, again
    python -m bench.mutants --sample 600 --seed 2   so many, each as likely as any other: those without a verdict
    python -m bench.mutants --again FILE            those that survived with kind `open` in that file of results

Run in the root. `mutants/` keeps every verdict while the function and the tests that reach it are the same, so that a
run that was interrupted continues where it was. A mutant that no unit test reaches counts as a survivor.
"""

import argparse
import fnmatch
import json
import os
import random
import shutil
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from mutmut.__main__ import cli, create_mutants
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import (
    copy_also_copy_files,
    copy_src_dir,
    setup_source_paths,
    walk_mutatable_files,
)
from mutmut.workers.isolation import get_mutant_runner

from bench.mutant_kinds import kind
from bench.mutant_runner import CollectedOnce, drop_old_verdicts
from bench.report import progress, write

FOLDER = Path("mutants")
KILLED = {"killed", "timeout", "segfault", "caught by type check"}
"""A mutant that runs into its time limit or crashes the process does not pass the tests either."""
NO_VERDICT = "not checked"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=Path, metavar="FILE")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    generate(arguments.processes)
    with mock.patch("mutmut.workers.isolation.PytestRunner", CollectedOnce):
        drop_old_verdicts(get_mutant_runner())
        by_module = ends_by_module()
        ends = {name: end for of_module in by_module.values() for name, end in of_module.items()}
        if arguments.again:
            chosen = survivors_in(arguments.again, by_module)
        else:
            chosen = choose([*ends], arguments.patterns, arguments.sample, arguments.seed)
        left = [name for name in chosen if ends[name] == NO_VERDICT]
        if left or arguments.patterns:
            named = arguments.patterns or (left if arguments.sample or arguments.again else [])
            cli(["run", "--max-children", str(arguments.processes), *named], standalone_mode=False)
    settings = {"sample": arguments.sample, "seed": arguments.seed} if arguments.sample else {}
    if arguments.again:
        settings["again"] = arguments.again.name
    record(ends_by_module(), set(chosen), settings)


def generate(processes: int) -> None:
    """Write the mutants of the functions that changed; of all where what to mutate changed."""
    set_mutant_under_test("mutant_generation")
    if _configuration(FOLDER) != _configuration(Path()):
        for path in walk_mutatable_files():
            (FOLDER / path).unlink(missing_ok=True)
            (FOLDER / f"{path}.meta").unlink(missing_ok=True)  # numbers of mutants mean other ones now
    shutil.rmtree(FOLDER / "tests", ignore_errors=True)  # tests that were deleted would still be run
    FOLDER.mkdir(exist_ok=True)
    copy_src_dir()
    copy_also_copy_files()
    setup_source_paths()
    create_mutants(processes)


def _configuration(folder: Path) -> Any:
    path = folder / "pyproject.toml"
    return tomllib.loads(path.read_text())["tool"]["mutmut"] if path.exists() else None


def ends_by_module() -> dict[Path, dict[str, str]]:
    ends = {}
    for path in sorted(walk_mutatable_files()):
        data = SourceFileMutationData(path=path)
        data.load()
        ends[path] = {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
    return ends


def choose(names: list[str], patterns: Collection[str], sample: int | None, seed: int) -> list[str]:
    if sample is not None:
        return random.Random(seed).sample(names, sample)
    return [name for name in names if any(fnmatch.fnmatch(name, each) for each in patterns or ["*"])]


def survivors_in(results: Path, by_module: Mapping[Path, Mapping[str, str]]) -> list[str]:
    """Return the mutants that survived there and are still the same, and of functions that changed all."""
    before = {
        name: each["change"]
        for name, each in json.loads(results.read_text())["results"]["survivors"].items()
        if each["kind"] == "open"
    }
    names = {name: path for path, of_module in by_module.items() for name in of_module}
    paths = {function_of(name): path for name, path in names.items()}
    changed = {
        function_of(name)
        for name, lines in before.items()
        if name not in names or change(name, paths[function_of(name)]) != lines
    }
    return [name for name in names if function_of(name) in changed or name in before]


def function_of(name: str) -> str:
    return name.partition("__mutmut_")[0]


def record(ends: Mapping[Path, Mapping[str, str]], chosen: set[str], settings: Mapping[str, Any]) -> None:
    """Write how those that were chosen ended, once all have a verdict."""
    tried = {
        path: {name: end for name, end in of_module.items() if name in chosen}
        for path, of_module in ends.items()
    }
    left = sum(end == NO_VERDICT for of_module in tried.values() for end in of_module.values())
    if left:
        progress(f"{left} of {len(chosen)} mutants have no verdict yet: the same command continues")
        return
    write(
        "mutants-again" if "again" in settings else "mutants",
        {
            "mutants": sum(len(of_module) for of_module in ends.values()),
            "modules": {str(path): dict(Counter(each.values())) for path, each in tried.items() if each},
            "not_tried": [str(path) for path, each in tried.items() if not each],
            "survivors": {
                name: {"end": end, "kind": kind(lines := change(name, path)), "change": lines}
                for path, of_module in tried.items()
                for name, end in of_module.items()
                if end not in KILLED
            },
        },
        packages=("mutmut", "pytest", "hypothesis"),
        settings={"tests": "tests/unit", **settings},
    )


def change(name: str, path: Path) -> list[str]:
    """The lines that the mutant removes and adds."""
    lines = get_diff_for_mutant(name, path=path).splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


if __name__ == "__main__":
    main()
