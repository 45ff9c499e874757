import errno

import pytest

from schemas.base import FailureClass
from services.trainer_agent.training.failures import TrainingFailed, classify, describe, is_of_peer


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


class DistNetworkError(RuntimeError):
    """Named as torch names its own."""


class AcceleratorError(RuntimeError):
    """Named as torch names its own, which is a RuntimeError too."""


class SafetensorError(Exception):
    """Named as safetensors names its own."""


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (TrainingFailed(FailureClass.USER, "token 9"), FailureClass.USER),
        (MemoryError(), FailureClass.OOM),
        (OutOfMemoryError("CUDA"), FailureClass.OOM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 9 bytes"), FailureClass.OOM),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), FailureClass.OOM),
        (OSError(errno.ENOSPC, "No space left on device"), FailureClass.INFRA),
        (SafetensorError("IoError(No space left on device (os error 28))"), FailureClass.INFRA),
        (ConnectionResetError(), FailureClass.INFRA),
        (DistNetworkError("timed out"), FailureClass.INFRA),
        (RuntimeError("[../gloo/transport/tcp/pair.cc] Connection closed by peer"), FailureClass.INFRA),
        (RuntimeError("NCCL error: unhandled system error"), FailureClass.INFRA),
        (FileNotFoundError("manifest.json"), FailureClass.INTERNAL),
        (RuntimeError("shapes do not match"), FailureClass.INTERNAL),
        (AssertionError(), FailureClass.INTERNAL),
    ],
    ids=repr,
)
def test_every_error_has_one_class(error, failure_class):
    assert classify(error) is failure_class


@pytest.mark.parametrize(
    ("text", "failure_class"),
    [
        ("CUDA error: uncorrectable ECC error encountered", FailureClass.INFRA),
        ("CUDA error: unspecified launch failure", FailureClass.INFRA),
        ("CUDA error: the launch timed out and was terminated", FailureClass.INFRA),
        ("CUDA error: an illegal memory access was encountered", FailureClass.INFRA),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", FailureClass.INFRA),
        ("CUDA error: invalid device ordinal", FailureClass.INFRA),
        ("No CUDA GPUs are available", FailureClass.INFRA),
        ("CUDA driver initialization failed, you might not have a CUDA gpu.", FailureClass.INFRA),
        ("Found no NVIDIA driver on your system.", FailureClass.INFRA),
        ("CUDA driver version is insufficient for CUDA runtime version", FailureClass.INFRA),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", FailureClass.INFRA),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", FailureClass.INFRA),
        ("CUDA error: no kernel image is available for execution on the device", FailureClass.INFRA),
        ("CUDA error: a text of the next release", FailureClass.INFRA),
        ("CUDA error: out of memory", FailureClass.OOM),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", FailureClass.OOM),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", FailureClass.OOM),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", FailureClass.OOM),
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`", FailureClass.USER),
        ("CUDA error: device-side assert triggered", FailureClass.INTERNAL),
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, AcceleratorError])
def test_what_a_device_says_has_the_class_of_its_cause(kind, text, failure_class):
    assert classify(kind(text)) is failure_class


def test_words_of_devices_in_errors_of_programs_mean_nothing():
    assert classify(KeyError("cuda error")) is FailureClass.INTERNAL


def test_a_description_is_one_line_that_names_an_unknown_error():
    assert describe(ValueError("two\nlines")) == "ValueError: two lines"
    assert describe(TrainingFailed(FailureClass.USER, "token 9 is unknown")) == "token 9 is unknown"


@pytest.mark.parametrize(
    ("error", "is_peers"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"), True),
        (ConnectionResetError("Connection reset by peer"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), False),
        (OSError(28, "No space left on device"), False),
        (KeyError("gloo"), False),
    ],
)
def test_a_peer_that_is_not_heard_is_known_from_a_machine_that_fails(error, is_peers):
    assert is_of_peer(error) is is_peers
