"""Protection of a process from others of its user, among them the children that open tenants' files."""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 19, 21, 38
"""Capabilities of root that read another process's memory and environment, the last also where Landlock refuses."""

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock; C libraries have no functions for them."""
ASK_VERSION = 1
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that a rule about a file may name; the others are about what a directory holds."""
RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of rights about files by version of Landlock; later ones have those of 5."""
BIND_OR_CONNECT_TCP = 0b11
"""Rights about sockets, since version 4."""
SIGNALS = 0b10
"""Scope since version 6: processes outside get no signal from one within."""

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(str(ROOT / name) for name in ("schemas", "services", "shared"))
SYSTEM = ("/bin", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr")
DEVICES = "/dev"


class RulesetAttributes(ctypes.Structure):
    """`struct landlock_ruleset_attr` of linux/landlock.h."""

    _fields_ = (("files", ctypes.c_uint64), ("sockets", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class PathBeneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr` of linux/landlock.h."""

    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


def keep_memory_private() -> None:
    """Keep other processes of our user from tracing this one or reading its memory or first environment.

    Processes with CAP_SYS_PTRACE still can, as those of root with its capabilities. Programs that this process starts
    are not covered: each `exec` resets the protection. Raises OSError.
    """
    _prctl(PR_SET_DUMPABLE, 0)


def confine_files(writes: Sequence[str], reads: Sequence[str], *, has_peers: bool = False) -> None:
    """Keep this process and all that it starts to its own files, those of the system and our code.

    It writes the directories `writes` and devices alone; the first of them is its home from now on and has its
    temporary files. It reads these, `reads`, the system's files and our code. It traces and signals no process
    outside, and opens no TCP connection unless it has peers. Nothing undoes it. Threads that run already are not
    bound, and root reads the memory of others until its next `exec`. Where the kernel has no Landlock, a line on
    standard error says so, and nothing is kept back. Raises OSError.
    """
    os.environ["HOME"] = os.environ["TMPDIR"] = writes[0]
    try:
        version = _call(CREATE_RULESET, None, 0, ASK_VERSION)
    except OSError as error:
        sys.stderr.write(f"all files of this user are open to this process: no Landlock ({error})\n")
        return
    files = (1 << RIGHTS_OF_VERSION.get(version, 16)) - 1
    ruleset = _call(CREATE_RULESET, *_attributes(version, files, has_peers=has_peers), 0)
    try:
        for path in (*SYSTEM, *PACKAGES, *_interpreter(), *reads):
            _allow(ruleset, path, READ)
        for path in (*writes, DEVICES):
            _allow(ruleset, path, files)
        _allow(ruleset, str(ROOT), READ_DIR)  # where the interpreter looks for our packages
        # Root without CAP_SETPCAP, as in a container that drops all capabilities, has none of these.
        with suppress(PermissionError):
            for capability in (CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON):
                _prctl(PR_CAPBSET_DROP, capability)
        _prctl(PR_SET_NO_NEW_PRIVS, 1)
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _interpreter() -> Iterator[str]:
    yield from (sys.prefix, sys.base_prefix)
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))


def _attributes(version: int, files: int, *, has_peers: bool) -> tuple[object, int]:
    """Return the attributes of a ruleset and the size in bytes of those that the version knows."""
    attributes = RulesetAttributes(files, 0 if has_peers else BIND_OR_CONNECT_TCP, SIGNALS)
    fields = 1 if version < 4 else 2 if version < 6 else 3
    return ctypes.byref(attributes), fields * ctypes.sizeof(ctypes.c_uint64)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow the rights on a file, or on all that is beneath a directory; nothing where the path does not exist."""
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = PathBeneath(rights if Path(path).is_dir() else rights & OF_FILES, parent)
        _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def _call(number: int, *arguments: object) -> int:
    """Make a system call. Raises OSError."""
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *wide)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"system call {number}: {os.strerror(error)}")
    return result
