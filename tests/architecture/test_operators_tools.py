"""The operators' tools know of a service's schema its views alone; the kernel's tables are the library's."""

import ast
import re
from collections.abc import Iterator

import pytest

from cli.nouns import NOUNS
from schemas.topics import SERVICES
from shared.postgres.migrate import KERNEL, migrations_of
from tests.architecture.source import Module, modules

NAMED = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE)\s+([a-z{][\w{}.]*)")
CREATED = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
VIEW = re.compile(r"\b(\w+)\.(operator_\w+)")
CREATED_VIEW = re.compile(r"^CREATE (?:OR REPLACE )?VIEW (operator_\w+)", re.MULTILINE)
KERNEL_TABLES = {table for path in KERNEL.glob("*.sql") for table in CREATED.findall(path.read_text())}
CATALOG = "information_schema."


def tools() -> Iterator[Module]:
    return (module for module in modules() if module.name.startswith(("ops/", "cli/")))


def statements(module: Module) -> Iterator[str]:
    """Texts with SQL; what an f-string puts in stands as `{}`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def foreign(statement: str) -> list[str]:
    """Tables that are neither the kernel's nor a view for operators."""
    return [
        table
        for table in NAMED.findall(statement)
        if not table.startswith(CATALOG)
        and not (name := table.rpartition(".")[2]).startswith("operator_")
        and name not in KERNEL_TABLES
    ]


def test_they_name_no_table_of_a_service():
    violations = [
        f"{module.name}: {table}"
        for module in tools()
        for statement in statements(module)
        for table in foreign(statement)
    ]
    assert violations == [], "select from an operator_ view, which the service's own migration creates"


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("SELECT id FROM scheduler.job", "scheduler.job"),
        ("SELECT a FROM x.operator_a JOIN {schema}.slot USING (b)", "{schema}.slot"),
        ("UPDATE job SET state = $1", "job"),
        ("DELETE FROM registry.slot", "registry.slot"),
        ("SELECT topic FROM {schema}.outbox JOIN gateway.operator_tenant ON true", None),
    ],
)
def test_a_table_of_a_service_is_recognized(statement: str, table: str | None):
    assert foreign(statement) == ([table] if table else [])


def test_they_look_into_no_json_of_a_service():
    violations = [
        statement
        for module in tools()
        for statement in statements(module)
        if VIEW.search(statement) and "->" in statement
    ]
    assert violations == []


def test_every_view_for_operators_is_selected_from():
    selected = {
        view for module in tools() for statement in statements(module) for view in VIEW.findall(statement)
    }
    created = {
        (service, view)
        for service in SERVICES
        for _, sql in migrations_of(service)
        for view in CREATED_VIEW.findall(sql)
    }
    assert selected == created


def test_they_load_no_service_by_its_name():
    """What .importlinter cannot see."""
    importing = [module.name for module in tools() if "importlib" in module.imports()]
    assert importing == ["cli/nouns.py"]
    assert all(name.startswith("cli.commands.") for name in NOUNS.values())
