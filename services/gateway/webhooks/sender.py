"""Requests to tenants' endpoints: to addresses that were checked, within limits, and without what they answer."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx

from services.gateway.webhooks import destinations, signing
from services.gateway.webhooks.destinations import Address, Destination, InvalidUrl, Network
from services.gateway.webhooks.model import Endpoint, Result
from shared.log import get_logger

log = get_logger(__name__)

RESOLVERS = 8
"""Names that are looked up at once, in threads of their own: a name server that is slow delays webhooks alone."""
USER_AGENT = "retune-webhooks"
NO_CONNECTION = (httpx.ConnectError, httpx.ConnectTimeout)
"""After these another address of the host may answer: nothing was sent."""


class NotSent(Exception):
    """There was no answer; the message says why, without anything that only this network knows."""


class Sender:
    """Sends one request for each call; connections are never shared, since names may share an address."""

    def __init__(
        self,
        *,
        secret: str,
        allow_http: bool,
        networks: tuple[Network, ...],
        timeout_seconds: float,
    ) -> None:
        self._secret = secret
        self._allow_http = allow_http
        self._networks = networks
        self._timeout_seconds = timeout_seconds
        self._resolvers = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="webhooks")
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            await self._client.aclose()

    async def send(self, endpoint: Endpoint, event_id: str, body: str, *, now: datetime) -> Result:
        """Make one attempt, which takes no longer than the limit."""
        raw = body.encode()
        secrets = signing.secrets_of(endpoint, self._secret, now=now)
        headers = signing.signed_headers(secrets, event_id=event_id, now=now, body=raw)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return Result(await self._post(endpoint.url, headers, raw))
        except TimeoutError:
            return Result(error=f"no answer within {self._timeout_seconds:g} s")
        except NotSent as error:
            return Result(error=str(error))

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> int:
        try:
            destination = destinations.parse_url(url, allow_http=self._allow_http)
        except InvalidUrl as error:
            raise NotSent(f"url: {error}") from None
        addresses = await self._resolve(destination)
        if not destinations.all_allowed(addresses, self._networks):
            raise NotSent("the host's address is none of the public internet")
        reason = "the host has no address"
        for address in addresses:
            try:
                return await self._post_to(address, destination, headers, body)
            except NO_CONNECTION as error:
                reason = _reason(error)
        raise NotSent(reason)

    async def _resolve(self, destination: Destination) -> list[Address]:
        literal = destinations.literal_address(destination.host)
        if literal is not None:
            return [literal]
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.run_in_executor(self._resolvers, _look_up, destination.host, destination.port)
        except (OSError, UnicodeError):
            raise NotSent("the host's name is not known") from None
        addresses = map(destinations.literal_address, rows)
        return [address for address in dict.fromkeys(addresses) if address is not None]

    async def _post_to(
        self, address: Address, destination: Destination, headers: dict[str, str], body: bytes
    ) -> int:
        """Connect to this address, whatever the name means by now; the certificate is that of the name."""
        host = f"[{address}]" if address.version == 6 else str(address)
        request_url = httpx.URL(f"{destination.scheme}://{host}:{destination.port}").copy_with(
            raw_path=destination.target.encode()
        )
        sent = {"host": destination.authority, "content-type": "application/json", "user-agent": USER_AGENT}
        extensions = {"sni_hostname": destination.host}
        try:
            async with self._http.stream(
                "POST", request_url, headers=sent | headers, content=body, extensions=extensions
            ) as answer:
                return answer.status_code
        except NO_CONNECTION:
            raise
        except httpx.HTTPError as error:
            raise NotSent(_reason(error)) from None

    @property
    def _http(self) -> httpx.AsyncClient:
        """Reads no proxy from the environment, follows no redirect and keeps no connection or cookie."""
        if self._client is None:
            self._client = httpx.AsyncClient(
                verify=httpx.create_ssl_context(),
                trust_env=False,
                follow_redirects=False,
                timeout=httpx.Timeout(self._timeout_seconds, connect=self._timeout_seconds / 3),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            )
        return self._client


def _look_up(host: str, port: int) -> list[str]:
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _reason(error: httpx.HTTPError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate is not valid for the host: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "the TLS handshake failed"
        if isinstance(cause, ConnectionRefusedError):
            return "the connection was refused"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, NO_CONNECTION):
        return "the connection could not be made"
    return f"the endpoint broke off its answer ({type(error).__name__})"
