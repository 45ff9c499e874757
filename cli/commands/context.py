"""What commands have in common: the connection that a run of the command line works on, and an option."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.api import Api
from cli.output import stderr
from cli.row_files import uploadable
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


def upload_rows(path: Path, *, purpose: str = "fine-tune", is_used: bool = False) -> Any:
    """Upload a file of rows, unpacked where it is gzip; `is_used` as in `Api.upload`.

    Raises RefusedByPlatform.
    """
    with stderr.status(f"uploading {path.name}"), uploadable(path) as lines:
        return api().upload(lines, purpose=purpose, is_used=is_used)
