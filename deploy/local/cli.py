"""`python -m deploy.local`: set up, start, stop and watch the local stack."""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.local.binaries import binaries, postgres
from deploy.local.cache import cache_folder
from deploy.local.errors import AlreadyRunning, StackError
from deploy.local.files import require_free_space
from deploy.local.settings import REPOSITORY, Settings
from deploy.local.state import State
from deploy.local.status import show_logs, survey
from shared.processes.ending import end
from shared.processes.identity import Identity

if TYPE_CHECKING:
    from deploy.local.stack import Stack

DONE, REFUSED = 0, 1
STOP_SECONDS = 90.0
POLL_SECONDS = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return DONE
    try:
        return int(options.run(options))
    except StackError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    setup = commands.add_parser(
        "setup", help="fetch and build Kafka, Postgres and the S3 server, once per user"
    )
    setup.set_defaults(run=_setup)
    up = commands.add_parser("up", help="start everything and keep it running until Ctrl-C")
    up.add_argument("--detach", action="store_true", help="return when healthy; `down` stops it")
    up.add_argument("--parts-only", action="store_true", help="Kafka, Postgres and S3 without the services")
    up.add_argument("--tls", action="store_true", help="servers speak TLS alone; the state folder keeps that")
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="stop everything; the state stays")
    down.set_defaults(run=_down)
    status = commands.add_parser("status", help="what runs, where, since how many restarts")
    status.set_defaults(run=_status)
    logs = commands.add_parser("logs", help="the end of one log, or of all")
    logs.add_argument("name", nargs="?", help="a service, or kafka, postgres, s3, supervisor")
    logs.add_argument("-n", "--lines", type=int, default=20)
    logs.add_argument("-f", "--follow", action="store_true")
    logs.set_defaults(run=_logs)
    for command in (up, down, status, logs):
        command.add_argument(
            "--state", type=Path, default=Settings().state, help="state folder (%(default)s)"
        )
    return parser


def _setup(options: argparse.Namespace) -> int:
    from deploy.local.warm_start import warm_up

    require_free_space(cache_folder(), "RETUNE_CACHE")
    parts = binaries()
    try:
        parts = warm_up(parts)
    except StackError as error:
        print(f"Kafka will start slower: {error}", file=sys.stderr)
    try:
        over_tls = str(postgres(tls=True))
    except StackError as error:
        over_tls = f"none, so `up --tls` will not start: {error}"
    print(f"Java      {parts.java}\nKafka     {parts.jars[0].parent}")
    print(f"Postgres  {parts.postgres}\n  for TLS {over_tls}\nS3        {parts.versitygw}")
    return DONE


def _up(options: argparse.Namespace) -> int:
    state = State(options.state)
    if holder := state.supervisor():
        if options.tls and state.ca_file is None:
            raise StackError(f"the stack in {state.root} runs in plain text: stop it with `down` first")
        print(f"the stack in {state.root} is already running (supervisor pid {holder.pid}, {state.phase()})")
        return DONE
    if options.detach:
        flags = [f"--{name.replace('_', '-')}" for name in ("parts_only", "tls") if getattr(options, name)]
        return _detach(state, flags)
    return asyncio.run(_run(state, parts_only=options.parts_only, tls=options.tls))


async def _run(state: State, *, parts_only: bool, tls: bool) -> int:
    """Be the supervisor until a signal says stop."""
    from deploy.local.stack import ALL, Stack

    services = () if parts_only else ALL
    stack = Stack(state.root, services=services, report=_say, before_ready=_register_suites, tls=tls)
    stop_requested = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)
    stopping = asyncio.create_task(stop_requested.wait())
    starting = asyncio.create_task(stack.up())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return REFUSED
    try:
        starting.result()
        _say(f"up: {stack.operator_env()['RETUNE_BASE_URL']}  (addresses and keys: . {state.root / 'env'})")
        await stopping
        _say("stopping")
    finally:
        stopping.cancel()
        await stack.down()
    _say("stopped")
    return DONE


async def _register_suites(stack: "Stack") -> None:
    """A new stack can judge. One whose suites cannot be registered runs all the same, and says so."""
    command = (sys.executable, "-m", "deploy.suites")
    environment = {**os.environ, **stack.operator_env()}
    registering = await asyncio.create_subprocess_exec(
        *command, cwd=REPOSITORY, env=environment, stdout=PIPE, stderr=STDOUT
    )
    try:
        printed, _ = await registering.communicate()
    finally:
        if registering.returncode is None:
            registering.kill()
            await registering.wait()
    if text := printed.decode(errors="replace").strip():
        _say(text)
    if registering.returncode != DONE:
        _say(f"built-in suites are missing: . {stack.state.root / 'env'} && python -m deploy.suites")


def _say(line: str) -> None:
    print(line, flush=True)


def _detach(state: State, flags: list[str]) -> int:
    """Start a supervisor of its own session; return when it is ready or gone."""
    state.prepare()
    log = state.log("supervisor")
    began = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "deploy.local", "up", "--state", str(state.root), *flags],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    with log.open() as log_file:
        log_file.seek(began)
        try:
            code = _until_ready(state, daemon)
        except KeyboardInterrupt:
            daemon.terminate()
            code = daemon.wait()
        print(log_file.read(), end="", file=sys.stderr if code else sys.stdout)
    return code


def _until_ready(state: State, daemon: subprocess.Popen[bytes]) -> int:
    while (code := daemon.poll()) is None:
        holder = state.supervisor()
        if holder and holder.pid == daemon.pid and state.phase() == "ready":
            daemon.returncode = DONE  # it outlives us on purpose
            return DONE
        time.sleep(POLL_SECONDS)
    return code


def _down(options: argparse.Namespace) -> int:
    state = State(options.state)
    if not state.root.exists():
        print(f"nothing to stop: {state.root} does not exist")
        return DONE
    holder = state.supervisor()
    asyncio.run(_end_all(state, holder))
    print(f"stopped the stack in {state.root}" if holder else f"the stack in {state.root} was not running")
    return DONE


async def _end_all(state: State, supervisor: Identity | None) -> None:
    from deploy.local.stack import end_leftovers

    await end([supervisor] if supervisor else [], grace_seconds=STOP_SECONDS, first=signal.SIGTERM)
    try:
        await end_leftovers(state)
    except AlreadyRunning as error:
        raise StackError(
            f"{error}, and it is not one that `up` started: stop the program that holds it"
        ) from error


def _status(options: argparse.Namespace) -> int:
    rows, is_healthy = asyncio.run(survey(State(options.state)))
    print("\n".join(rows))
    return DONE if is_healthy else REFUSED


def _logs(options: argparse.Namespace) -> int:
    folder = State(options.state).root / "logs"
    paths = sorted(folder.glob(f"{options.name or '*'}.log"))
    if not paths:
        raise StackError(f"no log of {options.name or 'anything'} in {folder}")
    try:
        show_logs(paths, lines=options.lines, follow=options.follow)
    except KeyboardInterrupt:
        return DONE
    return DONE
