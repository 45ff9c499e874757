"""What a child process may use. Set before the first byte of a tenant's file is read."""

import resource
import sys
from typing import Any

REFUSED_EVENTS = frozenset({"socket.__new__", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"})


def confine(*, memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Cap address space, processor time and file size of this process and its workers; refuse the network."""
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    # The soft limit ends the process by a signal that says why, the hard one by SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 10))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in REFUSED_EVENTS:
        raise PermissionError(f"{event} {arguments!r}: this process opens no socket and starts no program")
