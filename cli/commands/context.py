"""The connection that a run of the command line works on."""

from functools import cache

from cli.api import Api
from ops.connection import Connection, find_connection


@cache
def connection() -> Connection:
    return find_connection()


@cache
def api() -> Api:
    return Api(connection())


@cache
def admin_api() -> Api:
    return Api(connection(), as_admin=True)
