"""HTTP calls to other servers, which never connect to addresses that are not allowed.

Every connection looks up its host once, checks all resulting addresses, and uses one of them. Proxies and
credentials from the environment are not used. Another thread can end a call at any moment.

This module loads the HTTP client, which takes several megabytes of memory, so import it only where a call is
made.
"""

from __future__ import annotations

import ssl
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpcore2
import httpx2
from django.conf import settings

from execution.steps.masking import conceal

from .addresses import url_complaint
from .network import CallFailed, Limits, Network, Resolver, system_addresses

MAX_REDIRECTS = 5
KEPT_BYTES = 128 * 1024
INFLATED_AT_ONCE = 256 * 1024
HEAD_BYTES = 256 * 1024
MAX_PIECES = 250_000  # each takes its time to read, however small it is

OF_A_BODY = ("content-type", "content-encoding", "content-language", "content-location")
FOR_ANYBODY = ("accept", "accept-encoding", "accept-language", "content-type", "user-agent")


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An HTTP response. `body` has at most the first KEPT_BYTES bytes, decompressed if they were gzipped."""

    status: int
    url: str
    headers: httpx2.Headers
    body: bytes
    size: int
    seconds: float


class Call:
    """One HTTP request, with the redirects that follow it. Use each object only once."""

    def __init__(
        self,
        *,
        idle_seconds: float = Limits.idle_seconds,
        total_seconds: float = Limits.total_seconds,
        connect_seconds: float = Limits.connect_seconds,
        resolve: Resolver = system_addresses,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._started = time.monotonic()
        limits = Limits(
            connect_seconds=connect_seconds, idle_seconds=idle_seconds, total_seconds=total_seconds
        )
        self._network = Network(limits, resolve=resolve, tls=tls)

    def send(self, request: Request, *, follow_redirects: bool = False, enough: int | None = None) -> Answer:
        """Send the request and return the response, whatever its status; raise CallFailed if there is none.

        If `enough` is given, stop reading the body after this many bytes.
        """
        for _ in range(MAX_REDIRECTS + 1):
            with self._asked(request) as response:
                headers = httpx2.Headers(response.headers)
                if not (follow_redirects and is_redirect(response.status, headers)):
                    return self._answer(request, response, headers, enough)
            request = redirected(request, response.status, headers["location"])
        raise CallFailed(f"the request was redirected more than {MAX_REDIRECTS} times", can_retry=False)

    def hang_up(self) -> None:
        """End the call from any thread: `send` fails immediately, unless it already has the response."""
        self._network.cut_off()

    @property
    def was_hung_up(self) -> bool:
        return self._network.is_cut_off

    @contextmanager
    def _asked(self, request: Request) -> Iterator[httpcore2.Response]:
        url = _read(request.url)
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        connection = httpcore2.HTTPConnection(
            target.origin,
            # The client changes the context that it is given, which is not safe for a context that threads
            # share. The network therefore ignores this context and uses the shared one.
            ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.scheme == "https" else None,
            network_backend=self._network,
        )
        self._network.allow(HEAD_BYTES)
        try:
            yield connection.handle_request(
                httpcore2.Request(
                    request.method, target, headers=_headers(request, url), content=request.body
                )
            )
        except httpcore2.LocalProtocolError:
            # The message of the error would repeat a header.
            raise CallFailed(
                "the request cannot be sent, because it is not valid HTTP", can_retry=False
            ) from None
        except httpcore2.RemoteProtocolError as error:
            raise CallFailed(f"invalid response from {url.host}: {conceal(str(error))[:200]}") from None
        finally:
            self._network.close()

    def _answer(
        self, request: Request, response: httpcore2.Response, headers: httpx2.Headers, enough: int | None
    ) -> Answer:
        # The limit also counts the framing of the body's pieces, and data that unpacks to nothing.
        self._network.allow(2 * settings.JIM_HTTP_BYTES + HEAD_BYTES)
        pieces = response.iter_stream()
        if headers.get("content-encoding", "").lower() in ("gzip", "x-gzip"):
            del headers["content-encoding"]
            pieces = _unpacked(pieces)
        kept, size = bytearray(), 0
        for number, piece in enumerate(pieces):
            size += len(piece)
            if size > settings.JIM_HTTP_BYTES or number > MAX_PIECES:
                limit = f"{settings.JIM_HTTP_BYTES:,} bytes (JIM_HTTP_BYTES) or {MAX_PIECES:,} pieces"
                raise CallFailed(f"the response is longer than {limit}", can_retry=False)
            kept += piece[: KEPT_BYTES - len(kept)]
            if enough is not None and size >= enough:
                break
        return Answer(
            status=response.status,
            url=request.url,
            headers=headers,
            body=bytes(kept),
            size=size,
            seconds=time.monotonic() - self._started,
        )


def is_redirect(status: int, headers: Mapping[str, str]) -> bool:
    return status in (301, 302, 303, 307, 308) and "location" in headers


def redirected(request: Request, status: int, location: str) -> Request:
    """Return the request to send after a redirect. Credentials are not sent to another site."""
    here = _read(request.url)
    there = _read(location, base=here)
    headers = {name.lower(): value for name, value in request.headers.items()}
    method, body = request.method, request.body
    if (status == 303 and method not in ("GET", "HEAD")) or (status in (301, 302) and method == "POST"):
        method, body = "GET", b""
        headers = {name: value for name, value in headers.items() if name not in OF_A_BODY}
    if _origin(there) != _origin(here):
        headers = {name: value for name, value in headers.items() if name in FOR_ANYBODY}
        if body:
            raise CallFailed(
                f"{here.host} redirects to {there.host}, but JIM does not send the body of a request on to "
                "another site; to send it there, use the URL of that site",
                can_retry=False,
            )
    return replace(request, method=method, url=str(there), headers=headers, body=body)


def _read(text: str, *, base: httpx2.URL | None = None) -> httpx2.URL:
    """Return the parsed URL; raise CallFailed if JIM must not call it.

    The same parsed URL is used for the check and for the request, so the two cannot disagree.
    """
    try:
        url = base.join(text) if base else httpx2.URL(text)
        complaint = url_complaint(str(url))
    except (httpx2.InvalidURL, ValueError) as error:
        complaint = f"cannot be read: {error}"
    if complaint:
        which = f"the URL that {base.host} redirects to" if base else "the URL"
        raise CallFailed(f"refused: {which} {complaint}", can_retry=False)
    return url


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _headers(request: Request, url: httpx2.URL) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode("ascii"), value.encode()) for name, value in request.headers.items()]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"Content-Length", str(len(request.body)).encode()))
    return [(b"Host", url.netloc), *headers]


def _unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    inflate, is_empty = zlib.decompressobj(zlib.MAX_WBITS | 16), True
    for piece in pieces:
        is_empty = False
        yield from _unpacked_piece(inflate, piece)
        if inflate.eof:
            return
    if not is_empty:
        raise CallFailed("the response cannot be decompressed: its end is missing")


def _unpacked_piece(inflate: Any, piece: bytes) -> Iterator[bytes]:
    """Yield the decompressed data in pieces of limited size, however well the data was compressed."""
    inflated = b"more"
    while inflated and not inflate.eof:
        try:
            inflated = inflate.decompress(piece, INFLATED_AT_ONCE)
        except zlib.error as error:
            raise CallFailed(f"the response cannot be decompressed: {error}") from None
        yield inflated
        piece = inflate.unconsumed_tail
