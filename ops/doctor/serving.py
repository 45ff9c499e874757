"""I17: what serving wants to be loaded is what the registry wants to be served."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ops.doctor.finding import Finding
from ops.doctor.history import Generation, History, Limits

WAITED_FOR = ("pending", "ready")


def wanted_as_approved(history: History, limits: Limits) -> Iterator[Finding]:
    """I17: of each slot serving wants the newest version that is not refused, or the one that serves until then."""
    desired: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in history.snapshot.desired_versions:
        desired[each.tenant, each.slot].add(each.digest)
    slots = _slots(history)
    for (tenant, slot), generations in slots.items():
        newest, digests = generations[-1], desired.pop((tenant, slot), set())
        where = f"serving_controller.wanted, slot {slot} of {tenant}"
        if newest.digest is not None and newest.outcome in WAITED_FOR and newest.digest not in digests:
            expected = f"{newest.digest[:16]} of generation {newest.number}"
            yield Finding(where, f"{_short(digests)} wanted", expected)
        elif extra := digests - _allowed(generations):
            yield Finding(
                where, f"{_short(extra)} wanted", f"{_short(_allowed(generations))}, as the registry decided"
            )
    for (tenant, slot), digests in desired.items():
        where = f"serving_controller.wanted, slot {slot} of {tenant}"
        yield Finding(where, f"{_short(digests)} wanted", "nothing: the registry has no such slot")


def _slots(history: History) -> Mapping[tuple[str, str], list[Generation]]:
    slots: dict[tuple[str, str], list[Generation]] = defaultdict(list)
    for each in sorted(history.snapshot.generations, key=lambda each: each.number):
        slots[each.tenant, each.slot].append(each)
    return slots


def _allowed(generations: list[Generation]) -> set[str]:
    """A slot that was withdrawn wants nothing; otherwise what was ready may serve until something newer is."""
    newest = generations[-1]
    if newest.digest is None:
        return set()
    return {
        each.digest for each in generations if each.digest and (each is newest or each.outcome == "ready")
    }


def _short(digests: set[str]) -> str:
    return ", ".join(sorted(digest[:16] for digest in digests)) or "nothing"
