"""What commands have in common: the connection that a run of the command line works on, and an option."""

from functools import cache
from typing import Annotated

import typer

from cli.api import Api
from ops.connection import Connection, find_connection

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Look at all that is looked at, and begin nothing. Files that are named by a path are uploaded.",
    ),
]


@cache
def connection() -> Connection:
    return find_connection()


@cache
def api() -> Api:
    return Api(connection())


@cache
def admin_api() -> Api:
    return Api(connection(), as_admin=True)
