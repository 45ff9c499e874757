"""The connection that a run of the command line works on."""

from functools import cache

from services.admin.api import Api
from services.admin.connection import Connection, find_connection


@cache
def connection() -> Connection:
    return find_connection()


@cache
def api() -> Api:
    return Api(connection())


@cache
def admin_api() -> Api:
    return Api(connection(), as_admin=True)
