"""Every test here runs production's handlers on stores, clocks and clients in memory."""

import pytest

from tests.simulation import wiring


@pytest.fixture(autouse=True)
def _in_memory():
    with wiring.in_memory():
        yield
