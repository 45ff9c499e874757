"""How the processes of a gang meet, and nobody else with them.

torch's TCPStore asks for no password and lists its keys to whoever reaches it. So it listens on node 0's loopback
alone, and runners carry connections to it over TLS with a certificate on either side. Each runner's own is in its
signed report, and StartTraining gives all of them to each: an authority would only be one more key to keep.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from schemas.training import Member, StartTraining
from services.trainer_agent.runner.settings import Settings
from shared.certificates import new_pair
from shared.files import create_whole
from shared.log import get_logger
from shared.ports import free_port

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.2
MEETING_SECONDS = 900.0
"""How long a process waits for the others, as torchrun does."""
MAX_UNPROVED = 64
"""Connections that have not shown a certificate yet; further ones are closed at once."""
CHUNK_BYTES = 64 * 1024

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OwnCertificate:
    """The runner's certificate and its key, in a file of its folder: one that starts again has reported it."""

    def __init__(self, folder: Path, *, node_id: str) -> None:
        self._path = folder / "gang.pem"
        if not self._path.exists():
            create_whole(self._path, new_pair(node_id))
        certificate = x509.load_pem_x509_certificate(self._path.read_bytes())
        self.text = base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()

    def server_context(self, trusted: Sequence[str]) -> ssl.SSLContext:
        """Return a context that lets in who has the key of one of these certificates."""
        return self._context(ssl.PROTOCOL_TLS_SERVER, trusted)

    def client_context(self, trusted: str) -> ssl.SSLContext:
        """Return a context that speaks to who has the key of this certificate, wherever that is."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, [trusted])

    def _context(self, protocol: int, trusted: Sequence[str]) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._path)
        for text in trusted:
            context.load_verify_locations(cadata=base64.b64decode(text))
        return context


class Door:
    """Accepts connections at one address and carries each to another, once both ends are proved."""

    def __init__(
        self, accept: Callable[[Stream], Awaitable[Stream]], connect: Callable[[], Awaitable[Stream]]
    ) -> None:
        self._accept = accept
        self._connect = connect
        self._tasks: set[asyncio.Task[None]] = set()
        self._unproved = 0
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen. Return the port. Raises OSError."""
        self._server = await asyncio.start_server(self._take, host, port)
        listening: int = self._server.sockets[0].getsockname()[1]
        return listening

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._unproved >= MAX_UNPROVED:
            log.warning("too many connections without a certificate", peer=_peer(writer), limit=MAX_UNPROVED)
            writer.transport.abort()
            return
        self._unproved += 1
        task = asyncio.create_task(self._carry((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, stream: Stream) -> None:
        try:
            inner = await self._proved(stream)
            if inner is not None:
                await self._carry_on(inner)
        finally:
            stream[1].transport.abort()

    async def _proved(self, stream: Stream) -> Stream | None:
        try:
            return await self._accept(stream)
        except OSError as error:
            log.warning("refused at the gang's door", peer=_peer(stream[1]), error=str(error) or repr(error))
            return None
        finally:
            self._unproved -= 1

    async def _carry_on(self, inner: Stream) -> None:
        try:
            async with asyncio.timeout(MEETING_SECONDS):
                outer = await self._connect()
        except TimeoutError:
            log.warning("no way to where the gang meets", seconds=MEETING_SECONDS)
            return
        pumps = [asyncio.create_task(_pump(inner, outer)), asyncio.create_task(_pump(outer, inner))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for _, writer in (inner, outer):
                writer.transport.abort()


@asynccontextmanager
async def meeting(settings: Settings, start: StartTraining, own: OwnCertificate) -> AsyncIterator[int | None]:
    """Yield the port on this machine's loopback at which its processes meet all others, for as long as they may.

    None: the gang has a node of an older release, without a certificate, and meets at node 0's address as that does.
    Raises: OSError where node 0's address cannot be listened at.
    """
    if start.nodes == 1:
        yield free_port()
        return
    certificates = [each for member in start.members if (each := member.certificate) is not None]
    if len(certificates) < len(start.members):
        log.warning("the gang meets unprotected: a runner of it is of an older release")
        yield None
        return
    first = start.members[0]
    if settings.node_index == 0:
        port = free_port()
        door = Door(_server_end(own.server_context(certificates)), _connection(LOOPBACK, port))
        await door.open(settings.host, first.port)
    else:
        door = Door(_as_it_is, _connection_to(first, own))
        port = await door.open(LOOPBACK, 0)
    try:
        yield port
    finally:
        await door.close()


def _server_end(context: ssl.SSLContext) -> Callable[[Stream], Awaitable[Stream]]:
    async def accept(stream: Stream) -> Stream:
        reader, writer = stream
        await writer.start_tls(context, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        return reader, writer

    return accept


async def _as_it_is(stream: Stream) -> Stream:
    """Take a connection of this machine, whose processes have no certificate."""
    return stream


def _connection_to(first: Member, own: OwnCertificate) -> Callable[[], Awaitable[Stream]]:
    assert first.certificate is not None, "asked of gangs whose members all have one"
    return _connection(first.host, first.port, own.client_context(first.certificate))


def _connection(
    host: str, port: int, context: ssl.SSLContext | None = None
) -> Callable[[], Awaitable[Stream]]:
    async def connect() -> Stream:
        """Connect, and wait for who is not there yet: runners and torchrun start at different times."""
        while True:
            try:
                return await asyncio.open_connection(host, port, ssl=context)
            except ssl.SSLError as error:
                log.warning("who answers is not node 0", host=host, port=port, error=str(error))
            except OSError:
                log.debug("nobody answers yet", host=host, port=port)
            await asyncio.sleep(RETRY_SECONDS)

    return connect


async def _pump(source: Stream, sink: Stream) -> None:
    with suppress(OSError):
        while data := await source[0].read(CHUNK_BYTES):
            sink[1].write(data)
            await sink[1].drain()


def _peer(writer: asyncio.StreamWriter) -> str:
    return str(writer.get_extra_info("peername"))
