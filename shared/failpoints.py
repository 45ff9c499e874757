"""Named places where a test can make a process die, fail or stall; they are off unless FAILPOINTS is set.

FAILPOINTS="db.commit.before=kill@3;relay.sent=raise;outbox.inserted=stall:0.5"
  kill    SIGKILL to this process at the n-th pass (default: the first)
  raise   FailpointHit at the n-th pass
  stall:s block the thread for s seconds at each pass from the n-th on
"""

import os
import signal
import time
from dataclasses import dataclass
from functools import cache

NAMES = frozenset(
    {
        "consume.decoded",
        "tx.begun",
        "inbox.inserted",
        "outbox.inserted",
        "state.written",
        "db.commit.before",
        "db.commit.after",
        "offset.commit.before",
        "offset.commit.after",
        "relay.read",
        "relay.sent",
        "relay.marked",
        "lease.acquired",
        "lease.renewed",
        "lease.lost",
        "park.inserted",
        "dlq.replayed",
        "migrate.step",
        "gc.marked",
        "gc.deleted",
        "s3.part.sent",
        "s3.parts.done",
        "s3.manifest.before",
        "s3.manifest.after",
        "eval.candidate.loaded",
        "eval.devices.leased",
        "eval.work.saved",
        "eval.outcome.read",
        "registry.export.worked",
        "gateway.accepted",
        "gateway.removed",
        "webhook.sent",
        "mirror.logged",
        "provider.create.before",
        "provider.create.after",
        "provider.delete.after",
        "trainer.microbatch.end",
        "trainer.step.end",
        "trainer.validation.microbatch",
        "trainer.validation.end",
        "trainer.save.begin",
        "trainer.save.end",
        "trainer.sigterm",
        "eval.item.done",
        "eval.verdict.before",
        "registry.promote.before",
        "serving.load.one",
        "serving.load.kept",
        "serving.route.switched",
    }
)


class FailpointHit(RuntimeError):
    """The error that a failpoint raises after a test switched it on."""


@dataclass
class _Armed:
    action: str
    at_pass: int
    passes: int = 0


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for entry in filter(None, text.split(";")):
        name, _, rule = entry.partition("=")
        action, _, at_pass = rule.partition("@")
        if name not in NAMES:
            raise ValueError(f"FAILPOINTS entry {entry!r}: found {name!r}, expected one of {sorted(NAMES)}")
        if action.split(":")[0] not in {"kill", "raise", "stall"}:
            raise ValueError(
                f"FAILPOINTS entry {entry!r}: found action {action!r}, expected kill, raise or stall:s"
            )
        armed[name] = _Armed(action, int(at_pass or 1))
    return armed


@cache
def _armed() -> dict[str, _Armed]:
    """Read FAILPOINTS when a failpoint is first passed: a process forked from one that passed none has its own."""
    return _parse(os.environ.get("FAILPOINTS", ""))


def failpoint(name: str) -> None:
    """Do nothing, unless FAILPOINTS arms this name."""
    armed = _armed().get(name)
    if armed is None:
        return
    armed.passes += 1
    if armed.action.startswith("stall") and armed.passes >= armed.at_pass:
        time.sleep(float(armed.action.partition(":")[2]))
    elif armed.passes == armed.at_pass:
        if armed.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise FailpointHit(name)
