"""Where the time of a whole test run went, by folder and file, from the `build/tests.xml` that it leaves.

`python -m bench.durations`, in the root after `make check`. Seconds are of all test processes together.
"""

from collections import defaultdict
from pathlib import Path
from xml.etree.ElementTree import Element, parse

from bench.report import write

REPORT = Path("build/tests.xml")


def file_of(class_name: str) -> str:
    """The file of a test, which has dots for slashes in JUnit's report, and classes behind it."""
    words = class_name.split(".")
    paths = ("/".join(words[:length]) + ".py" for length in range(len(words), 0, -1))
    return next((path for path in paths if Path(path).is_file()), class_name)


def seconds_by_file(suite: Element) -> dict[str, float]:
    """The longest first."""
    seconds: dict[str, float] = defaultdict(float)
    for case in suite.iter("testcase"):
        seconds[file_of(case.attrib["classname"])] += float(case.attrib["time"])
    return {path: round(seconds[path], 1) for path in sorted(seconds, key=seconds.__getitem__, reverse=True)}


def main() -> None:
    suite = parse(REPORT).getroot().find("testsuite")
    assert suite is not None, f"{REPORT} has no testsuite"
    files = seconds_by_file(suite)
    folders: dict[str, float] = defaultdict(float)
    for path, seconds in files.items():
        folders["/".join(path.split("/")[:2])] += seconds
    write(
        "check-durations",
        {
            "wall_seconds": round(float(suite.attrib["time"])),
            "outcomes": {
                name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")
            },
            "seconds_by_folder": {name: round(seconds) for name, seconds in folders.items()},
            "seconds_by_file": files,
        },
        packages=("pytest", "pytest-xdist"),
        settings={"began": suite.attrib["timestamp"]},
    )


if __name__ == "__main__":
    main()
