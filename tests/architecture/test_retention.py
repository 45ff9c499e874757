"""Nothing grows unseen: every table and every prefix of the bucket says in docs/retention.md how long it is kept."""

import re
from pathlib import Path

from schemas import layout
from schemas.topics import SERVICES

ROOT = Path(__file__).parents[2]
CREATED = re.compile(r"CREATE TABLE ([a-z_]+)")
NAMES = re.compile(r"`([a-z_./-]+)`")
KEYS = (
    layout.blob(""),
    layout.dataset(""),
    layout.checkpoint("ftjob-1", 1, 1),
    layout.base_model(""),
    layout.model(""),
    layout.evaluation("", ""),
    layout.log("ftjob-1", 1, 0, 0),
    layout.audit_statement(1),
)


def documented() -> set[str]:
    rows = [line for line in (ROOT / "docs/retention.md").read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in NAMES.findall(row.split("|")[1])}


def tables(folder: Path) -> set[str]:
    return {name for file in folder.glob("*.sql") for name in CREATED.findall(file.read_text())}


def test_every_table_says_how_long_its_rows_are_kept():
    kernel = tables(ROOT / "shared/postgres/kernel")
    own = {
        f"{service}.{name}"
        for service in SERVICES
        for name in tables(ROOT / "services" / service / "migrations")
    }
    assert {name for name in documented() if not name.endswith("/")} == kernel | own


def test_every_prefix_of_the_bucket_says_how_long_its_objects_are_kept():
    prefixes = {key.partition("/")[0] + "/" for key in KEYS}
    assert {name for name in documented() if name.endswith("/")} == prefixes
    functions = {name for name in vars(layout) if callable(getattr(layout, name)) and name.islower()}
    beside = {"part", "file", "checkpoints", "evaluation_items", "attempt_name", "is_dns_label", "dataclass"}
    named = {"blob", "dataset", "checkpoint", "base_model", "model", "evaluation", "log", "audit_statement"}
    assert functions - beside == named, "a new kind of key has a prefix above"
