"""What a driver says is tried without one in tests/unit/trainer_agent/training/test_utilisation.py."""

import time

import pytest
import torch

from services.trainer_agent.training.utilisation import meter_of


@pytest.mark.any_device
def test_a_device_that_computes_is_busy(device):
    meter = meter_of(torch.device(device))
    matrix = torch.ones(512, 512, device=device)
    until, shares = time.monotonic() + 5, [0.0]
    while time.monotonic() < until and not shares[-1]:
        matrix = (matrix @ matrix).clamp(max=1)
        shares.append(meter.read() or 0.0)
    assert 0 < shares[-1] <= 1
