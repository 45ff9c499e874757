"""What the page says of a job: its state in words, why it waits, what may be done. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from statistics import quantiles
from typing import Literal

from schemas.alert import AlertRule
from schemas.job import waits_unreported
from schemas.lifecycle import TERMINAL, JobState
from services.gateway import alerts, job_responses, model, representations
from services.gateway.alert_responses import Alert
from services.gateway.alerts import AlertRow
from services.gateway.page import formats

Tone = Literal["idle", "active", "good", "warn", "bad"]
Action = Literal["pause", "resume", "cancel", "retry", "continue"]


@dataclass(frozen=True)
class Badge:
    """A state by shape, word and colour."""

    word: str
    tone: Tone
    icon: str


STATES: Mapping[JobState, Badge] = {
    JobState.VALIDATING: Badge("validating", "idle", "dashed-ring"),
    JobState.QUEUED: Badge("queued", "idle", "ring"),
    JobState.PROVISIONING: Badge("starting", "idle", "half-disc"),
    JobState.RUNNING: Badge("training", "active", "play"),
    JobState.STOPPING: Badge("saving", "active", "arrow"),
    JobState.PAUSED: Badge("paused", "warn", "bars"),
    JobState.EVALUATING: Badge("evaluating", "active", "diamond"),
    JobState.SUCCEEDED: Badge("succeeded", "good", "check"),
    JobState.FAILED: Badge("failed", "bad", "cross"),
    JobState.CANCELLED: Badge("cancelled", "idle", "slashed-ring"),
}
GATES: Mapping[str, Badge] = {
    "passed": Badge("passed", "good", "check"),
    "failed": Badge("failed", "bad", "cross"),
    "inconclusive": Badge("inconclusive", "warn", "question"),
    "pending": Badge("not judged yet", "idle", "ring"),
    "not_asked": Badge("not asked", "idle", "slashed-ring"),
    "running": Badge("running", "active", "diamond"),
    "not_requested": Badge("not asked", "idle", "slashed-ring"),
}
EXPORTS: Mapping[str, Badge] = {
    "running": Badge("running", "active", "diamond"),
    "ready": Badge("ready", "good", "check"),
    "failed": Badge("failed", "bad", "cross"),
}
ROUTES: Mapping[str, Badge] = {
    "ready": Badge("ready", "good", "check"),
    "pending": Badge("loading", "active", "arrow"),
    "failed": Badge("failed", "bad", "cross"),
    "stale": Badge("stale", "warn", "clock"),
    "withdrawn": Badge("withdrawn", "idle", "slashed-ring"),
    "stopped": Badge("stopped", "idle", "slashed-ring"),
}
GENERATIONS: Mapping[str, Badge] = {
    **{state: ROUTES[state] for state in ("pending", "failed", "withdrawn")},
    "replaced": Badge("replaced", "idle", "slashed-ring"),
    "ready": Badge("became ready", "idle", "check"),
}
STAGES: Mapping[str, Badge] = {
    "dev": Badge("dev", "idle", "ring"),
    "staging": Badge("staging", "active", "half-disc"),
    "production": Badge("production", "good", "check"),
    "archived": Badge("archived", "idle", "slashed-ring"),
}
LEVELS: Mapping[str, Badge] = {
    "info": Badge("info", "idle", "ring"),
    "warn": Badge("warning", "warn", "question"),
    "error": Badge("error", "bad", "cross"),
}
BEFORE_ITS_GATE = frozenset({*JobState} - {*TERMINAL, JobState.EVALUATING})


@dataclass(frozen=True)
class Progress:
    done: int
    total: int | None
    unit: str
    what: str
    left: str
    """Time that is left, as a range."""

    @property
    def share(self) -> float | None:
        return self.done / self.total if self.total else None


@dataclass(frozen=True)
class Command:
    """A button; `why_not` is the reason beside one that cannot be pressed."""

    action: Action
    verb: str
    why_not: str = ""
    effect: str = ""
    """What the dialog says that it does; without one nothing is asked."""


@dataclass(frozen=True)
class Trouble:
    """What a list says beside a job's state."""

    word: str
    message: str


@dataclass(frozen=True)
class JobView:
    id: str
    name: str
    badge: Badge
    sentence: str
    """What it waits for, what went wrong, or what came of it."""
    progress: Progress | None
    commands: tuple[Command, ...]
    troubles: tuple[Trouble, ...]
    alerts: tuple[model.OpenAlert, ...]
    answer: job_responses.Job
    """The same as programs get."""
    valid_loss: float | None
    version: str
    created_at: datetime
    finished_at: datetime | None

    @property
    def is_over(self) -> bool:
        return self.answer.retune.state in TERMINAL

    @property
    def uncharged(self) -> Decimal:
        return Decimal(self.answer.retune.uncharged_cost_usd)

    @property
    def cost_so_far(self) -> Decimal:
        """What is charged, or will be unless the present attempt turns out to be free."""
        ours = self.answer.retune
        return Decimal(ours.cost_usd) + Decimal(ours.running_cost_usd or 0)

    @property
    def position(self) -> int | None:
        queue = self.answer.retune.queue
        return queue.position if queue else None

    @property
    def gate(self) -> Badge:
        return GATES[self.answer.retune.gate.status]

    @property
    def method(self) -> str:
        return str(self.answer.retune.recipe.get("method", formats.UNKNOWN))


def job_view(row: model.Job, *, now: datetime) -> JobView:
    answer = representations.job(row)
    return JobView(
        id=row.job_id,
        name=_name(row),
        badge=job_badge(answer),
        sentence=sentence(answer, now=now),
        progress=progress(row, answer),
        commands=commands(row),
        troubles=troubles(row),
        alerts=row.alerts,
        answer=answer,
        valid_loss=row.valid_loss,
        version=row.version,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def _name(row: model.Job) -> str:
    own, trial = row.spec.suffix or row.spec.metadata.get("name"), row.spec.trial
    return own or row.job_id if trial is None else f"trial {trial.number} of {own or trial.sweep_id}"


def job_badge(answer: job_responses.Job) -> Badge:
    """The worst that is known: training that went well is no success where the gate did not pass."""
    state, gate = answer.retune.state, answer.retune.gate.status
    if state is JobState.SUCCEEDED and gate in ("failed", "inconclusive"):
        return Badge(f"gate {GATES[gate].word}", GATES[gate].tone, GATES[gate].icon)
    return STATES[state]


def sentence(answer: job_responses.Job, *, now: datetime) -> str:
    ours = answer.retune
    match ours.state:
        case JobState.QUEUED:
            return _queued(ours, now=now)
        case JobState.PROVISIONING if ours.waiting_for:
            return f"attempt {ours.attempt} waits for {ours.waiting_for}"
        case JobState.PROVISIONING:
            return f"nodes of attempt {ours.attempt} are starting"
        case JobState.PAUSED:
            return f"waits for {ours.waiting_for or 'somebody to resume it'}"
        case JobState.SUCCEEDED if ours.gate.status != "passed":
            return ours.gate.reason or answer.error.message or ""
        case JobState.SUCCEEDED:
            return _passed(ours, answer.error.message)
        case JobState.FAILED if isinstance(answer.error, job_responses.JobFailure):
            return f"{answer.error.failure_class.replace('_', ' ')}: {answer.error.message}"
        case JobState.FAILED | JobState.CANCELLED:
            return answer.error.message or ""
        case _:
            return ours.waiting_for


def _passed(ours: job_responses.JobExtensions, problem: str | None) -> str:
    if ours.is_deployed:
        return "passed its gate and answers"
    return problem or "passed its gate; it answers once it is deployed, by the button on its model's page"


def _queued(ours: job_responses.JobExtensions, *, now: datetime) -> str:
    waits = f"waits for {ours.waiting_for}" if ours.waiting_for else "waits for the scheduler"
    if ours.queue is None:
        return waits
    place = f"number {ours.queue.position} in the queue, " if ours.queue.position else ""
    if ours.queue.estimated_start is None:
        return f"{place}{waits}; start not estimated"
    return f"{place}{waits}; {_start(datetime.fromtimestamp(ours.queue.estimated_start, UTC) - now)}"


def _start(wait: timedelta) -> str:
    """The range in which the scheduler does not correct its estimate (decision 0131)."""
    if wait < timedelta(seconds=1):
        return "starts any moment"
    least, most = (each.total_seconds() for each in waits_unreported(wait))
    return f"starts in {formats.span(least, most)}" if least else f"starts within {formats.duration(most)}"


def progress(row: model.Job, answer: job_responses.Job) -> Progress | None:
    known = answer.retune.progress
    if known is None:
        return None
    if known.unit == "items":
        what = " ".join(word for word in (known.activity, known.part, known.side) if word)
        left = "" if known.seconds_left is None else f"about {formats.duration(known.seconds_left)}"
        return Progress(known.done, known.total, "items", what, left)
    left = time_left(row.newest_steps, num_left=(known.total or 0) - known.done)
    return Progress(known.done, known.total, "steps", "training", left)


def time_left(newest: Sequence[model.Step], *, num_left: int) -> str:
    """As quick and as slow as the middle half of the newest steps of the attempt, which come newest first."""
    steps = [step for step in newest if step.attempt == newest[0].attempt]
    times = [datetime.fromisoformat(str(step.metrics["time"])) for step in steps]
    seconds = [
        max(0.0, (later - earlier).total_seconds()) / (newer.step - older.step)
        for later, earlier, newer, older in zip(times, times[1:], steps, steps[1:], strict=False)
    ]
    if not seconds:
        return ""
    quick, _, slow = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return formats.span(max(0.0, quick) * num_left, slow * num_left)


def commands(row: model.Job) -> tuple[Command, ...]:
    """Buttons of a job in this state; those that can never be of use in it are not there."""
    if row.state is JobState.SUCCEEDED:
        return ()
    if row.state in TERMINAL:
        again = Command("retry", "Retry from the start")
        return (
            (Command("continue", "Continue from its newest checkpoint"), again) if row.last_step else (again,)
        )
    if row.state is JobState.EVALUATING:
        why_not = "the gate is running: it decides about the model that is trained"
        return (Command("pause", "Pause", why_not), Command("cancel", "Cancel job", why_not))
    stopping = "it is saving already" if row.state is JobState.STOPPING else ""
    first = (
        Command("resume", "Resume") if row.state is JobState.PAUSED else Command("pause", "Pause", stopping)
    )
    return (first, Command("cancel", "Cancel job", effect=_what_cancel_does(row)))


def troubles(row: model.Job) -> tuple[Trouble, ...]:
    """Open alerts that are not muted, and whether it takes longer than was estimated."""
    shown = []
    if messages := [each.message for each in row.alerts if not each.is_muted]:
        shown.append(Trouble(formats.plural(len(messages), "open alert"), "; ".join(messages)))
    if row.is_late:
        most = formats.duration(row.estimated_times[0].seconds.high)
        shown.append(Trouble("running late", f"it was estimated to take at most {most}"))
    return tuple(shown)


@dataclass(frozen=True)
class ModelView:
    id: str
    name: str
    badge: Badge
    row: model.ModelVersion
    why_not_deployed: str
    """Why it cannot be deployed now; empty where it can."""


def model_view(row: model.ModelVersion) -> ModelView:
    badge = (
        Badge("stale", "warn", "clock")
        if row.is_stale
        else STAGES.get(row.stage, Badge(row.stage, "idle", "ring"))
    )
    return ModelView(row.model_id, row.full_name, badge, row, _why_not_deployed(row))


def _why_not_deployed(row: model.ModelVersion) -> str:
    if row.is_stale:
        return "its base model has other files now: train it again"
    return (
        "" if row.stage in ("staging", "production") else f"it is in {row.stage}: its gate has not passed it"
    )


@dataclass(frozen=True)
class RouteView:
    slot: str
    badge: Badge
    reason: str
    row: model.Route
    updated_at: datetime


def route_view(row: model.Route) -> RouteView:
    unknown = Badge(row.state, "idle", "ring")
    return RouteView(row.slot, ROUTES.get(row.state, unknown), row.reason, row, row.updated_at)


@dataclass(frozen=True)
class AlertView:
    badge: Badge
    rule: str
    answer: Alert
    raised_at: datetime
    cleared_at: datetime | None
    muted_until: datetime | None
    """When its mute ends; None where that does not end by itself, or there is none."""


def alert_view(row: AlertRow) -> AlertView:
    answer = alerts.representation(row)
    badge = Badge("open", "warn", "bolt") if row.cleared_at is None else Badge("passed", "idle", "check")
    if row.cleared_at is None and answer.mute is not None:
        badge = Badge("muted", "idle", "slashed-ring")
    return AlertView(badge, words_of(row.rule), answer, row.raised_at, row.cleared_at, row.mute_until)


def words_of(rule: AlertRule) -> str:
    return rule.value.replace("_", " ")


def _what_cancel_does(row: model.Job) -> str:
    if row.last_step == 0:
        return "It ends before its first step. Nothing is trained, and it cannot be resumed."
    steps = formats.plural(row.last_step, "step")
    return f"It ends after {steps}. It cannot be resumed; its checkpoints stay, and a retry may continue from one."
