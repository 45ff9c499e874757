"""The fixture `device` of the folders whose tests compute: what `any_device` marks runs on a CPU and on a GPU."""

import pytest
import torch

from schemas.base import DeviceKind

DEVICES = [
    DeviceKind.CPU,
    pytest.param(
        DeviceKind.CUDA,
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames and metafunc.definition.get_closest_marker("any_device"):
        metafunc.parametrize("device", DEVICES, indirect=True, scope="session", ids=str)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> DeviceKind:
    """What the orders of a test name."""
    return getattr(request, "param", DeviceKind.CPU)
