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
OWN_ROOMS = {
    "auditor": set(),
    "evaluator": {"gates", "scoring"},
    "gateway": {
        "access",
        "copies",
        "deps",
        "errors",
        "gate",
        "inference",
        "items",
        "job_responses",
        "logs",
        "measurements",
        "memory",
        "middleware",
        "obstacles",
        "projections",
        "quotas",
        "rates",
        "readmodels",
        "removal",
        "representations",
        "requests",
        "responses",
        "results",
        "routes",
        "submission",
        "tables",
        "timeline",
        "uploads",
        "usage",
        "uses",
    },
    "ingest": {"pipeline", "report"},
    "provisioner": {"backends"},
    "registry": {"inspection"},
    "scheduler": {"queue_store"},
    "serving_controller": set(),
    "trainer_agent": {"protocol", "runner", "training"},
}
IMPURE = re.compile(
    r"^(asyncpg|faststream|aiokafka|boto3|httpx|fastapi|starlette|torch|random|time|uuid"
    r"|shared\.(postgres|messaging|storage|service|clock))(\.|$)"
)
READS_RECORDS = "shared/audit/chain.py"
"""It chains records of Kafka, whose class is in the module that reads them."""
TORCH = re.compile(r"^(torch|peft|accelerate|lm_eval|safetensors\.torch)(\.|$)")
TORCH_ALLOWED = (
    "services/trainer_agent/training/",
    "services/evaluator/scoring/",
    "services/registry/inspection/",
    "services/serving_controller/clients/worker_extension.py",
    "deploy/demo/",
)
PRODUCERS = (
    "shared/messaging/kafka.py",
    "shared/messaging/relay.py",
    "shared/messaging/reader.py",
    "services/trainer_agent/runner/",
)
ENVIRONMENT_READERS = (
    "shared/processes/environment.py",
    "shared/processes/launch.py",
    "shared/failpoints.py",
    "shared/postgres/migrate.py",
    "shared/telemetry/tracing.py",
    "shared/storage/objects.py",
    "ops/connection.py",
    "services/trainer_agent/training/",
    "services/evaluator/scoring/__main__.py",
    "services/serving_controller/clients/guard.py",
    "deploy/",
)
MACHINE_CLOCK_READERS = (
    *(f"services/trainer_agent/runner/{module}.py" for module in ("metrics", "reporting", "session")),
    "services/provisioner/backends/",
    "services/serving_controller/clients/",
)
"""Their clock is compared with nothing but itself, and with files of the same machine. What a node reports has its
clock's time, which nothing is decided by (decision 0045)."""
UNPICKLING = re.compile(
    r"(c?pickle|dill|shelve|marshal|joblib)(\..*)?|torch\.(load|save)"
    r"|(all_gather|gather|scatter|broadcast|send|recv)_object(_list)?",
    re.IGNORECASE,
)
NO_NOUNS = frozenset({"found", "told", "said", "made", "wanted"})
FORBIDDEN_NAMES = re.compile(r"(^|_)(manager|helper|helpers|utils|util|misc)(_|\.|$)")


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_folder_looks_the_same(service):
    folder = ROOT / "services" / service
    rooms = {
        path.stem if path.suffix == ".py" else path.name for path in folder.iterdir() if path.name[0] != "."
    }
    unknown = rooms - ANATOMY - OWN_ROOMS.get(service, set()) - {"__pycache__", "__init__"}
    assert not unknown, f"{service}: {sorted(unknown)} are no rooms of a service; see docs/decisions"
    assert {"app", "handlers", "settings", "migrations", "README.md"} <= rooms


def test_decisions_and_models_are_pure():
    pure = re.compile(r"^services/[a-z_]+/(decide|model)(\.py|/)")
    violations = {
        f"{decision.name}: {module.name} imports {name}"
        for decision in modules()
        if pure.match(decision.name)
        for module in reached(decision)
        if module.name != READS_RECORDS
        for name in module.imports()
        if IMPURE.match(name)
    }
    assert not violations, "time, ids, randomness and I/O come into a decision as arguments"


def reached(module: Module) -> Iterator[Module]:
    """Yield the module and all of ours that it imports, directly or through others; not what no decision may import."""
    by_name = {each.import_name: each for each in modules()}
    pending, known = [module], {module.name}
    while pending:
        yield (importing := pending.pop())
        for name in importing.imports():
            imported = by_name.get(name)
            if imported and imported.name not in known and not IMPURE.match(name):
                known.add(imported.name)
                pending.append(imported)


def test_torch_stays_behind_a_process_boundary():
    violations = [
        f"{module.name} imports {name}"
        for module in modules()
        if not module.name.startswith(TORCH_ALLOWED)
        for name in module.imports()
        if TORCH.match(name)
    ]
    assert not violations


def test_only_the_relay_publishes():
    publishers = [
        module.name
        for module in modules()
        if not module.name.startswith(PRODUCERS)
        for name in module.imports()
        if "Producer" in name or name.endswith("kafka_producer")
    ]
    assert publishers == ["shared/service.py", "shared/service.py"], (
        "events leave through the outbox: use unit.emit"
    )


def test_the_environment_is_read_in_settings_alone():
    violations = [
        module.name
        for module in modules()
        if not module.name.startswith(ENVIRONMENT_READERS) and "os.environ" in module.path.read_text()
    ]
    assert not violations


def test_services_tell_the_time_by_postgres():
    violations = [
        module.name
        for module in modules()
        if module.name.startswith("services/") and not module.name.startswith(MACHINE_CLOCK_READERS)
        if "shared.clock.utc_now" in module.imports()
    ]
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


def test_the_repository_says_nothing_about_the_machine_it_was_made_on():
    assert tracked_with(re.compile(r"(?<![\w.])/(work|root|farm)/")) == []


def test_no_file_holds_both_sides_of_a_merge():
    assert tracked_with(re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)) == []


def tracked_with(pattern: re.Pattern[str]) -> list[str]:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        name
        for name in tracked.splitlines()
        if name != "tests/architecture/test_rules.py"
        and (ROOT / name).exists()
        and pattern.search((ROOT / name).read_text(errors="ignore"))
    ]
