"""I15 on broken histories."""

from dataclasses import replace

from ops.doctor.history import History, Waiting
from schemas.topics import tenant_events
from tests.builders import TENANT
from tests.unit.ops.histories import (
    READ_AT,
    Publisher,
    a_snapshot,
    alarms,
    first_attempt,
    second_attempt,
    with_kernel,
)

COPIES = tenant_events(TENANT).name


def copied_from(step) -> History:
    """A history of a tenant whose facts are copied from this step on."""
    publisher = Publisher()
    for each in (first_attempt, second_attempt):
        publisher.copies_for = TENANT if publisher.copies_for or each is step else ""
        each(publisher)
    return publisher.history(snapshot=a_snapshot(tenants=frozenset({TENANT})))


def without_copy(history: History, event_type: str) -> History:
    entries = tuple(e for e in history.entries if (e.topic, e.type) != (COPIES, event_type))
    gateway = history.kernels["gateway"]
    outbox = tuple(row for row in gateway.outbox if (row.topic, row.type) != (COPIES, event_type))
    return with_kernel(replace(history, entries=entries), "gateway", outbox=outbox)


def test_every_fact_of_the_tenant_has_its_copy():
    assert "I15" not in alarms(copied_from(first_attempt))


def test_a_fact_without_a_copy():
    (finding,) = alarms(without_copy(copied_from(first_attempt), "JobStopping"))["I15"]
    assert (finding.found, finding.expected) == ("no copy", f"one in {COPIES}")
    assert "JobStopping of 'ftjob-1'" in finding.where


def test_a_copy_that_is_a_row_of_the_outbox_is_on_its_way():
    history = copied_from(first_attempt)
    entries = tuple(e for e in history.entries if (e.topic, e.type) != (COPIES, "JobSucceeded"))
    assert "I15" not in alarms(replace(history, entries=entries))


def test_what_was_before_the_tenant_had_topics_has_none():
    history = copied_from(second_attempt)
    assert len([entry for entry in history.entries if entry.topic == COPIES]) > 5
    assert "I15" not in alarms(history)


def test_what_the_gateway_has_not_come_to_or_has_set_aside_has_none_yet():
    history = without_copy(copied_from(first_attempt), "JobSucceeded")
    assert "I15" in alarms(history)
    positions = history.kernels["gateway"].positions
    behind = {**positions, ("job.events", "ftjob-1"): positions["job.events", "ftjob-1"] - 1}
    assert "I15" not in alarms(with_kernel(history, "gateway", positions=behind))
    entry = next(each for each in history.entries if each.type == "JobSucceeded")
    waiting = Waiting(entry.topic, 0, entry.offset, entry.event_id, READ_AT)
    assert "I15" not in alarms(with_kernel(history, "gateway", waiting=(waiting,)))


def test_a_tenant_without_topics_gets_none():
    history = without_copy(copied_from(first_attempt), "JobStopping")
    assert "I15" not in alarms(replace(history, snapshot=a_snapshot(tenants=frozenset())))
