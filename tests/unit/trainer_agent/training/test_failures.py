import errno

import pytest

from schemas.base import FailureClass
from services.trainer_agent.training.failures import TrainingFailed, classify, describe


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


class DistNetworkError(RuntimeError):
    """Named as torch names its own."""


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


def test_a_description_is_one_line_that_names_an_unknown_error():
    assert describe(ValueError("two\nlines")) == "ValueError: two lines"
    assert describe(TrainingFailed(FailureClass.USER, "token 9 is unknown")) == "token 9 is unknown"
