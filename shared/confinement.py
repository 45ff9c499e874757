"""Protection of a process from others of its user, among them the children that open tenants' files."""

import ctypes
import os

PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """Keep other processes of our user from tracing this one or reading its memory or first environment.

    Processes with CAP_SYS_PTRACE still can, as those of root with its capabilities. Programs that this process starts
    are not covered: each `exec` resets the protection. Raises OSError.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_DUMPABLE): {os.strerror(error)}")
