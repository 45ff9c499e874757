"""What the documents say can be followed: links lead somewhere, commands exist, Python compiles."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import typer
from typer.core import TyperGroup

from deploy.reference.pages import command_line
from tests.architecture.source import ROOT
from tests.documents import FENCE

PAGES = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    if (ROOT / name).exists()
]
HISTORY = (ROOT / "CHANGELOG.md", *(ROOT / "docs/decisions").glob("*.md"))
"""Pages that may name commands as they were."""
PRESENT = [page for page in PAGES if page not in HISTORY]
CODE_SPAN = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"""(?:\[[^\]]*\]\(|<img src=")([^)\s"]+)[)"]""")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
MAKE = re.compile(r"(?:^|[\s`])make ((?:[a-z]+)(?: [A-Z]+=\S+)*)")
RETUNE = re.compile(r"(?:^|[\s`])(?:\.venv/bin/)?retune ((?:--json )?[a-z][^`\n#|]*)")
MODULE = re.compile(
    r"python3? (?:-u )?-m ((?:schemas|shared|services|ops|cli|deploy|bench|tests)(?:\.[a-z_]+)+)(?![\w.<])"
)
TEST = re.compile(r"`(tests/[a-z_/]+\.py)")
PLACEHOLDERS = {"…", "...", "NAME"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The page without its code."""
    return CODE_SPAN.sub("", FENCE.sub("", page.read_text()))


@cache
def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    plain = (re.sub(r"[`*]", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def fenced(page: Path, *languages: str) -> Iterator[str]:
    return (text for language, text in FENCE.findall(page.read_text()) if language in languages)


def test_links_lead_to_pages_and_headings_that_are_there():
    broken = []
    for page in PAGES:
        for target in LINK.findall(prose(page)):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            if "://" not in target and (not path.exists() or (anchor and anchor not in anchors(path))):
                broken.append(f"{name_of(page)}: {target}")
    assert broken == []


PROGRAM = command_line()


@cache
def make_targets() -> dict[str, set[str]]:
    """Every target with the variables that its recipe or its help names."""
    text = (ROOT / "Makefile").read_text()
    everywhere = set(re.findall(r"^([A-Z]+) \??:?=", text, re.MULTILINE))
    names = re.findall(r"^([a-z]+):(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: everywhere | set(re.findall(r"\b([A-Z]+)\b", rest)) | {"T", "SEED"} for name, rest in names}


def test_make_targets_are_there():
    uses = [
        (page, command.split())
        for page in PRESENT
        for text in (*fenced(page, "", "sh", "bash", "console"), *CODE_SPAN.findall(page.read_text()))
        for command in MAKE.findall(text)
    ]
    unknown = [
        " ".join([f"{name_of(page)}: make", *words])
        for page, words in uses
        if words[0] not in make_targets()
        or {word.partition("=")[0] for word in words[1:]} - make_targets()[words[0]]
    ]
    assert unknown == []


def retune_problem(words: list[str]) -> str | None:
    """What of a command line the program would not know; None where it knows all."""
    command, path = PROGRAM, ["retune"]
    while isinstance(command, TyperGroup):
        words = [word for word in words if word != "--json"]
        if not words or words[0] in PLACEHOLDERS or words[0].startswith("-"):
            return None
        name = words.pop(0)
        child = command.get_command(typer.Context(command), name)
        if child is None:
            return f"{' '.join(path)} has no {name}"
        command, path = child, [*path, name]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    return f"{' '.join(path)} has no {unknown}" if unknown else None


def retune_lines(page: Path) -> Iterator[list[str]]:
    texts = [*fenced(page, "", "sh", "bash", "console"), *CODE_SPAN.findall(page.read_text())]
    for text in texts:
        for line in RETUNE.findall(text.replace("\\\n", " ")):
            try:
                yield shlex.split(line)
            except ValueError:
                yield line.split()


def test_commands_and_options_of_retune_are_there():
    problems = [(name_of(page), retune_problem(words)) for page in PRESENT for words in retune_lines(page)]
    assert [(page, problem) for page, problem in problems if problem] == []


def test_modules_that_are_run_are_there():
    missing = []
    for page in PRESENT:
        for name in MODULE.findall(page.read_text()):
            path = ROOT / name.replace(".", "/")
            if not (path / "__main__.py").exists() and not path.with_suffix(".py").exists():
                missing.append(f"{name_of(page)}: {name}")
    assert missing == []


def test_tests_that_are_named_are_there():
    """Decisions too: what holds one must be found."""
    named = ((page, path) for page in PAGES for path in TEST.findall(page.read_text()))
    missing = [f"{name_of(page)}: {path}" for page, path in named if not (ROOT / path).exists()]
    assert missing == []


def test_python_compiles():
    for page in PAGES:
        for text in fenced(page, "python"):
            compile(text, name_of(page), "exec", flags=0x2000)  # top-level await is allowed


def test_the_readme_is_read_in_a_minute():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_every_page_is_reached_from_the_readme():
    """Decisions, runbooks and flows are folders of their own, which a page names."""
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = (target.partition("#")[0] for target in LINK.findall(page.read_text()) if "://" not in target)
        waiting += [page.parent / link for link in links if link]
    guides = [
        page
        for page in PAGES
        if page.parent in {ROOT / "docs", ROOT / "docs/guides", ROOT / "docs/reference"}
    ]
    assert [name_of(page) for page in guides if page.resolve() not in reached] == []


def test_the_checks_find_what_is_wrong():
    assert retune_problem(["jobs", "submit", "a", "--no-such"]) == "retune jobs submit has no ['--no-such']"
    assert retune_problem(["jobs", "sumbit"]) == "retune jobs has no sumbit"
    assert retune_problem(["--json", "jobs", "list"]) is None
    assert "what-is-there" in anchors(ROOT / "README.md")
