"""Where a webhook may go: what an endpoint's URL may be, and to which addresses connections are made. Pure."""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL_CHARACTERS = 2_048
DEFAULT_PORTS = {"https": 443, "http": 80}
FIRST_FREE_PORT = 1_024
"""Below it are the services of a machine, such as mail."""

PRINTABLE = re.compile(r"[!-~]+")
NOT_IN_URLS = frozenset('"<>\\^`{|}')
LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*", re.IGNORECASE)
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)
"""A last label like this makes the host an IPv4 address, in an old spelling: 127.1, 0x7f000001, 0177.0.0.1."""

UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
"""All that is routed on the internet; of it `is_global` leaves out what is reserved."""
WITH_V4_INSIDE = tuple(
    map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "64:ff9b::/96", "64:ff9b:1::/48"))
)
"""6to4, Teredo and NAT64 lead on to an IPv4 address."""


class InvalidUrl(ValueError):
    """The text is no URL to which webhooks are sent; the message says why."""


@dataclass(frozen=True)
class Destination:
    scheme: str
    host: str
    port: int
    target: str
    """Path and query, as they are requested."""

    @property
    def authority(self) -> str:
        """The header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(text: str, *, allow_http: bool) -> Destination:
    """Take the URL apart. Raises InvalidUrl."""
    if not 1 <= len(text) <= MAX_URL_CHARACTERS:
        raise InvalidUrl(f"found {len(text)} characters, expected 1 to {MAX_URL_CHARACTERS}")
    if not PRINTABLE.fullmatch(text) or NOT_IN_URLS & {*text}:
        raise InvalidUrl(
            "found a character that no URL has; write others as %XX, and a host in ASCII (xn--…)"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidUrl(str(error)) from None
    schemes = ("https", "http") if allow_http else ("https",)
    if parts.scheme not in schemes:
        raise InvalidUrl(f"found scheme {parts.scheme[:20]!r}, expected {' or '.join(schemes)}")
    if "@" in parts.netloc or "#" in text:
        raise InvalidUrl("found a user name, a password or a fragment, expected none")
    return Destination(parts.scheme, _host(parts), _port(port, parts.scheme), _target(parts))


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if "%" in host:
        raise InvalidUrl("host: found %, expected none")
    if "[" in parts.netloc or NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            raise InvalidUrl(
                f"host: found {host[:80]!r}, expected a name or an address as 192.0.2.1"
            ) from None
    if not HOST_NAME.fullmatch(host):
        raise InvalidUrl(f"host: found {host[:80]!r}, expected a name")
    return host


def _port(port: int | None, scheme: str) -> int:
    if port is None:
        return DEFAULT_PORTS[scheme]
    if port < FIRST_FREE_PORT and port != DEFAULT_PORTS[scheme]:
        expected = f"{DEFAULT_PORTS[scheme]} or one from {FIRST_FREE_PORT} on"
        raise InvalidUrl(f"port: found {port}, expected {expected}")
    return port


def _target(parts: SplitResult) -> str:
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


def literal_address(host: str) -> Address | None:
    """Return the address that the host is; None where it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether connections are made to it: a public address, or one of networks that the operator allows."""
    address = _unmapped(address)
    if any(address.version == network.version and address in network for network in networks):
        return True
    if isinstance(address, ipaddress.IPv6Address):
        is_routed = address in UNICAST_V6 and not any(address in network for network in WITH_V4_INSIDE)
        return is_routed and address.is_global
    return address.is_global and not (address.is_multicast or address.is_reserved)


def all_allowed(addresses: Iterable[Address], networks: Sequence[Network]) -> bool:
    return all(is_allowed(address, networks) for address in addresses)


def _unmapped(address: Address) -> Address:
    """Return the IPv4 address that ::ffff:0:0/96 maps; a connection to such an address leads there."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
