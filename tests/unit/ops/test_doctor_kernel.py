"""I1 to I4 and I12 on broken histories; on a whole one nothing alarms."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops.doctor.history import Parked, Waiting
from ops.doctor.invariants import INVARIANTS, check, lasting
from ops.doctor.topics import entry_of
from schemas.topics import JOB_EVENTS
from shared.messaging.delivery import Unreadable, read
from shared.record import Record
from tests.unit.ops.histories import (
    LIMITS,
    READ_AT,
    Publisher,
    a_history,
    alarms,
    provisioned,
    running,
    the_entry,
    with_entry,
    with_kernel,
    without,
)

LOCATION = ("job.events", 0, 99)


def test_a_whole_history_alarms_nobody():
    assert check(a_history(), LIMITS) == []


def test_every_invariant_of_the_design_is_there_once():
    assert [name.split()[0] for name in INVARIANTS] == [f"I{number}" for number in range(1, 19)]


class TestPublished:
    def test_a_published_row_without_its_record(self):
        (finding,) = alarms(without(a_history(), "EvalPassed"))["I1"]
        assert finding.where == "evaluator.outbox event EvalPassed-ev-1-1 (EvalPassed of ev-1)"
        assert "not in eval.events" in finding.found

    def test_a_row_published_while_the_topics_were_read_may_be_missing(self):
        history = without(a_history(), "EvalPassed")
        (row,) = history.kernels["evaluator"].outbox
        late = replace(row, created_at=history.began_at - timedelta(seconds=1))
        assert "I1" not in alarms(with_kernel(history, "evaluator", outbox=(late,)))

    def test_a_row_that_waits_longer_than_the_grace(self):
        history = without(a_history(), "EvalPassed")
        (row,) = history.kernels["evaluator"].outbox
        unsent = replace(row, is_published=False)
        (finding,) = alarms(with_kernel(history, "evaluator", outbox=(unsent,)))["I1"]
        assert finding.found.startswith("1 rows not published, the oldest since 2027-03-01 12:00:")

    def test_a_row_that_was_set_aside_is_reported_once_with_its_reason(self):
        history = without(a_history(), "EvalPassed")
        (row,) = history.kernels["evaluator"].outbox
        aside = replace(row, set_aside="MessageSizeTooLargeError")
        (finding,) = alarms(with_kernel(history, "evaluator", outbox=(aside,)))["I1"]
        assert finding.found == "set aside: MessageSizeTooLargeError"

    def test_a_row_of_a_moment_ago_may_wait(self):
        history = without(a_history(), "EvalPassed")
        (row,) = history.kernels["evaluator"].outbox
        new = replace(row, is_published=False, created_at=READ_AT - timedelta(seconds=1))
        assert "I1" not in alarms(with_kernel(history, "evaluator", outbox=(new,)))

    def test_what_the_topic_keeps_no_longer_is_not_missed(self):
        history = without(a_history(), "EvalPassed")
        (row,) = history.kernels["evaluator"].outbox
        old = replace(row, created_at=READ_AT - timedelta(days=30))
        assert "I1" not in alarms(with_kernel(history, "evaluator", outbox=(old,)))


class TestNoPhantoms:
    def test_a_record_without_a_row(self):
        history = a_history()
        entry = the_entry(history, "JobEvaluating")
        forged = replace(entry, event_id="forged", offset=99, sequence=entry.sequence + 9)
        (finding,) = alarms(with_entry(history, entry, entry, forged))["I2"]
        assert (finding.where, finding.found) == ("job.events/0@99 JobEvaluating of 'ftjob-1'", "no row")

    def test_a_record_on_a_partition_where_none_is_known(self):
        history = a_history()
        entry = the_entry(history, "EvalPassed")
        forged = replace(entry, event_id="forged", partition=2, offset=0, key="ev-2")
        assert len(alarms(with_entry(history, entry, entry, forged))["I2"]) == 1

    def test_a_record_by_somebody_who_may_not_write_there(self):
        history = a_history()
        entry = the_entry(history, "EvalPassed")
        (finding,) = alarms(with_entry(history, entry, replace(entry, writer="runner")))["I2"]
        assert (finding.found, finding.expected) == ("written by 'runner'", "one of evaluator")

    def test_a_record_that_says_something_else_than_its_row(self):
        history = a_history()
        entry = the_entry(history, "EvalPassed")
        (finding,) = alarms(with_entry(history, entry, replace(entry, sha256=bytes(32))))["I2"]
        assert "0000000000000000" in finding.found

    def test_bytes_that_nobody_can_read_on_a_service_s_topic(self):
        garbage = read(Record(*LOCATION, b"ftjob-1", (), b"{"))
        assert isinstance(garbage, Unreadable)
        history = a_history()
        last = history.of_topic("job.events")[-1]
        parked = Parked(1, *LOCATION, garbage.event_id, "bad_envelope", "", is_open=True)
        for service in ("gateway", "ingest", "scheduler", "provisioner", "trainer_agent", "tracker"):
            history = with_kernel(history, service, parked=(parked,))
        for service in ("checkpoint_watcher", "evaluator", "registry"):
            history = with_kernel(history, service, parked=(parked,))
        by_invariant = alarms(with_entry(history, last, last, entry_of(garbage)))
        assert [finding.expected for finding in by_invariant.pop("I2")] == [
            "a row in the outbox of scheduler"
        ]
        assert by_invariant == {}

    def test_a_record_whose_row_was_pruned_is_none(self):
        history = a_history()
        rows = [row for row in history.kernels["scheduler"].outbox if row.topic == JOB_EVENTS.name]
        assert "I2" not in alarms(with_kernel(history, "scheduler", outbox=tuple(rows[3:])))

    def test_behind_a_record_that_has_its_row_none_can_have_been_pruned(self):
        history = a_history()
        rows = history.kernels["scheduler"].outbox
        holes = tuple(row for row in rows[1:] if row.type != "JobEvaluating")
        (finding,) = alarms(with_kernel(history, "scheduler", outbox=holes))["I2"]
        assert "JobEvaluating" in finding.where


class TestOnce:
    def test_two_transactions_for_one_cause(self):
        history = a_history()
        rows = history.kernels["scheduler"].outbox
        first = next(row for row in rows if row.causation_id)
        again = replace(rows[-1], causation_id=first.causation_id)
        (finding,) = alarms(with_kernel(history, "scheduler", outbox=(*rows[:-1], again)))["I3"]
        assert finding.where == f"scheduler.outbox, effects of event {first.causation_id}"

    def test_two_effects_of_one_transaction_are_one(self):
        history = a_history()
        rows = history.kernels["scheduler"].outbox
        first = next(row for row in rows if row.causation_id)
        again = replace(rows[-1], causation_id=first.causation_id, time=first.time)
        assert "I3" not in alarms(with_kernel(history, "scheduler", outbox=(*rows[:-1], again)))

    def test_a_fact_that_a_listener_never_came_to(self):
        history = a_history()
        kernel = history.kernels["registry"]
        position = {**kernel.positions, ("eval.events", "ev-1"): 0}
        (finding,) = alarms(with_kernel(history, "registry", positions=position))["I3"]
        assert finding.where == "registry, records of eval.events"
        assert finding.found == (
            "1 neither applied nor set aside, first eval.events/0@0 (EvalPassed of ev-1)"
        )

    def test_a_claim_that_was_never_applied(self):
        history = a_history()
        kernel = history.kernels["trainer_agent"]
        claim = the_entry(history, "RunnerStarted")
        other = replace(claim, event_id="another", offset=7)
        (finding,) = alarms(with_entry(history, claim, claim, other))["I3"]
        assert finding.where == "trainer_agent, records of agent.reports"
        assert (claim.topic, "another") not in kernel.inbox

    def test_what_waits_or_is_parked_is_accounted_for(self):
        history = a_history()
        claim = the_entry(history, "RunnerStarted")
        other = replace(claim, event_id="another", offset=7)
        history = with_entry(history, claim, claim, other)
        waiting = Waiting(claim.topic, 0, 7, "another", READ_AT)
        assert "I3" not in alarms(with_kernel(history, "trainer_agent", waiting=(waiting,)))
        parked = Parked(1, claim.topic, 0, 7, "another", "failed", "", is_open=True)
        assert "I3" not in alarms(with_kernel(history, "trainer_agent", parked=(parked,)))

    def test_another_payload_under_an_id_that_was_applied(self):
        history = a_history()
        claim = the_entry(history, "RunnerStarted")
        twin = replace(claim, sha256=bytes(32), offset=7)
        (finding,) = alarms(with_entry(history, claim, claim, twin))["I3"]
        assert finding.expected == "payload 0000000000000000 as in the record"


class TestInOrder:
    def test_a_number_is_left_out(self):
        (finding,) = alarms(without(a_history(), "JobRequeued"))["I4"]
        assert (finding.found, finding.expected) == ("number 7", "number 6")

    def test_two_records_are_swapped(self):
        history = a_history()
        first, second = the_entry(history, "JobSubmitted"), the_entry(history, "JobQueued")
        head = (replace(second, offset=first.offset), replace(first, offset=second.offset))
        history = with_entry(without(history, "JobQueued"), first, *head)
        (finding,) = alarms(history)["I4"]
        assert (finding.found, finding.expected) == ("number 1", "number 3")

    def test_a_batch_that_was_sent_twice_is_in_order(self):
        history = a_history()
        stream = history.of_topic("job.events")
        again = [replace(entry, offset=entry.offset + 2) for entry in (stream[1], stream[2])]
        rest = [replace(entry, offset=entry.offset + 2) for entry in stream[3:]]
        others = [entry for entry in history.entries if entry.topic != "job.events"]
        entries = (*others, *stream[:3], *again, *rest)
        assert check(replace(history, entries=entries), LIMITS) == []

    def test_two_events_with_one_number(self):
        history = a_history()
        entry = the_entry(history, "JobQueued")
        twin = replace(entry, event_id="twin", offset=99)
        assert [f.found for f in alarms(with_entry(history, entry, entry, twin))["I4"]] == [
            "number 2 for event twin"
        ]

    def test_one_story_on_two_partitions(self):
        history = a_history()
        entry = the_entry(history, "JobQueued")
        (finding,) = alarms(with_entry(history, entry, replace(entry, partition=1)))["I4"]
        assert finding.found == "records on partitions [0, 1]"

    def test_a_row_that_is_missing_in_the_middle_of_a_story(self):
        history = a_history()
        rows = history.kernels["trainer_agent"].outbox
        findings = alarms(with_kernel(history, "trainer_agent", outbox=(rows[0], *rows[2:])))["I4"]
        assert [finding.where for finding in findings] == ["trainer_agent.outbox, training.events of ftjob-1"]

    def test_a_reader_that_is_ahead_of_the_writer(self):
        history = a_history()
        positions = {**history.kernels["registry"].positions, ("eval.events", "ev-1"): 5}
        (finding,) = alarms(with_kernel(history, "registry", positions=positions))["I4"]
        assert finding.found == "read up to number 5"


def test_what_the_audit_found_is_reported():
    (finding,) = alarms(a_history(audit=("job.events/0: 3 records less than were signed",)))["I12"]
    assert finding.found == "job.events/0: 3 records less than were signed"


class TestLasting:
    def test_what_a_second_look_does_not_find_was_under_way(self):
        first = check(without(a_history(), "EvalPassed"), LIMITS)
        assert first
        assert lasting(first, check(a_history(), LIMITS)) == []

    def test_what_is_new_at_the_second_look_may_be_under_way(self):
        assert lasting([], check(without(a_history(), "EvalPassed"), LIMITS)) == []

    def test_what_both_found_stays(self):
        findings = check(without(a_history(), "EvalPassed"), LIMITS)
        assert lasting(findings, findings) == findings


class TestCopies:
    """Facts of a tenant stand in two topics, and in the outboxes of two services."""

    @pytest.fixture
    def history(self):
        publisher = Publisher(copies_for="acme")
        publisher.publish("scheduler", running(), cause="one-fact")
        publisher.publish("provisioner", provisioned(), cause="one-fact")
        return publisher.history()

    def test_alarm_nobody(self, history):
        assert not alarms(history).keys() & {"I1", "I2", "I3", "I4"}

    def test_a_copy_that_is_lost(self, history):
        copy = self.first_copy(history)
        lost = replace(history, entries=tuple(entry for entry in history.entries if entry != copy))
        (finding,) = alarms(lost)["I1"]
        assert "gateway.outbox" in finding.where
        assert "not in tenant.acme.events" in finding.found

    def test_a_copy_that_the_gateway_never_wrote(self, history):
        copy = self.first_copy(history)
        forged = replace(copy, event_id="forged", offset=99, sequence=9)
        (finding,) = alarms(with_entry(history, copy, copy, forged))["I2"]
        assert (finding.found, finding.expected) == ("no row", "a row in the outbox of gateway")

    def test_copies_out_of_order(self, history):
        first, second = (entry for entry in history.entries if entry.topic == "tenant.acme.events")
        turned = with_entry(history, first, replace(second, offset=0))
        turned = with_entry(turned, second, replace(first, offset=1))
        assert "I4" in alarms(turned)

    def first_copy(self, history):
        return next(entry for entry in history.entries if entry.topic == "tenant.acme.events")
