"""The part of our environment that a child process gets: named variables that programs need, and so no secret."""

import os

NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"),
        *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("RETUNE_STACK", "FAILPOINTS"),
    }
)
FAMILIES = (
    *("LC_", "PYTHON", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "ONEDNN_", "DNNL_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "PYTORCH_", "TORCH_"),
    # These serve traffic between machines: NCCL, libfabric with EFA, UCX.
    *("NCCL_", "GLOO_", "FI_", "UCX_"),
)


def inherited(*families: str) -> dict[str, str]:
    """Return the variables for a child; `families` are prefixes of further names that it may see."""
    begins = (*FAMILIES, *families)
    return {name: value for name, value in os.environ.items() if name in NAMES or name.startswith(begins)}
