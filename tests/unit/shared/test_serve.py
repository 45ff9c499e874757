"""Services run on asyncio's own loop, also where a faster one is installed (decision 0013)."""

import asyncio
from types import SimpleNamespace

import pytest

from shared.service import serve


def test_a_service_runs_on_the_loop_that_its_clients_are_written_for():
    loops = []

    async def app(scope, receive, send) -> None:
        loops.append(asyncio.get_running_loop())
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "seen enough"})

    with pytest.raises(SystemExit):
        serve(app, SimpleNamespace(http_host="127.0.0.1", http_port=0))
    assert [type(loop) for loop in loops] == [asyncio.SelectorEventLoop]
