"""What `status` and `logs` show."""

import time
from pathlib import Path
from typing import IO

import psutil

from deploy.local.network import accepts_connections, answers_ok
from deploy.local.state import PARTS, State
from shared.processes.identity import Identity

POLL_SECONDS = 0.2
ROW = "{:<20}{:<10}{:>8}{:>8}{:>9}{:>10}  {}"


async def survey(state: State) -> tuple[list[str], bool]:
    """Lines of a table, and whether all of it is well."""
    children = state.children()
    holder = state.supervisor()
    where = f"supervisor pid {holder.pid}" if holder else "no supervisor"
    rows = [f"{state.root}: {state.phase() if holder else 'down'}, {where}"]
    if not children:
        return rows, False
    rows.append(ROW.format("name", "state", "pid", "port", "memory", "restarts", "log"))
    healthy = 0
    for name, child in sorted(children.items()):
        health = await _health(state, name, child["process"])
        healthy += health == "healthy"
        rows.append(_row(state, name, health, child))
    return rows, healthy == len(children) and holder is not None


async def _health(state: State, name: str, process: str | None) -> str:
    if process is None or not Identity.parse(process).is_alive():
        return "down"
    port = state.port(name)
    if name in PARTS:
        is_well = await accepts_connections(port)
    else:
        is_well = await answers_ok(port, "/healthz", ca_file=state.ca_file)
    return "healthy" if is_well else "ill"


def _row(state: State, name: str, health: str, child: dict[str, str]) -> str:
    pid = child["process"].split()[0] if child["process"] and health != "down" else "-"
    memory = _memory(int(pid)) if pid != "-" else "-"
    log = state.log(name).relative_to(state.root)
    return ROW.format(name, health, pid, state.port(name), memory, child["restarts"], log)


def _memory(pid: int) -> str:
    """Return what is resident of a process that may end meanwhile."""
    try:
        return f"{psutil.Process(pid).memory_info().rss / 1e6:.0f} MB"
    except psutil.NoSuchProcess:
        return "-"


def show_logs(paths: list[Path], *, lines: int, follow: bool) -> None:
    """Print the last lines of each log, with its name in front if there are several; continue if asked."""
    labels = {path: f"{path.stem:<20} " if len(paths) > 1 else "" for path in paths}
    logs = {path: path.open(errors="replace") for path in paths}
    for path, log in logs.items():
        for line in log.read().splitlines()[-lines:] if lines else []:
            print(labels[path] + line)
    while follow:
        for path, log in logs.items():
            _print_new(log, labels[path])
        time.sleep(POLL_SECONDS)
    for log in logs.values():
        log.close()


def _print_new(log: IO[str], label: str) -> None:
    for line in log.read().splitlines():
        print(label + line, flush=True)
