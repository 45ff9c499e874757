"""Every service's README has the same shape, and says truly what the service reads and writes."""

import re

import pytest

from deploy.scaffold import FILES
from schemas.base import CommandRefused, Delayed
from schemas.handled import HANDLED
from schemas.topics import LISTENS, PARKED_COMMANDS, PARKED_TOPICS, SERVICES, TOPICS, Topic
from tests.architecture.source import ROOT

HEADINGS = ["## How it works", "## Invariants", "## How it fails"]
ROWS = ["listens to", "emits", "owns"]
NAME = re.compile(r"`((?:[a-z_]+)\.(?:events|alerts|commands|directives|reports|metrics))`")
MESSAGE = re.compile(r"\b(?:[A-Z][a-z0-9]+){2,}\b")
MESSAGES = {message.type for topic in TOPICS for message in topic.messages}
EVERYBODYS = {PARKED_COMMANDS, *PARKED_TOPICS.values()}
"""Read and written by every service's kernel."""
ANSWERS = {CommandRefused.type, Delayed.type}


def lines_of(service: str) -> list[str]:
    text = (ROOT / "services" / service / "README.md").read_text()
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()


def cells(service: str) -> dict[str, str]:
    """The first table: what the service listens to, emits and owns."""
    table = (line.strip("|").split("|", 1) for line in lines_of(service) if line.startswith("| "))
    rows = [(name.strip(), cell) for name, cell in table if name.strip()]
    return dict(rows[: len(ROWS)])


def named_messages(cell: str) -> set[str]:
    return {*MESSAGE.findall(cell)} & MESSAGES


def read_by(service: str) -> set[Topic]:
    return {*LISTENS[service]} - EVERYBODYS


def written_by(service: str) -> set[Topic]:
    return {topic for topic in TOPICS if service in topic.writers} - EVERYBODYS


@pytest.mark.parametrize("service", SERVICES)
def test_a_readme_follows_the_template(service: str):
    lines = [line for line in lines_of(service) if line]
    assert lines[0] == f"# {service}"
    assert re.match(r"[A-Z].*", lines[1]), "a sentence that says what the service is for"
    assert [line for line in lines if line.startswith("## ")] == HEADINGS
    assert list(cells(service)) == ROWS
    assert lines.index(HEADINGS[0]) > next(i for i, line in enumerate(lines) if line.startswith("| owns"))


@pytest.mark.parametrize("service", SERVICES)
def test_topics_that_a_readme_names_are_those_of_the_contract(service: str):
    if service == "auditor":
        assert cells(service)["listens to"].startswith(" nothing; reads every topic but `run.metrics`")
        return
    assert {*NAME.findall(cells(service)["listens to"])} == {topic.name for topic in read_by(service)}
    assert {*NAME.findall(cells(service)["emits"])} == {topic.name for topic in written_by(service)}


@pytest.mark.parametrize("service", SERVICES)
def test_messages_that_a_readme_says_are_emitted_are_carried_by_those_topics(service: str):
    carried = {message.type for topic in written_by(service) for message in topic.messages}
    assert named_messages(cells(service)["emits"]) <= carried


@pytest.mark.parametrize("service", SERVICES)
def test_messages_that_a_readme_says_are_listened_to_are_handled(service: str):
    handled = {each for types in HANDLED.get(service, {}).values() for each in types}
    assert named_messages(cells(service)["listens to"]) <= handled


@pytest.mark.parametrize("service", SERVICES)
def test_a_readme_names_every_fact_that_the_service_writes(service: str):
    """Where a topic has but this writer, all that it carries is the service's; `every message` says so too."""
    cell = cells(service)["emits"]
    own = [topic for topic in written_by(service) if topic.writers == (service,) and not topic.is_commands]
    facts = {
        message.type
        for topic in own
        if f"`{topic.name}`: every message" not in cell
        for message in topic.messages
    }
    assert facts - ANSWERS <= named_messages(cell)


def test_the_template_of_a_new_service_is_the_same():

    lines = FILES["README.md"].splitlines()
    assert [line for line in lines if line.startswith("## ")] == HEADINGS
    assert [line.strip("| ") for line in lines if line.startswith("| ") and line.strip("| ")] == ROWS
