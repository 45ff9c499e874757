"""The command line of a program that is installed, and runs on this machine until Ctrl-C."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.local.errors import MissingPart, StackError
from deploy.packages import Packages

DONE = 0
ENDING = (signal.SIGINT, signal.SIGTERM)

Command = Callable[[argparse.Namespace], int]
"""It gets what was given and returns the exit code."""


class CommandLine:
    def __init__(self, module: str, description: str | None) -> None:
        self._parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
        self._commands = self._parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(self, name: str, run: Command, *, does: str) -> argparse.ArgumentParser:
        """Add a command; return what its arguments are added to."""
        command = self._commands.add_parser(name, help=does)
        command.set_defaults(run=run)
        return command

    def add_packages(self, packages: Packages) -> None:
        """Add the command `setup`, which installs packages of the distribution."""
        does = f"install the packages of {packages.title} where root and apt can do that"
        setup = self.add("setup", lambda options: _install(packages, options), does=does)
        setup.add_argument(
            "--optional", action="store_true", help="where they cannot be had, print why and succeed"
        )

    def add_up(self, run: Command, *, does: str, folder: str) -> argparse.ArgumentParser:
        """Add the command `up`, which does something until Ctrl-C and keeps what it writes in a folder."""
        up = self.add("up", run, does=f"{does} until Ctrl-C")
        up.add_argument("folder", type=Path, help=folder)
        return up

    def run(self, arguments: Sequence[str] | None) -> int:
        """Carry out the command that was chosen; return its exit code, after a sentence where it failed."""
        options = self._parser.parse_args(arguments)
        try:
            return int(options.run(options))
        except StackError as error:
            print(error, file=sys.stderr)
            return error.exit_code


def until_ctrl_c(announcement: str) -> int:
    """Print the line and wait. Daemons must run by then: they would inherit that the signals are blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    print(announcement, flush=True)
    signal.sigwait(ENDING)
    return DONE


def _install(packages: Packages, options: argparse.Namespace) -> int:
    try:
        programs = packages.set_up()
    except MissingPart as missing:
        if not options.optional:
            raise
        print(f"{packages.title:9} {missing}; its tests are skipped")
        return DONE
    print(f"{packages.title:9} {next(iter(programs.values()))}")
    return DONE
