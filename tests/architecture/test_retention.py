"""Nothing grows unseen: every table and every prefix of the bucket says in docs/retention.md how long it is kept."""

import re
from datetime import timedelta
from pathlib import Path

from schemas import layout
from schemas.topics import SERVICES, TOPICS
from services.checkpoint_watcher.settings import Settings as CheckpointWatcherSettings
from services.gateway.settings import Settings as GatewaySettings
from services.provisioner.settings import Settings as ProvisionerSettings
from shared.settings import Timing

ROOT = Path(__file__).parents[2]
CREATED = re.compile(r"CREATE TABLE ([a-z_]+)")
RENAMED = re.compile(r"ALTER TABLE ([a-z_]+) RENAME TO ([a-z_]+)")
NAMES = re.compile(r"`([a-z_./-]+)`")
DURATION = re.compile(r"([0-9]+) (day|hour|minute)s?")
NAMED_DURATION = re.compile(r"`([A-Za-z_.]+)` \(([0-9]+) (day|hour|minute)s?")
SETTINGS = (Timing, CheckpointWatcherSettings, GatewaySettings, ProvisionerSettings)
KEYS = (
    layout.blob(""),
    layout.dataset(""),
    layout.feature("", ""),
    layout.checkpoint("ftjob-1", 1, 1),
    layout.base_model(""),
    layout.model(""),
    layout.export(""),
    layout.evaluation("", ""),
    layout.log("ftjob-1", 1, 0, 0),
    layout.audit_statement(1),
)


def documented() -> set[str]:
    rows = [line for line in (ROOT / "docs/retention.md").read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in NAMES.findall(row.split("|")[1])}


def tables(folder: Path) -> set[str]:
    migrations = [file.read_text() for file in sorted(folder.glob("*.sql"))]
    new_names = {old: new for text in migrations for old, new in RENAMED.findall(text)}
    return {new_names.get(name, name) for text in migrations for name in CREATED.findall(text)}


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
    beside = {
        "part",
        "file",
        "checkpoints",
        "checkpoints_of",
        "node_logs",
        "features",
        "exports",
        "logs",
        "evaluation_items",
        "evaluation_outcome",
        "attempt_name",
        "is_dns_label",
        "dataclass",
    }
    named = {"blob", "dataset", "feature", "checkpoint", "base_model", "model", "export", "evaluation", "log"}
    named |= {"audit_statement"}
    assert functions - beside == named, "a new kind of key has a prefix above"


def lasts(name: str) -> timedelta:
    """By the code: a setting's default, or how long a topic keeps its records."""
    for settings in SETTINGS:
        prefix = settings.model_config["env_prefix"]
        if name.startswith(prefix):
            return settings.model_fields[name.removeprefix(prefix).lower()].default
    return timedelta(days=next(topic.retention_days for topic in TOPICS if topic.name == name))


def test_every_duration_is_the_codes():
    text = (ROOT / "docs/retention.md").read_text()
    durations = {
        name: timedelta(**{f"{unit}s": int(number)}) for name, number, unit in NAMED_DURATION.findall(text)
    }
    assert len(durations) > 5
    assert durations == {name: lasts(name) for name in durations}


def test_no_row_has_a_duration_that_names_no_setting():
    rows = [line for line in (ROOT / "docs/retention.md").read_text().splitlines() if line.startswith("| `")]
    assert [row for row in rows if len(DURATION.findall(row)) != len(NAMED_DURATION.findall(row))] == []


def test_the_durations_of_topics_are_the_codes():
    text = (ROOT / "docs/retention.md").read_text()
    by_days: dict[int, set[str]] = {}
    for topic in TOPICS:
        by_days.setdefault(topic.retention_days, set()).add(re.sub(r"^agent[.].*", "agent.*", topic.name))
    assert by_days.keys() == {7, 30, 90}
    assert by_days[7] == set(re.findall(r"`([a-z.*]+)`", text.split("for 30 days, ")[1].split(" for 7,")[0]))
    assert by_days[90] == {f"parked.{service}" for service in SERVICES if service != "auditor"}
