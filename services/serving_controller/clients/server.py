"""The process of a replica: vLLM's server. On a CPU it starts no process that would import everything again."""

import multiprocessing
import os
import socket
from pathlib import Path

from shared.device_leases.fence import end_with_lease
from shared.processes.loading import quick_imports

with quick_imports():
    # What the engine needs, before anything imports it slowly.
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm.entrypoints.launchers.api_server.entry import main
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.v1.engine import utils as engines


def fork_engines() -> None:
    """Let vLLM fork its engine, which costs two fifths less than a process that imports everything again.

    On a CPU vLLM takes `spawn` whatever it is given, so as to bind the engine's threads to cores, which a replica
    leaves to the system. On a GPU nothing changes: CUDA may not be there before a fork.
    """

    engines.get_mp_context = lambda: multiprocessing.get_context("fork")  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=close_ports)


def inspect_here() -> None:
    """Let vLLM look at a model's class in this process, whose engine needs the class anyway.

    vLLM does that in a process of its own, once for each class on a machine, so that CUDA is not there before a fork.
    """
    registry._run_in_subprocess = lambda look: look()  # type: ignore[assignment]  # noqa: SLF001


def close_ports() -> None:
    """Close the server's sockets: an engine that outlives its server would hold the port, and answer nobody."""
    for path in Path("/proc/self/fd").iterdir():
        if path.is_socket():
            same = socket.socket(fileno=int(path.name))
            if same.family in (socket.AF_INET, socket.AF_INET6) and same.type == socket.SOCK_STREAM:
                same.close()
            else:
                same.detach()


if __name__ == "__main__":
    end_with_lease()
    if current_platform.is_cpu():
        fork_engines()
        inspect_here()
    main()  # type: ignore[no-untyped-call]
