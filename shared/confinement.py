"""What a process keeps from the other processes of its user: the children that open tenants' files are among them."""

import ctypes
import os

PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """From here on no process of our user reads this one's memory or first environment, or traces it.

    Who has CAP_SYS_PTRACE still can, as root has where it keeps its capabilities. Programs that this process starts
    are not covered: each `exec` begins again.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_DUMPABLE): {os.strerror(error)}")
