"""What `make mutants` leaves: for each module how its mutants ended, and the change of every survivor.

Run in the root after `mutmut run`. A mutant that no unit test reaches counts as a survivor.

`python -m bench.mutants draw 600 --seed 1` prints so many names of all mutants, each as likely as any other, for
`mutmut run` to try; the results then say of how many they were drawn.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

from bench.report import write

KILLED = {"killed", "timeout", "segfault", "caught by type check"}
"""A mutant that runs into its time limit or crashes the process does not pass the tests either."""


def outcomes(path: Path) -> dict[str, str]:
    """How each mutant of a module ended, for those that were tried."""
    data = SourceFileMutationData(path=path)
    data.load()
    return {
        name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items() if code is not None
    }


def change(name: str, path: Path) -> list[str]:
    """The lines that the mutant removes and adds."""
    lines = get_diff_for_mutant(name, path=path).splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def names(path: Path) -> list[str]:
    """All mutants of a module, tried or not."""
    data = SourceFileMutationData(path=path)
    data.load()
    return [*data.exit_code_by_key]


def draw(count: int, seed: int) -> list[str]:
    every = [name for path in sorted(walk_mutatable_files()) for name in names(path)]
    return random.Random(seed).sample(every, count)


def record() -> None:
    tried = {path: outcomes(path) for path in sorted(walk_mutatable_files())}
    write(
        "mutants",
        {
            "mutants": sum(len(names(path)) for path in tried),
            "modules": {str(path): dict(Counter(ends.values())) for path, ends in tried.items() if ends},
            "not_tried": [str(path) for path, ends in tried.items() if not ends],
            "survivors": {
                name: {"end": end, "change": change(name, path)}
                for path, ends in tried.items()
                for name, end in ends.items()
                if end not in KILLED
            },
        },
        packages=("mutmut", "pytest", "hypothesis"),
        settings={"tests": "tests/unit"},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command")
    drawing = commands.add_parser("draw")
    drawing.add_argument("count", type=int)
    drawing.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.command == "draw":
        print("\n".join(draw(arguments.count, arguments.seed)))
    else:
        record()
