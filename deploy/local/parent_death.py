"""Starts every process of the stack: asks for a signal at the supervisor's death, then execs.

Usage: parent_death.py PARENT_PID SIGNAL USER_ID COMMAND...; USER_ID is `-` to stay who we are.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, signal, user, *command = sys.argv[1:]
    if user != "-":
        become(int(user))
    # After the change of user: the kernel forgets the wish when credentials change.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(f"{command[0]} was not started: its supervisor is gone")
    os.execvp(command[0], command)  # noqa: S606 - becoming the program is what this is for


def become(user: int) -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(user)


main()
