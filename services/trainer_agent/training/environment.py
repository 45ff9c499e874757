"""What a run computes with: equal state continues equally only in an equal environment."""

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from schemas.specification import ShardingLibrary
from services.trainer_agent.training.distributed import World

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors", "numpy")
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DRIVER = Path("/proc/driver/nvidia/version")


def environment_of(device: torch.device, sharding: ShardingLibrary) -> dict[str, str]:
    """Return by name what this process computes with: versions, code, device and how its arithmetic is split up."""
    environment = {"python": platform.python_version(), "training code": _code_sha256()}
    libraries = (*LIBRARIES, "deepspeed") if sharding == "deepspeed" else LIBRARIES
    environment |= {name: version(name) for name in libraries}
    return environment | (_cuda(device) if device.type == "cuda" else _cpu())


def name_place_to_deepspeed(world: World) -> None:
    """Name the device to DeepSpeed before it is imported: it would else take a GPU where there is one, and no process
    that is alone."""
    os.environ["DS_ACCELERATOR"] = world.device.type
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))


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
    """Return a digest over the sources of this package."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
