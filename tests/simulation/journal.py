"""What a node's disk remembers of its runner, after `services/trainer_agent/runner/journal.py`."""

from dataclasses import dataclass, field

from schemas.training import RunnerReport, RunnerStopped


@dataclass
class Reported:
    id: str
    report: RunnerReport
    is_acknowledged: bool = False


@dataclass
class Journal:
    has_started_child: bool = False
    reports: list[Reported] = field(default_factory=list)

    @property
    def unacknowledged(self) -> list[Reported]:
        return [report for report in self.reports if not report.is_acknowledged]

    @property
    def last_word(self) -> RunnerStopped | None:
        return next((each.report for each in self.reports if isinstance(each.report, RunnerStopped)), None)
