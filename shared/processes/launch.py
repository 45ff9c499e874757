"""Starts a program after what only its own process can do: `python -I launch.py OPTIONS COMMAND...`.

OPTIONS is a JSON object, written by `spawn.py`:

user_id    whom to become
parent     who started us; `signal` is sent to the program when that thread ends
folder     the program's working directory; the paths below are relative to it
unless     a path: where it exists, nothing starts
pid_file   is created with "<pid> <start time>"; where it exists already, nothing starts
exit_file  gets the exit code, as a shell reports it. Its name may hold variables of the environment, as {LOCAL_RANK}.
           This process then stays, and SIGTERM is for the program alone.
files      arguments of `confine_files`: the program and all that it starts have these files alone
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from shared.confinement import confine_files
from shared.files import create_whole, write_whole

PR_SET_PDEATHSIG = 1
NOGROUP = 65534
NOT_STARTED, NOT_FOUND = 70, 127


def main() -> None:
    options, command = json.loads(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and programs would inherit that
        signal.signal(number, signal.SIG_DFL)
    if "user_id" in options:
        become(options["user_id"])
    if "parent" in options:
        # After the change of user: the kernel forgets the signal when credentials change.
        end_with(options["parent"], options["signal"], command[0])
    if "exit_file" in options:
        signal.signal(signal.SIGTERM, lambda *_: None)  # a handler, unlike SIG_IGN, is not inherited
    if "folder" in options:
        os.chdir(options["folder"])
    if "unless" in options and Path(options["unless"]).exists():
        sys.exit(NOT_STARTED)
    if "pid_file" in options and not create_whole(Path(options["pid_file"]), own_identity()):
        sys.exit(NOT_STARTED)
    if "files" in options:
        confine_files(**options["files"])
    if "exit_file" not in options:
        os.execvp(command[0], command)  # noqa: S606 - becoming the program is what this is for
    code = run(command)
    path = Path(options["exit_file"])
    write_whole(path.with_name(path.name.format_map(os.environ)), f"{code}\n")
    sys.exit(code)


def become(user: int) -> None:
    os.setgroups([])
    os.setgid(NOGROUP)
    os.setuid(user)


def end_with(parent: int, number: int, name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(f"{name} was not started: process {parent}, which it belongs to, is gone")


def own_identity() -> str:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return f"{os.getpid()} {fields[19]}\n"


def run(command: list[str]) -> int:
    try:
        pid = os.posix_spawnp(command[0], command, os.environ)
    except OSError as error:
        sys.stderr.write(f"{command[0]} does not start: {error}\n")
        return NOT_FOUND
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


main()
