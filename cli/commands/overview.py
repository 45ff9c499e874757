"""`retune` alone: where the tenant is, and what to do next."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cli.commands.context import api, connection
from cli.commands.watch import ending, line
from cli.output import note, show
from ops.errors import Unreachable
from schemas.lifecycle import TERMINAL

Resource = dict[str, Any]


NEWEST_JOBS = 20
MOST = 100
"""Base models, slots and alerts that are looked at."""


@dataclass(frozen=True)
class Overview:
    jobs: Sequence[Resource]
    """The newest ones, newest first."""
    base_models: Sequence[Resource]
    deployments: Sequence[Resource]
    alerts: Sequence[Resource]
    """Those that are open."""


def show_overview() -> None:
    """Raises Unreachable where there is no platform, with what to do about it."""
    try:
        overview = Overview(
            jobs=api().get("/fine_tuning/jobs", limit=NEWEST_JOBS)["data"],
            base_models=api().get("/models", type="base", limit=MOST)["data"],
            deployments=api().get("/deployments", limit=MOST)["data"],
            alerts=api().get("/alerts", open="true", limit=MOST)["data"],
        )
    except Unreachable:
        note("`retune --help` lists all commands")
        raise
    show(asdict(overview), "\n".join((f"platform     {connection().base_url}", *lines_of(overview))))


def lines_of(overview: Overview) -> Iterator[str]:
    yield f"jobs         {_counted([job['retune']['state'] for job in overview.jobs])}"
    for job in _under_way(overview):
        yield f"  {job['id']} {line(job)}"
    yield f"deployments  {_counted([each['status'] for each in overview.deployments])}"
    if overview.alerts:
        num_muted = sum(bool(each.get("mute")) for each in overview.alerts)
        muted = f", {num_muted} of them muted" if num_muted else ""
        yield f"alerts       {len(overview.alerts)} open{muted}"
    yield f"next         {next_step(overview)}"


def next_step(overview: Overview) -> str:
    """Return what somebody who has done nothing else since would do."""
    if under_way := _under_way(overview):
        return f"`retune jobs watch {under_way[0]['id']}` follows the newest job that is under way"
    if not overview.base_models:
        return "`retune models register-base NAME FOLDER` registers a model to start from"
    if not overview.jobs:
        return f"`retune jobs submit rows.jsonl --model {overview.base_models[0]['id']} --watch` trains on your rows"
    newest = overview.jobs[0]
    if newest["retune"]["is_usable"] and newest["retune"]["is_deployed"]:
        return f"ask {newest['fine_tuned_model']} for an answer, by its name as `model`"
    return ending(newest).replace("\nnext: ", ": ")


def _under_way(overview: Overview) -> list[Resource]:
    return [job for job in overview.jobs if job["retune"]["state"] not in TERMINAL]


def _counted(states: Sequence[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items()) or "none"
