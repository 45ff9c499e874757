"""How many GPUs this machine has, by NVML, the library that comes with the driver."""

import ctypes

from shared.log import get_logger

log = get_logger(__name__)

LIBRARY = "libnvidia-ml.so.1"
NOT_COUNTED = "GPUs are not counted, the pools file decides"


def count_gpus() -> int | None:
    """Return the number of GPUs; None where NVML is missing or does not answer, which is logged."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        log.warning(NOT_COUNTED, error=str(error))
        return None
    count = ctypes.c_uint()
    for code in (library.nvmlInit_v2(), library.nvmlDeviceGetCount_v2(ctypes.byref(count))):
        if code:
            log.warning(NOT_COUNTED, error=f"NVML answered {code}, expected 0")
            return None
    return count.value
