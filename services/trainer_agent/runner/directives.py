"""What this node's attempt shall do: the runner asks trainer_agent, which holds the request until there is something.

An answer is a state: one that is lost, or comes twice, changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator

import httpx
from pydantic import ValidationError

from schemas.directives import HELD_FOR, ROUTE, Directives, DirectivesRequest
from services.trainer_agent.runner.settings import Settings
from services.trainer_agent.runner.signer import SERVICE
from shared.http_client import http_client
from shared.log import get_logger
from shared.nodes.route import TIMEOUT, RequestFailed, SignedRoute
from shared.signatures import PrivateKey

log = get_logger(__name__)

RETRY_SECONDS = 1.0
PAUSE_SECONDS = 0.05
"""Time after an answer that says nothing new, however soon it came."""


class DirectiveReader:
    def __init__(self, settings: Settings, *, report_id: str, http: httpx.AsyncClient | None = None) -> None:
        """report_id: event id of this runner's RunnerStarted. http: None verifies servers as the settings say."""
        assert TIMEOUT.read is not None
        assert TIMEOUT.read > HELD_FOR.total_seconds(), "who holds a request answers it before it is given up"
        self._settings = settings
        self._report_id = report_id
        self._route = SignedRoute(
            settings.trainer_agent_url,
            ROUTE,
            service=SERVICE,
            key=PrivateKey(settings.node_key_file.read_text().strip()),
            http=http or http_client(settings.tls, timeout=TIMEOUT),
        )
        self._is_away = False

    async def follow(self) -> AsyncIterator[Directives]:
        """Yield what shall be done, again after each change, without end. trainer_agent's absence is waited for."""
        version = ""
        while True:
            answer = await self._ask(version)
            if answer is None:
                await asyncio.sleep(RETRY_SECONDS)
            elif answer.version == version:
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                version = answer.version
                yield answer

    async def _ask(self, version: str) -> Directives | None:
        """Return the answer; None where none came."""
        settings = self._settings
        try:
            content = await self._route.ask(
                lambda at: DirectivesRequest(
                    job_id=settings.job_id,
                    attempt=settings.attempt,
                    node_index=settings.node_index,
                    node_id=settings.node_id,
                    time=at,
                    report_id=self._report_id,
                    version=version,
                )
            )
            answer = Directives.model_validate_json(content)
        except (RequestFailed, ValidationError) as error:
            if not self._is_away:
                log.warning("no directives", error=str(error))
            self._is_away = True
            return None
        self._is_away = False
        return answer
