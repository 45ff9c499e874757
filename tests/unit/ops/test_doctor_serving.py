"""I17 on tables of serving that are not what the registry decided."""

import pytest

from ops.doctor.finding import Finding
from ops.doctor.history import DesiredVersion, Generation
from tests.builders import TENANT
from tests.unit.ops.histories import a_history, a_snapshot, alarms

SLOT = "support"


def findings(generations: list[tuple[str | None, str]], digests: list[str]) -> list[Finding]:
    """Of one slot: digest and outcome of each generation, and the digests that serving wants."""
    snapshot = a_snapshot(
        routes=(),
        generations=tuple(
            Generation(TENANT, SLOT, number, digest and f"mv-{digest}", digest, outcome)
            for number, (digest, outcome) in enumerate(generations, start=1)
        ),
        desired_versions=tuple(DesiredVersion(TENANT, SLOT, digest) for digest in digests),
    )
    return alarms(a_history(snapshot=snapshot)).get("I17", [])


@pytest.mark.parametrize(
    ("generations", "digests"),
    [
        ([("one", "ready")], ["one"]),
        ([("one", "ready"), ("two", "pending")], ["one", "two"]),
        ([("one", "ready"), ("two", "ready")], ["two"]),
        ([("one", "ready"), ("two", "failed")], ["one"]),
        ([("one", "failed")], []),
        ([("one", "ready"), (None, "withdrawn")], []),
        ([], []),
    ],
)
def test_what_was_approved_is_wanted(generations, digests):
    assert findings(generations, digests) == []


@pytest.mark.parametrize(
    ("generations", "digests", "found", "expected"),
    [
        ([("one", "ready")], [], "nothing wanted", "one of generation 1"),
        ([("one", "ready"), ("two", "pending")], ["one"], "one wanted", "two of generation 2"),
        ([("one", "ready")], ["one", "other"], "other wanted", "one, as the registry decided"),
        ([("one", "ready"), (None, "withdrawn")], ["one"], "one wanted", "nothing, as the registry decided"),
        ([], ["one"], "one wanted", "nothing: the registry has no such slot"),
    ],
)
def test_what_is_wanted_otherwise(generations, digests, found, expected):
    (finding,) = findings(generations, digests)
    assert finding.where == f"serving_controller.wanted, slot {SLOT} of {TENANT}"
    assert (finding.found, finding.expected) == (found, expected)
