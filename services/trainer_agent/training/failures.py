"""Why a run failed, as one of the closed failure classes. Imports no torch: its errors are known by name."""

import errno

from schemas.base import FailureClass

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
_INFRA_TYPES = frozenset({"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"})
_DISK_WORDS = ("no space left on device", "disk quota exceeded")
_INFRA_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
_OOM_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
_USER_WORDS = (
    # The recipe's precision or sizes are not what this kind of device computes.
    "cublas_status_not_supported",
    "cudnn_status_not_supported",
)
_OWN_WORDS = (
    # An index outside its table: a kernel's way to say that the program is wrong.
    "device-side assert",
)
_DEVICE_WORDS = (
    # CUDA's own texts (cudaGetErrorString) and libraries' states, for what a device, its driver or its links do.
    "ecc error",
    "unspecified launch failure",
    "launch timed out",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "invalid program counter",
    "hardware stack error",
    "invalid device ordinal",
    "busy or unavailable",
    "no cuda-capable device",
    "no cuda gpus are available",
    "no nvidia driver",
    "driver version is insufficient",
    "driver initialization failed",
    "driver shutting down",
    "driver/library version mismatch",
    "initialization error",
    "system not yet initialized",
    "system has unsupported display driver",
    "gpu is lost",
    "fallen off the bus",
    "nvlink",
    "no kernel image is available",
    "cublas_status_",
    "cudnn_status_",
    "cusolver_status_",
    "cuda error",
)


class TrainingFailed(Exception):
    """A run cannot continue, and we know why."""

    def __init__(self, failure_class: FailureClass, message: str) -> None:
        super().__init__(message)
        self.failure_class = failure_class


def classify(error: BaseException) -> FailureClass:
    if isinstance(error, TrainingFailed):
        return error.failure_class
    if _is_out_of_memory(error):
        return FailureClass.OOM
    if isinstance(error, RuntimeError) and _mentions(error, _USER_WORDS):
        return FailureClass.USER
    if _is_infrastructure(error):
        return FailureClass.INFRA
    return FailureClass.INTERNAL


def is_of_peer(error: BaseException) -> bool:
    """Return whether all that is known is that a process does not hear another one any more."""
    return bool(_type_names(error) & _INFRA_TYPES) or (
        isinstance(error, RuntimeError | ConnectionError) and _mentions(error, _INFRA_WORDS)
    )


def describe(error: BaseException) -> str:
    """Return one line: a known failure's own sentence, else the error's text with its type before it."""
    sentence = " ".join(str(error).split())[:2000]
    return sentence if isinstance(error, TrainingFailed) else f"{type(error).__name__}: {sentence}"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "OutOfMemoryError" in _type_names(error):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _mentions(error, _OOM_WORDS)


def _is_infrastructure(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _DISK or isinstance(error, ConnectionError)
    # safetensors wraps a full disk in an error of its own.
    if _type_names(error) & _INFRA_TYPES or _mentions(error, _DISK_WORDS):
        return True
    # torch.AcceleratorError is one too.
    if not isinstance(error, RuntimeError) or _mentions(error, _OWN_WORDS):
        return False
    return _mentions(error, _INFRA_WORDS) or _mentions(error, _DEVICE_WORDS)


def _type_names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _mentions(error: BaseException, words: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(word in text for word in words)
