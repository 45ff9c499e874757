"""The invariants by name, and what they say about a history."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ops.doctor.access import access_as_written
from ops.doctor.artifacts import (
    expired_with_their_job,
    lineage_whole,
    no_orphans,
    parts_whole,
    served_as_approved,
)
from ops.doctor.copies import copied
from ops.doctor.finding import Finding
from ops.doctor.history import History, Limits
from ops.doctor.jobs import fenced, legal, live, resumed_from_newest
from ops.doctor.kernel import in_order, no_phantoms, once, published
from ops.doctor.serving import wanted_as_approved
from ops.doctor.waits import answered

Invariant = Callable[[History, Limits], Iterator[Finding]]


def audit_chain(history: History, limits: Limits) -> Iterator[Finding]:
    """I12: the audit's statements are whole and signed, and the topics are what they say."""
    for problem in history.audit:
        yield Finding("audit chain", problem, "topics as the auditor read them")


INVARIANTS: Mapping[str, Invariant] = {
    "I1 published": published,
    "I2 no phantoms": no_phantoms,
    "I3 once": once,
    "I4 in order": in_order,
    "I5 fenced": fenced,
    "I6 legal": legal,
    "I7 parts whole": parts_whole,
    "I8 resumed from newest": resumed_from_newest,
    "I9 lineage whole": lineage_whole,
    "I10 served as approved": served_as_approved,
    "I11 no orphans": no_orphans,
    "I12 audit chain": audit_chain,
    "I13 live": live,
    "I14 answered": answered,
    "I15 copied": copied,
    "I16 access as written": access_as_written,
    "I17 wanted as approved": wanted_as_approved,
    "I18 expired with their job": expired_with_their_job,
}


def check(history: History, limits: Limits) -> list[Finding]:
    return [
        replace(finding, invariant=name)
        for name, invariant in INVARIANTS.items()
        for finding in invariant(history, limits)
    ]


def lasting(before: list[Finding], after: list[Finding]) -> list[Finding]:
    """Return what a second look found that the first had found already: the rest was under way."""
    known = {finding.identity for finding in before}
    return [finding for finding in after if finding.identity in known]
