"""The simulation sees what is broken: each mutant within a fraction of what CI simulates."""

import pytest

from tests.chaos.scale import note
from tests.simulation.mutants import MUTANTS
from tests.simulation.scenario import runs
from tests.simulation.violation import Violation

BUDGET = 400_000
"""Messages of some 550 worlds. The rarest, verdicts on evaluations by their digest alone, are in one of 130."""
FIRST_SEED = 270
"""Few worlds before one in which it is."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant, monkeypatch):
    switches = mutant(monkeypatch)
    worlds = runs(FIRST_SEED, BUDGET, switches)
    with pytest.raises(Violation) as caught:
        sum(world.messages for world in worlds)
    invariant, _, history = str(caught.value).partition(": ")
    assert invariant in MUTANTS[mutant]
    assert "repeat: SIM_SEED=" in history
    note("simulation mutant", caught=1)
