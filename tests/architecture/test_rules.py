"""House rules that a tool can hold. Each message says what to do instead."""

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator

import pytest

from schemas.topics import SERVICES
from tests.architecture.source import PACKAGES, ROOT, Module, length, modules

ANATOMY = {
    "app",
    "handlers",
    "decide",
    "model",
    "store",
    "clients",
    "settings",
    "migrations",
    "README.md",
    "__init__",
}
DOORS = {"clients", "backends"}
"""Rooms of a service that deal with other machines and programs, which have a clock and an environment of their own."""
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
UNPICKLING = re.compile(
    r"(c?pickle|dill|shelve|marshal|joblib)(\..*)?|torch\.(load|save)"
    r"|(all_gather|gather|scatter|broadcast|send|recv)_object(_list)?",
    re.IGNORECASE,
)
NO_NOUNS = frozenset({"found", "told", "said", "made", "wanted"})
FORBIDDEN_NAMES = re.compile(r"(^|_)(manager|helper|helpers|utils|util|misc)(_|\.|$)")


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_folder_looks_the_same(service):
    """What a service has beside the usual rooms, its README names as code."""
    folder = ROOT / "services" / service
    rooms = {
        path.stem if path.suffix == ".py" else path.name for path in folder.iterdir() if path.name[0] != "."
    }
    assert {"app", "handlers", "settings", "migrations", "README.md"} <= rooms
    code = " ".join(CODE.findall((folder / "README.md").read_text()))
    own = rooms - ANATOMY - {"__pycache__"}
    assert own - set(re.findall(r"\w+", code)) == set(), f"{service}: explain these in its README"


def serving() -> Iterator[Module]:
    """Modules of the services, without their doors and without the programs that they start (folders with a `main`)."""
    for module in modules():
        root, *_, room = module.path.relative_to(ROOT).parts[:3]
        if root == "services" and room not in DOORS and not [*module.path.parent.glob("*main*.py")]:
            yield module


def test_a_service_reads_the_environment_in_its_settings_alone():
    violations = [module.name for module in serving() if "os.environ" in module.path.read_text()]
    assert not violations


READS_ONE_VARIABLE = {
    "shared/confinement.py": "the loader's own variable, before a program that has no settings",
    "shared/device_leases/fence.py": "what a program was started with, before its settings",
    "shared/failpoints.py": "armed at import, before there are settings",
    "shared/postgres/migrate.py": "the address of the service that the command names",
    "shared/telemetry/export.py": "OpenTelemetry's own variables",
    "deploy/demo/story.py": "`make demo PRETRAIN=1`",
}


def reads_a_variable(module: Module) -> bool:
    """By its name; to hand the whole environment on is none."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Subscript(value=source) | ast.Call(func=ast.Attribute(value=source, attr="get" | "pop")):
                if ast.unparse(source) == "os.environ":
                    return True
            case ast.Call(func=called) if ast.unparse(called) == "os.getenv":
                return True
    return False


def test_what_is_no_service_reads_the_environment_in_its_settings_too():
    reading = {module.name for module in modules() if reads_a_variable(module)}
    others = {name for name in reading if not name.startswith("services/")}
    assert others == READS_ONE_VARIABLE.keys(), "declare the variable in a `settings.py`, where it is checked"


def test_a_service_leaves_torch_to_its_programs():
    """What `.importlinter` cannot see: a part of a package that loads torch, where the rest of it does not."""
    violations = [module.name for module in serving() if "safetensors.torch" in module.imports()]
    assert not violations


def test_services_tell_the_time_by_postgres():
    """Beyond their doors a clock is compared with nothing but itself, and what a node reports decides nothing (0045)."""
    violations = [module.name for module in serving() if "shared.clock.utc_now" in module.imports()]
    assert not violations, "a unit, a service and a database have the time of Postgres' clock (decision 0033)"


def test_nothing_is_unpickled():
    """Of a file or of a peer: what it holds would run. Neither do collectives of objects, which pickle."""
    violations = [
        (module.name, name)
        for module in modules()
        for name in {*module.imports(), *(node.attr for node in module.attributes())}
        if UNPICKLING.fullmatch(name)
    ]
    assert not violations


def test_names_say_what_a_thing_is():
    violations = [module.name for module in modules() if FORBIDDEN_NAMES.search(module.path.stem)]
    assert not violations


def test_variables_are_nouns():
    """What a problem `found` beside what it `expected` is a field, so its `__init__` takes it."""
    violations = [
        f"{module.name}:{function.lineno} {function.name}: {name}"
        for module in modules()
        for function in module.functions()
        for name in sorted(NO_NOUNS & variables(function))
    ]
    assert violations == []


def variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    parameters = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return stored | (set() if function.name == "__init__" else parameters)


class TestSizeBudget:
    CAP_FUNCTION, CAP_LOOP, CAP_FILE = 60, 100, 500

    def test_no_function_is_longer_than_a_screen(self):
        violations = [
            f"{module.name}:{function.lineno} {function.name}: {length(function)}"
            for module in modules()
            for function in module.functions()
            if length(function)
            > (self.CAP_LOOP if module.name.endswith("training/loop.py") else self.CAP_FUNCTION)
        ]
        assert not violations

    def test_most_functions_are_small(self):
        lengths = sorted(length(function) for module in modules() for function in module.functions())
        assert statistics.median(lengths) <= 8
        assert lengths[int(len(lengths) * 0.9)] <= 30

    def test_no_file_is_longer_than_its_cap(self):
        files = [path for room in (*PACKAGES, "tests", "bench") for path in (ROOT / room).rglob("*.py")]
        lengths = {path.relative_to(ROOT): path.read_text().count("\n") for path in files}
        assert {path: lines for path, lines in lengths.items() if lines > self.CAP_FILE} == {}


def test_no_file_holds_both_sides_of_a_merge():
    marked = subprocess.run(
        ["git", "grep", "--files-with-matches", "-E", "^(<{7}|>{7}) "],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (marked.returncode, marked.stdout) == (1, ""), marked.stderr
