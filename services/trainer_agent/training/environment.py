"""What a run computes with: equal state continues equally only in an equal environment."""

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors", "numpy")
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DRIVER = Path("/proc/driver/nvidia/version")


def environment_of(device: torch.device) -> dict[str, str]:
    """Of this process, by name: versions, code, device and what decides how its arithmetic is split up."""
    environment = {"python": platform.python_version(), "training code": _code_sha256()}
    environment |= {name: version(name) for name in LIBRARIES}
    return environment | (_cuda(device) if device.type == "cuda" else _cpu())


def is_repeatable(device: torch.device) -> bool:
    """Whether the same state and batch give the same bits each time: on a GPU sums are added up in any order."""
    return device.type == "cpu" and torch.are_deterministic_algorithms_enabled()


def _cpu() -> dict[str, str]:
    return {
        "device": f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }


def _cuda(device: torch.device) -> dict[str, str]:
    driver = DRIVER.read_text().splitlines()[0] if DRIVER.exists() else "unknown"
    return {
        "device": torch.cuda.get_device_name(device),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "driver": driver,
        "cublas workspace": os.environ.get(CUBLAS_WORKSPACE, "default"),
    }


@cache
def _code_sha256() -> str:
    """Over the sources of this package."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
