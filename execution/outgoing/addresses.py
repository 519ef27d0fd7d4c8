"""Checks that JIM calls only public addresses and those that the administrator allows."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from django.conf import settings

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LONGEST_URL = 8_000
UNFIT = re.compile(r"[\x00-\x20\x7f\\]|\s")
PLACE = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\])(:[0-9]*)?")
NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)

UNICAST = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")
# Networks that are not public, although `is_global` says so in some Python versions. Azure uses the first
# one for its virtual machines.
SPECIAL: tuple[Network, ...] = tuple(
    ip_network(network)
    for network in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20")
)


def url_complaint(url: str) -> str:
    """Return why JIM must not call the URL, as words that can follow “The URL”; empty if JIM may call it.

    The host is not looked up for this.
    """
    if UNFIT.search(url):
        return "contains a space, a control character or a backslash; write it percent-encoded, such as %20"
    if len(url) > LONGEST_URL:
        return f"is longer than {LONGEST_URL:,} characters; send the data in the body of the request instead"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        return f"cannot be read: {error}"
    if parts.scheme not in ("http", "https") or not host:
        return "must be a complete URL that begins with http:// or https://"
    if "@" in parts.netloc:
        return "must not contain a user name or password; use authentication and a secret instead"
    if not PLACE.fullmatch(parts.netloc):
        return f"contains {host!r}, which is neither a host name nor an IP address"
    literal = _literal(host)
    return _port_complaint(port, parts.scheme) or (address_complaint(host, literal) if literal else "")


def address_complaint(host: str, address: Address) -> str:
    """Return why JIM must not connect to this address of the host; empty if it may.

    The words can follow “The URL”.
    """
    hosts, networks = _allowed(tuple(settings.JIM_HTTP_ALLOW))
    candidates = [address, *_embedded(address)]
    if host.lower().removesuffix(".") in hosts:
        return ""
    if any(each in network for each in candidates for network in networks):
        return ""
    if _is_public(candidates[-1]):
        return ""
    return f"contains the host {host}, whose address is not public; the setting JIM_HTTP_ALLOW can allow it"


def _port_complaint(port: int | None, scheme: str) -> str:
    port = {"http": 80, "https": 443}[scheme] if port is None else port
    allowed: Sequence[int] = settings.JIM_HTTP_PORTS
    if port == 0:
        return "contains port 0, which cannot be called; leave the port out, or use one from 1 to 65535"
    if allowed and port not in allowed:
        return f"uses port {port}, which is not one of the allowed ports: {', '.join(map(str, allowed))}"
    return ""


def _literal(host: str) -> Address | None:
    """Return the host as an address if it is an IP address in any notation (even 127.1), otherwise None."""
    try:
        return ip_address(host)
    except ValueError:
        if not NUMERIC.fullmatch(host):
            return None
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _embedded(address: Address) -> list[IPv4Address]:
    """Return the IPv4 address that packets for this IPv6 address would reach, in a list; empty if none."""
    if isinstance(address, IPv4Address):
        return []
    if address in NAT64:
        return [IPv4Address(int(address) & 0xFFFF_FFFF)]
    found = address.ipv4_mapped or address.sixtofour
    return [] if found is None else [found]


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in UNICAST:
        return False
    if address.is_multicast or address.is_reserved or any(address in network for network in SPECIAL):
        return False
    return address.is_global


@lru_cache(maxsize=8)
def _allowed(listed: tuple[str, ...]) -> tuple[frozenset[str], tuple[Network, ...]]:
    hosts, networks = [], []
    for entry in listed:
        try:
            networks.append(ip_network(entry))
        except ValueError:
            hosts.append(entry.lower().removesuffix("."))
    return frozenset(hosts), tuple(networks)
