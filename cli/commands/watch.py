"""What people read of a job while it runs, and at its end. Pure: from the job's resource to sentences."""

import time
from typing import Any

from cli.commands.numbers import of_method, of_step, written
from cli.commands.times import shown_duration
from schemas.lifecycle import TERMINAL

Job = dict[str, Any]

LINES_OF_AN_ACTIVITY = 10


def is_over(job: Job) -> bool:
    """Ended, with its verdict: the news of both come on two topics, in any order."""
    ours = job["retune"]
    is_verdict_due = ours["state"] == "succeeded" and ours["gate"]["status"] == "pending"
    return ours["state"] in TERMINAL and not is_verdict_due


def state_of(job: Job) -> str:
    """State, with the stage where there are several, and the gate's status once it has one."""
    ours = job["retune"]
    if stage(job):
        return f"{ours['state']}, {stage(job)}"
    gate = ours["gate"]["status"]
    is_shown = ours["state"] == "succeeded" and gate != "pending"
    return f"{ours['state']}, gate {gate.replace('_', ' ')}" if is_shown else str(ours["state"])


def stage(job: Job) -> str:
    """The one that it is in, where there are several and not all are trained."""
    ours = job["retune"]
    stages = ours.get("stages")
    if not stages or ours["state"] in (*TERMINAL, "evaluating"):
        return ""
    return f"stage {ours['stage'] or 1} of {len(stages)}"


def doing(job: Job) -> str:
    """What the job waits for or how far it is; empty where neither is known."""
    ours = job["retune"]
    if ours["waiting_for"]:
        return _listed(place(job), str(ours["waiting_for"]))
    progress = ours["progress"]
    if not progress:
        return ""
    if progress["activity"] != "training":
        return how_far(progress)
    return _listed(_step(job), *_measured(job), _time_left(progress))


def in_short(job: Job) -> str:
    """Say what `doing` says, shorter: for a line that has details below it."""
    progress = job["retune"]["progress"]
    if not progress or progress["activity"] != "training" or job["retune"]["waiting_for"]:
        return doing(job)
    return _listed(_step(job), _time_left(progress))


def details(job: Job) -> str:
    """What is measured of a job that trains, beside its loss: of its answers a line, and one of how the step went."""
    step = job["retune"].get("newest_step")
    lines = (_measured(job), of_step(step) if step else [], alerts(job))
    return "\n".join(filter(None, (" · ".join(filter(None, line)) for line in lines)))


def _step(job: Job) -> str:
    step = job["retune"].get("newest_step")
    loss = step and f"loss {written('loss', step['loss'])}"
    return _listed(f"step {_counted(job['retune']['progress'])}", loss)


def _measured(job: Job) -> list[str]:
    ours = job["retune"]
    step, progress = ours.get("newest_step"), ours["progress"] or {}
    loss = progress.get("valid_loss")
    return [
        of_method(_method(job), step) if step else "",
        "" if loss is None else f"validation loss {written('valid_loss', loss)}",
    ]


def _method(job: Job) -> str:
    """Return the method of the present stage, or of the job where it has no stages."""
    ours = job["retune"]
    stages = ours.get("stages")
    return str((stages[(ours["stage"] or 1) - 1] if stages else ours)["recipe"]["method"])


def _listed(*parts: str | None) -> str:
    return ", ".join(filter(None, parts))


def place(job: Job) -> str:
    """Describe a queued job's place, as far as it is known: `place 3 in the queue, start expected at 14:05`."""
    queue = job["retune"]["queue"]
    if not queue or queue["position"] is None:
        return ""
    start = queue["estimated_start"]
    expected = start and time.strftime("start expected at %H:%M", time.localtime(start))
    return _listed(f"place {queue['position']} in the queue", expected)


def how_far(progress: dict[str, Any]) -> str:
    """Describe how far a running evaluation is."""
    counted = _counted(progress)
    return _listed(_part(progress), counted and f"{counted} items", _time_left(progress))


def _counted(progress: dict[str, Any]) -> str:
    return f"{progress['done']} of {progress['total']}" if progress["total"] else ""


def line(job: Job) -> str:
    what = f"{state_of(job)}: {doing(job)}" if doing(job) else state_of(job)
    return "; ".join((what, *alerts(job)))


def alerts(job: Job) -> list[str]:
    """What looks wrong with the present attempt."""
    return [f"alert {alert['rule']}: {alert['message']}" for alert in job["retune"].get("alerts", ())]


def mark(job: Job) -> tuple[object, ...]:
    """Lines of two jobs with equal marks say the same, but for a few steps or items."""
    ours = job["retune"]
    progress = ours["progress"] or {}
    tenth = progress["done"] * LINES_OF_AN_ACTIVITY // progress["total"] if progress.get("total") else 0
    where = tuple(progress.get(name) for name in ("activity", "part", "side"))
    rules = tuple(alert["rule"] for alert in ours.get("alerts", ()))
    return state_of(job), place(job), ours["waiting_for"], where, tenth, rules


def ending(job: Job) -> str:
    """One sentence; where the model is not usable, why, and on a line of its own what to do next."""
    ours, name = job["retune"], job["fine_tuned_model"]
    if ours["is_usable"]:
        served = (
            "" if ours["is_deployed"] else f" (not deployed, as asked: `retune deployments deploy {name}`)"
        )
        return f"{job['id']} {state_of(job)}: {name}{served}"
    why = job["error"].get("message") or "no reason is known"
    if ours["state"] != "succeeded":
        return f"{job['id']} {ours['state']}: {why}"
    return f"{job['id']} {state_of(job)}, but its model is not usable: {why}\nnext: {_next_step(job)}"


def _next_step(job: Job) -> str:
    name = job["fine_tuned_model"]
    match job["error"].get("code"):
        case "gate_failed":
            return (
                f"`retune models evaluation {name}` shows every number; "
                "change the data or the recipe and submit again"
            )
        case "gate_inconclusive":
            return (
                f"`retune models evaluation {name}` shows what is missing; register or repair it "
                f"(`retune data --help`), then `retune models evaluate {name}` measures again"
            )
        case "not_deployed":
            return f"`retune deployments deploy {name}` tries again"
        case _:
            return f"`retune jobs events {job['id']}` shows what happened; submit again"


def _part(progress: Job) -> str:
    side = {"base": " of the base model"}.get(progress.get("side") or "", "")
    return (
        f"{progress['activity']} {progress['part']}{side}" if progress["part"] else str(progress["activity"])
    )


def _time_left(progress: Job) -> str:
    seconds = progress["seconds_left"]
    if seconds is None:
        return ""
    return f"about {shown_duration(seconds)} left"
