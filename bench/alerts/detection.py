"""Recall, delay and false alarms of the tracker's alerts on curves with and without planted faults.

`python -m bench.alerts.detection [SEED]` hands each curve to the rules as the tracker does: steps in batches, and a
look where the row says that one is due. A fault is found when its rule is raised after it began; what else is raised
after that is not counted. Anything that is raised on a curve without a fault, or before one begins, is a false alarm.
The delay is from the end of the first step that the fault changed to the end of the step at which the alert was
raised; the runner sends steps every two seconds, which comes on top.
"""

import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from bench import report
from bench.alerts.curves import FAMILIES, Curve, recorded, simulated
from bench.alerts.faults import ON_RECORDED, PLANTS
from schemas.alert import AlertRaised, AlertsSpec
from schemas.training import StepMetrics, StepValidated
from services.tracker.decide import alerts
from services.tracker.decide.alerts import Plan, Watch
from services.tracker.decide.looks import Spending

SEED = 7_001
"""Not a seed that a rule was looked at with: those are below 100."""
CLEAN = 240
PLANTED = 32
"""Simulated curves with a fault of each kind."""
BATCH = 25
START = datetime(2027, 3, 1, tzinfo=UTC)
PRICE = Decimal(4)
LONGEST_SILENCE = timedelta(minutes=30)


@dataclass(frozen=True)
class Case:
    curve: Curve
    fault: str | None = None
    onset: int = 0
    expected_cost: Decimal | None = None


@dataclass(frozen=True)
class Outcome:
    """What a case showed. The curve is not kept: they are large."""

    name: str
    family: str
    fault: str | None
    seconds_per_step: float
    raised: tuple[tuple[str, float], ...]
    """Rules, each with its time in seconds."""
    onset_seconds: float
    clean_seconds: float
    """Time of training without a fault, or before it."""

    @property
    def false_alarms(self) -> list[str]:
        """Recorded runs count once: as they are, and not with each fault again."""
        if not self.clean_seconds:
            return []
        return [rule for rule, at in self.raised if self.fault is None or at < self.onset_seconds]

    @property
    def delay(self) -> float | None:
        """Seconds from the fault to its alert; None where it was not found."""
        return self._first(lambda rule: rule == self.fault)

    @property
    def first_delay(self) -> float | None:
        """Seconds from the fault to the first alert of any rule."""
        return self._first(lambda rule: True)

    def _first(self, fits: Callable[[str], bool]) -> float | None:
        late = [at - self.onset_seconds for rule, at in self.raised if fits(rule)]
        return next((delay for delay in late if delay >= 0), None)


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else SEED
    began = time.process_time()
    outcomes = [run(case) for case in cases(random.Random(seed))]
    results = summary(outcomes) | {"processor_seconds": round(time.process_time() - began, 1)}
    settings = {"seed": seed, "clean": CLEAN, "planted_of_each": PLANTED, "families": FAMILIES}
    if len(sys.argv) > 1:
        for line in _lines(results, outcomes):
            report.progress(line)
        return
    report.write("alerts-detection", results, packages=("pydantic",), settings=settings)


def cases(draw: random.Random) -> Iterator[Case]:
    for number in range(CLEAN):
        yield Case(simulated(draw, FAMILIES[number % len(FAMILIES)]), expected_cost=Decimal(10**6))
    for fault in PLANTS:
        for number in range(PLANTED):
            yield _planted(draw, fault, FAMILIES[number % len(FAMILIES)])
    for number in range(PLANTED):
        yield _dear(draw, FAMILIES[number % len(FAMILIES)])
    for curve in recorded(draw):
        yield Case(curve)
    for fault in ON_RECORDED:
        for curve in recorded(draw):
            onset = draw.randint(len(curve) // 3, 2 * len(curve) // 3)
            PLANTS[fault](draw, curve, onset)
            yield Case(curve, fault, onset)


def _planted(draw: random.Random, fault: str, family: str) -> Case:
    is_long = fault == "plateau"
    curve = simulated(draw, family, least=4000 if is_long else 600, most=6000 if is_long else 2400)
    first, last = (0.05, 0.1) if is_long else (0.3, 0.6)
    onset = draw.randint(int(first * len(curve)), int(last * len(curve)))
    if curve.resumed_at is not None and abs(onset - curve.resumed_at) < 100:
        curve.resumed_at = None
    PLANTS[fault](draw, curve, onset)
    return Case(curve, fault, onset)


def _dear(draw: random.Random, family: str) -> Case:
    """A plan that the whole run, at its usual speed, would meet by a tenth; steps become much slower."""
    curve = simulated(draw, family)
    curve.resumed_at = None
    cost = PRICE * Decimal(sum(curve.seconds)) / 3600
    onset = draw.randint(int(0.2 * len(curve)), int(0.4 * len(curve)))
    factor = draw.uniform(2, 4)
    for index in range(onset, len(curve)):
        curve.seconds[index] *= factor
    return Case(curve, "cost_above_plan", onset, expected_cost=cost * Decimal("1.1"))


def run(case: Case) -> Outcome:
    return _Simulation(case).outcome()


class _Simulation:
    def __init__(self, case: Case) -> None:
        self.case = case
        self._watch = self._new(attempt=1)
        self._raised: list[tuple[str, float]] = []
        self._clock = START
        self._batch = 1 if case.fault == "stall" else BATCH
        self._began = START
        self._ends: list[datetime] = []

    def outcome(self) -> Outcome:
        curve = self.case.curve
        batch: list[StepMetrics] = []
        for index in range(len(curve)):
            if index == curve.resumed_at:
                self._send(batch)
                self._resume()
                batch = []
            self._clock += timedelta(seconds=curve.seconds[index])
            self._ends.append(self._clock)
            batch.append(self._step(index))
            if len(batch) == self._batch or index in curve.validations:
                self._send(batch)
                batch = []
        self._send(batch)
        onset = self._seconds(self._ends[min(self.case.onset, len(self._ends) - 1)])
        if self.case.fault == "stall":
            self._wait()
        return Outcome(
            name=curve.name,
            family=curve.family,
            fault=self.case.fault,
            seconds_per_step=sum(curve.seconds) / len(curve),
            raised=tuple(self._raised),
            onset_seconds=onset,
            clean_seconds=self._clean_seconds(),
        )

    def _clean_seconds(self) -> float:
        curve = self.case.curve
        if self.case.fault is None:
            return sum(curve.seconds)
        return 0.0 if curve.family == "recorded" else sum(curve.seconds[: self.case.onset])

    def _new(self, attempt: int) -> Watch:
        actions = AlertsSpec(expected_cost=self.case.expected_cost)
        plan = Plan(actions, self.case.curve.num_epochs, validates=bool(self.case.curve.validations))
        return Watch("ftjob-1", attempt, "acme", plan)

    def _resume(self) -> None:
        """The next attempt begins an hour later, by a gradient and a speed that mean nothing yet."""
        self._watch = self._new(attempt=2)
        self._clock += timedelta(hours=1)

    def _send(self, batch: list[StepMetrics]) -> None:
        if not batch:
            return
        curve, index = self.case.curve, batch[-1].step - 1
        loss = curve.validations.get(index)
        measured = [StepValidated(step=index + 1, metrics={"full_valid_loss": loss})] if loss else []
        self._keep(alerts.on_steps(self._watch, batch, measured, now=batch[-1].time))
        self._look(batch[-1].time)

    def _look(self, now: datetime) -> None:
        spending = Spending(Decimal(0), PRICE, self._began) if self.case.expected_cost else None
        self._keep(alerts.look(self._watch, spending, now=now, listening_since=START))

    def _wait(self) -> None:
        """Nothing comes any more: looks every five seconds, as the row asks for them."""
        end = self._ends[-1]
        for number in count(1):
            now = end + timedelta(seconds=5 * number)
            if "stall" in self._watch.signals.open or now - end > LONGEST_SILENCE:
                return
            self._keep(alerts.look(self._watch, None, now=now, listening_since=START), at=now)

    def _keep(self, seen: alerts.Seen, at: datetime | None = None) -> None:
        self._watch = seen.watch
        for event in seen.events:
            if isinstance(event, AlertRaised):
                self._raised.append((event.rule.value, self._seconds(at or self._ends[event.step - 1])))

    def _seconds(self, at: datetime) -> float:
        return (at - START).total_seconds()

    def _step(self, index: int) -> StepMetrics:
        curve = self.case.curve
        return StepMetrics.model_construct(
            step=index + 1,
            time=self._clock,
            loss=curve.losses[index],
            learning_rate=curve.rates[index],
            grad_norm=curve.gradients[index],
            num_tokens=4096,
            tokens_per_second=curve.speeds[index],
            memory_bytes=curve.memory[index],
            epoch=curve.num_epochs * (index + 1) / len(curve) if self.case.fault != "stall" else 0.3,
            mfu=0.4,
            device_utilization=curve.uses[index],
        )


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    false_alarms = Counter(rule for each in outcomes for rule in each.false_alarms)
    hours = sum(each.clean_seconds for each in outcomes) / 3600
    by_fault = defaultdict(list)
    for each in outcomes:
        if each.fault is not None:
            by_fault[each.fault].append(each)
    delays = {fault: [each.delay for each in of] for fault, of in by_fault.items()}
    found = {fault: [delay for delay in of if delay is not None] for fault, of in delays.items()}
    firsts = {
        fault: [each.first_delay or 0.0 for each in of if each.delay is not None]
        for fault, of in by_fault.items()
    }
    planted = sum(map(len, delays.values()))
    return {
        "curves": len(outcomes),
        "curves_without_a_fault": sum(each.fault is None for each in outcomes),
        "recorded_curves": sum(each.family == "recorded" for each in outcomes),
        "recall": round(sum(map(len, found.values())) / planted, 4),
        "clean_job_hours": round(hours),
        "false_alarms": sum(false_alarms.values()),
        "false_alarms_per_1000_job_hours": round(1000 * sum(false_alarms.values()) / hours, 2),
        "false_alarms_by_rule": dict(false_alarms),
        "by_rule": {
            fault: {
                "planted": len(by_fault[fault]),
                "found": len(found[fault]),
                "delay_seconds_median": _at(found[fault], 0.5),
                "delay_seconds_p95": _at(found[fault], 0.95),
                "within_60_seconds": sum(delay <= 60 for delay in found[fault]),
                "any_alert_seconds_median": _at(firsts[fault], 0.5),
                "seconds_per_step_median": _at([each.seconds_per_step for each in by_fault[fault]], 0.5),
            }
            for fault in by_fault
        },
    }


def _at(values: list[float], share: float) -> float | None:
    return round(report.percentile(values, share), 1) if values else None


def _lines(results: dict[str, Any], outcomes: list[Outcome]) -> Iterator[str]:
    for name, value in results.items():
        yield f"{name}: {value}"
    for each in outcomes:
        missed = each.fault is not None and each.delay is None
        if missed or each.false_alarms:
            yield f"{each.name}: fault {each.fault}, missed {missed}, false {each.false_alarms}"


if __name__ == "__main__":
    main()
