"""What looks wrong with an attempt: alerts are raised once per episode, and cleared when the condition has passed."""

from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from schemas.alert import AlertCleared, AlertRaised, AlertRule, AlertsSpec
from schemas.specification import JobSpec
from schemas.training import StepMetrics, StepValidated
from services.tracker.decide import curve, machine
from services.tracker.decide.looks import Spending, cost_above_plan, silence_allowed, stall
from services.tracker.decide.reading import Reading
from services.tracker.decide.signals import Open, Signals, add, are_finite, pass_to
from services.tracker.decide.validation import LOSSES, validation_rise

AlertEvent = AlertRaised | AlertCleared

BY_DEFAULT = AlertsSpec()
LOOK_AGAIN = timedelta(seconds=5)
LOOK_AT_COST = timedelta(seconds=30)


@dataclass(frozen=True)
class Plan:
    """What is known of an attempt beside its steps."""

    alerts: AlertsSpec = BY_DEFAULT
    num_epochs: int | None = None
    """None: not known, so that nothing can be said of its end."""
    validates: bool = False
    """Whether the loss on the whole validation file is measured while it trains."""

    def share_done(self, signals: Signals) -> float | None:
        return min(1.0, signals.epoch / self.num_epochs) if self.num_epochs else None


def plan_of(spec: JobSpec) -> Plan:
    """Return the plan of an attempt with this specification, which is resolved."""
    recipe = spec.recipe
    return Plan(
        alerts=spec.alert_actions,
        num_epochs=None if recipe.num_epochs == "auto" else recipe.num_epochs,
        validates=recipe.has_validations and spec.validation_file is not None,
    )


@dataclass(frozen=True)
class Watch:
    """An attempt that is watched."""

    job_id: str
    attempt: int
    tenant: str
    plan: Plan = Plan()
    signals: Signals = field(default_factory=Signals)
    is_over: bool = False

    @property
    def share_done(self) -> float | None:
        return self.plan.share_done(self.signals)


@dataclass(frozen=True)
class Seen:
    """A watch after what was seen, and the alerts that follow."""

    watch: Watch
    events: tuple[AlertEvent, ...] = ()


def on_steps(
    watch: Watch, steps: Sequence[StepMetrics], validations: Sequence[StepValidated], *, now: datetime
) -> Seen:
    """Look at each step that is newer than all before it; a batch that comes again changes nothing."""
    if watch.is_over:
        return Seen(watch)
    course = _Course(watch)
    for step in steps:
        if step.step > course.signals.step:
            _step(course, step, now=now)
    for validation in validations:
        _validation(course, validation.step, validation.metrics)
    return course.seen()


def on_checkpoint(watch: Watch, step: int, metrics: dict[str, float]) -> Seen:
    course = _Course(watch)
    if watch.is_over or step <= course.signals.checkpoint_step:
        return Seen(watch)
    course.signals.checkpoint_step = step
    course.read(Reading(AlertRule.CHECKPOINT_OVERDUE, False, f"checkpoint written at step {step}"))
    if not watch.plan.validates:
        _validation(course, step, metrics)
    return course.seen()


def on_checkpoint_overdue(watch: Watch, last_step: int, last_written_at: datetime | None) -> Seen:
    """A checkpoint may be heard before the report that there was none: they come on two topics."""
    if watch.is_over or watch.signals.checkpoint_step > last_step:
        return Seen(watch)
    course = _Course(watch)
    last = f"the last one at {last_written_at:%H:%M:%S}" if last_written_at else "none was written"
    course.read(Reading(AlertRule.CHECKPOINT_OVERDUE, True, f"no checkpoint for three intervals; {last}"))
    return course.seen()


def look(watch: Watch, spending: Spending | None, *, now: datetime, listening_since: datetime) -> Seen:
    """Look at what time alone changes."""
    if watch.is_over:
        return Seen(watch)
    course, share_done = _Course(watch), watch.share_done
    course.read(
        stall(
            course.signals,
            now=now,
            listening_since=listening_since,
            validates=watch.plan.validates,
            share_done=share_done,
        )
    )
    expected = watch.plan.alerts.expected_cost
    if expected is not None and spending is not None:
        course.read(
            cost_above_plan(course.signals, spending, expected=expected, share_done=share_done, now=now)
        )
    return course.seen()


def next_look(watch: Watch, *, now: datetime) -> datetime | None:
    """Return when to look again without news; None where nothing would follow."""
    signals, looks = watch.signals, []
    if watch.is_over or signals.heard_at is None:
        return None
    if AlertRule.STALL not in signals.open and watch.share_done != 1.0:
        due = signals.heard_at + silence_allowed(signals, validates=watch.plan.validates)
        looks.append(max(due, now + LOOK_AGAIN))
    if watch.plan.alerts.expected_cost is not None:
        looks.append(now + LOOK_AT_COST)
    return min(looks, default=None)


def on_end(watch: Watch, message: str) -> Seen:
    """Clear what is open: nothing of an attempt that ends can be acted on."""
    course = _Course(watch)
    course.end(message)
    return course.seen()


def on_numeric_failure(watch: Watch, message: str) -> Seen:
    """The trainer ends at the first number that is not finite, before it records the step."""
    course = _Course(watch)
    if not course.signals.episodes.get(AlertRule.NOT_FINITE):
        course.read(Reading(AlertRule.NOT_FINITE, True, message))
    course.end(message)
    return course.seen()


def muted(seen: Seen, rules: Collection[AlertRule]) -> Seen:
    """Mark what is raised by these rules, which are muted, and what is cleared of it.

    A rule that pauses or stops the job is never muted: no job may stop without a notice of the reason.
    """
    actions = seen.watch.plan.alerts
    silenced = {
        (event.rule, event.episode)
        for event in seen.events
        if isinstance(event, AlertRaised)
        and event.rule in rules
        and actions.action_of(event.rule) == "notify"
    }
    if not silenced:
        return seen
    events = tuple(
        event.model_copy(update={"is_muted": True}) if (event.rule, event.episode) in silenced else event
        for event in seen.events
    )
    still_open = {
        rule: replace(each, is_muted=each.is_muted or (rule, each.episode) in silenced)
        for rule, each in seen.watch.signals.open.items()
    }
    signals = replace(seen.watch.signals, open=still_open)
    return Seen(replace(seen.watch, signals=signals), events)


class _Course:
    """One decision: a copy of the signals that it changes, and the alerts so far."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.plan = watch.plan
        self.signals = deepcopy(watch.signals)
        self._events: list[AlertEvent] = []
        self._is_over = watch.is_over

    def read(self, *readings: Reading | None) -> None:
        for reading in readings:
            if reading is not None:
                self._raise(reading) if reading.is_wrong else self._clear(reading.rule, reading.message)

    def end(self, message: str) -> None:
        for rule in list(self.signals.open):
            self._clear(AlertRule(rule), message)
        self._is_over = True

    def seen(self) -> Seen:
        watch = self._watch
        latest = Watch(watch.job_id, watch.attempt, watch.tenant, watch.plan, self.signals, self._is_over)
        return Seen(latest, tuple(self._events))

    def _raise(self, reading: Reading) -> None:
        rule, signals = reading.rule, self.signals
        if rule in signals.open or self._watch.plan.alerts.action_of(rule) == "off":
            return
        episode = signals.episodes.get(rule, 0) + 1
        signals.episodes[rule.value] = episode
        signals.open[rule.value] = Open(episode, signals.step)
        fields = self._fields(rule, episode) | {"message": reading.message}
        measured = {"value": reading.value, "limit": reading.limit, "unit": reading.unit}
        self._events.append(AlertRaised(**fields, **measured))

    def _clear(self, rule: AlertRule, message: str) -> None:
        if (raised := self.signals.open.pop(rule.value, None)) is not None:
            fields = self._fields(rule, raised.episode) | {"message": message}
            self._events.append(AlertCleared(**fields, is_muted=raised.is_muted))

    def _fields(self, rule: AlertRule, episode: int) -> dict[str, object]:
        watch = self._watch
        subject = {"job_id": watch.job_id, "tenant": watch.tenant, "attempt": watch.attempt}
        return subject | {"rule": rule, "episode": episode, "step": self.signals.step}


def _step(course: _Course, step: StepMetrics, *, now: datetime) -> None:
    signals = course.signals
    pass_to(signals, step, now=now)
    course.read(Reading(AlertRule.STALL, False, f"step {step.step} was recorded"))
    course.read(curve.not_finite(signals, step))
    if not are_finite(step):
        return
    course.read(curve.loss_spike(signals, step), curve.gradient_explosion(signals, step))
    add(signals, step)
    done = course.plan.share_done(signals)
    course.read(curve.divergence(signals), curve.plateau(signals, share_done=done))
    course.read(machine.memory_leak(signals), machine.low_utilization(signals, step))


def _validation(course: _Course, step: int, metrics: dict[str, float]) -> None:
    for name in LOSSES:
        if name in metrics:
            course.read(validation_rise(course.signals, name, step, metrics[name]))
