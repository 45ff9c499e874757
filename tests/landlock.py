"""What this machine's kernel has of Landlock."""

import ctypes

from shared.confinement import ASK_VERSION, CREATE_RULESET


def landlock() -> int:
    """Return the version of the kernel's Landlock; 0 where it has none."""
    return max(
        0, ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_long(0), ctypes.c_long(ASK_VERSION))
    )
