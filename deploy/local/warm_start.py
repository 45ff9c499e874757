"""Classes of the broker linked ahead of time, which halves the cost of its start. Java 25 and newer."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from deploy.local import kafka
from deploy.local.binaries import Binaries, archive_entry
from deploy.local.cache import cached
from deploy.local.errors import StackError, end_of
from deploy.local.state import State
from deploy.local.supervisor import Supervisor

RUN_SECONDS = 120.0


def warm_up(parts: Binaries) -> Binaries:
    """Make the archive if this Java can and it is not there. Without one the broker only starts slower."""
    entry = archive_entry(parts.java, parts.jars)
    if entry is None:
        return parts
    folder = cached(
        entry.parent.name,
        is_complete=lambda folder: (folder / entry.name).is_file(),
        make=lambda draft: asyncio.run(_record(parts, draft / entry.name)),
    )
    return replace(parts, archive=folder / entry.name)


async def _record(parts: Binaries, archive: Path) -> None:
    """One ordinary run of a broker, which writes down what it loaded when it stops."""
    state = State(archive.with_name("state"))
    state.prepare()
    kafka.prepare(state, parts)
    program = kafka.program(state, parts)
    java, *arguments = program.command
    supervisor = Supervisor(state, report=lambda line: None)
    supervisor.restarting = False
    supervisor.start(replace(program, command=(java, f"-XX:AOTCacheOutput={archive}", *arguments)))
    try:
        await supervisor.wait_ready(kafka.NAME, timeout_seconds=RUN_SECONDS)
        await kafka.set_up(state, ("demo",))
    finally:
        await supervisor.stop(kafka.NAME, grace_seconds=RUN_SECONDS)
    if not archive.exists():
        raise StackError(f"the broker wrote no class archive; its log {end_of(state.log(kafka.NAME))}")
    shutil.rmtree(state.root)
