"""Does a live stack keep the invariants?"""

import asyncio

from ops.connection import Connection
from ops.doctor.finding import Finding
from ops.doctor.history import History, Limits
from ops.doctor.invariants import check, lasting
from ops.doctor.objects import Say
from ops.doctor.reading import read_history


async def examine(
    connection: Connection, limits: Limits, *, deep: bool, say: Say
) -> tuple[History, list[Finding]]:
    """Read the stack again after the grace where something was found: what is gone by then was under way."""
    history = await read_history(connection, deep=deep, say=say)
    findings = check(history, limits)
    if findings:
        say(f"{len(findings)} findings; looking again in {limits.grace.total_seconds():g} s")
        await asyncio.sleep(limits.grace.total_seconds())
        history = await read_history(connection, deep=deep, say=say)
        findings = lasting(findings, check(history, limits))
    return history, findings
