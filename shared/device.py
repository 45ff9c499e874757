"""The product name of the device that computes, read from the system because services import no torch."""

import platform
import re
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]

CPU_INFO = Path("/proc/cpuinfo")
GPUS = Path("/proc/driver/nvidia/gpus")
_CPU_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_GPU_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)


def device_name(device: Device, *, cpu_info: Path = CPU_INFO, gpus: Path = GPUS) -> str:
    """Return the first product of this kind; if the system names none, a CPU's architecture or "" for a GPU."""
    files = [cpu_info] if device == "cpu" else sorted(gpus.glob("*/information"))
    pattern = _CPU_MODEL if device == "cpu" else _GPU_MODEL
    for path in files:
        if path.exists() and (match := pattern.search(path.read_text(errors="replace"))):
            return match[1].strip()
    return platform.machine() if device == "cpu" else ""
