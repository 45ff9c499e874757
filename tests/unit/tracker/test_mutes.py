"""Mutes: what they hold back, what they never do, and which commands are refused."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from schemas.alert import AlertCleared, AlertRaised, AlertRule, AlertsSpec, MuteAlerts, UnmuteAlerts
from services.tracker.decide import alerts, mutes
from services.tracker.decide.alerts import Plan, Seen, Watch
from services.tracker.decide.mutes import MOST_OF_A_TENANT, OF_ALL_JOBS
from services.tracker.decide.signals import Open, Signals
from shared.errors import Refused
from tests.unit.tracker.test_alerts import a_step, falling, seen_of

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
STEPS = [a_step(step, loss=5.0 if step in range(101, 107) else falling(step)) for step in range(1, 141)]
SPIKE = {AlertRule.LOSS_SPIKE}


def spike(action: str = "notify", *, until: int = 140) -> Seen:
    """A run with a spike from step 101 to 106, which is raised and later cleared."""
    watch = Watch("ftjob-1", 1, "acme", Plan(alerts=AlertsSpec(loss_spike=action)))
    return seen_of(STEPS[:until], watch)


def marks(seen: Seen) -> list[tuple[type, bool]]:
    return [(type(event), event.is_muted) for event in seen.events]


class TestMuted:
    def test_both_what_is_raised_and_what_is_cleared_of_it_are_marked(self):
        assert marks(alerts.muted(spike(), SPIKE)) == [(AlertRaised, True), (AlertCleared, True)]

    def test_others_are_not(self):
        assert marks(alerts.muted(spike(), {AlertRule.PLATEAU})) == [
            (AlertRaised, False),
            (AlertCleared, False),
        ]
        assert "is_muted" not in spike().events[0].model_dump(mode="json")

    @pytest.mark.parametrize("action", ["pause", "stop"])
    def test_a_rule_that_stops_the_job_is_never_muted(self, action):
        assert marks(alerts.muted(spike(action), SPIKE)) == [(AlertRaised, False), (AlertCleared, False)]

    def test_what_was_raised_muted_is_cleared_muted_however_long_the_mute_was(self):
        open_alert = alerts.muted(spike(until=105), SPIKE)
        assert open_alert.watch.signals.open == {"loss_spike": Open(1, 103, is_muted=True)}
        assert marks(alerts.on_end(open_alert.watch, "it ends")) == [(AlertCleared, True)]

    def test_what_somebody_was_notified_of_is_cleared_with_a_notice(self):
        """Whoever counts open alerts by notices is not left with one for ever."""
        open_alert = spike(until=105)
        assert marks(alerts.muted(alerts.on_end(open_alert.watch, "it ends"), SPIKE)) == [
            (AlertCleared, False)
        ]

    def test_rows_of_an_older_release_are_read(self):
        known = to_jsonable_python(Signals(open={"stall": Open(1, 10)}))
        del known["open"]["stall"]["is_muted"]
        assert TypeAdapter(Signals).validate_python(known).open["stall"].is_muted is False


def mute_command(**changes: object) -> MuteAlerts:
    fields = {"tenant": "acme", "rule": AlertRule.STALL, "muted_by": "key_1 of tenant acme"}
    return MuteAlerts.model_validate(fields | changes)


class TestCommands:
    def mute(self, *, num_mutes: int = 0, is_muted: bool = False, **changes: object) -> mutes.Decision:
        return mutes.mute(mute_command(**changes), num_mutes=num_mutes, is_muted=is_muted, now=NOON)

    def test_mute_a_rule_of_all_jobs_or_of_one_until_a_time_or_for_good(self):
        until = NOON + timedelta(hours=8)
        for_all, of_one = self.mute(), self.mute(job_id="ftjob-1", until=until)
        assert (for_all.mute.job_id, for_all.mute.until) == (OF_ALL_JOBS, None)
        assert (of_one.mute.job_id, of_one.mute.until) == ("ftjob-1", until)
        assert (of_one.fact.job_id, of_one.fact.until, of_one.fact.muted_by) == (
            "ftjob-1",
            until,
            "key_1 of tenant acme",
        )
        assert for_all.fact.job_id is None

    def test_a_time_that_is_past_is_refused_with_both_times(self):
        with pytest.raises(
            Refused, match="until: found 2027-03-01 12:00:00 UTC, expected a time after"
        ) as refused:
            self.mute(until=NOON)
        assert (refused.value.code, refused.value.param) == ("until_is_past", "until")

    def test_are_bounded_but_for_those_that_change_one(self):
        with pytest.raises(Refused, match="found 1000 mutes") as refused:
            self.mute(num_mutes=MOST_OF_A_TENANT)
        assert refused.value.code == "too_many_mutes"
        assert self.mute(num_mutes=MOST_OF_A_TENANT, is_muted=True).mute.rule is AlertRule.STALL
        assert self.mute(num_mutes=MOST_OF_A_TENANT - 1).mute.rule is AlertRule.STALL

    def test_a_time_without_a_zone_is_no_command(self):
        with pytest.raises(ValueError, match="timezone"):
            mute_command(until="2027-03-01T13:00:00")

    def test_unmute_what_is_muted_alone(self):
        command = UnmuteAlerts(
            tenant="acme", rule="stall", job_id="ftjob-1", unmuted_by="key_2 of tenant acme"
        )
        fact = mutes.unmute(command, is_muted=True)
        assert (fact.rule, fact.job_id, fact.unmuted_by) == ("stall", "ftjob-1", "key_2 of tenant acme")
        with pytest.raises(Refused, match="rule stall of job ftjob-1 is not muted") as refused:
            mutes.unmute(command, is_muted=False)
        assert refused.value.code == "unknown_mute"
