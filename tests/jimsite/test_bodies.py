"""Bodies that are too long are refused before anything of JIM, or a file on the disk, takes them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.reading import LongJSONParser
from jimsite.bodies import MOST_BYTES, bounded_wsgi
from tests.api.serving import ASGI, WSGI, serving
from tests.waiting import PATIENCE_SECONDS

MIB = 1_048_576


def asked(*sizes: int, length: int | None = None, path: str = "/api/v1/schedules") -> tuple[list[Any], int]:
    """What is sent back, and how many parts of the body were read."""
    from jimsite.asgi import application

    parts = iter([*({"type": "http.request", "body": b"x" * size, "more_body": True} for size in sizes)])
    sent: list[Any] = []
    read = 0

    async def receive() -> Any:
        nonlocal read
        read += 1
        return next(parts, {"type": "http.request", "body": b"", "more_body": False})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers += [(b"content-length", str(length).encode())] if length is not None else []
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    asyncio.run(application(scope | {"http_version": "1.1", "asgi": {"version": "3.0"}}, receive, send))
    return sent, read


@pytest.mark.parametrize(
    ("sizes", "length", "read"),
    [
        pytest.param([MIB] * 300, 300 * MIB, 0, id="by length"),
        pytest.param([MIB] * 300, None, 5, id="by stream"),
        pytest.param([MIB] * 300, 10, 5, id="longer than it said"),
        pytest.param([], 10**30, 0, id="an absurd length"),
    ],
)
def test_no_more_is_read_than_is_taken(sizes: list[int], length: int | None, read: int) -> None:
    [start, body], parts = asked(*sizes, length=length)
    assert (start["status"], parts) == (413, read)
    assert dict(start["headers"])[b"connection"] == b"close"
    told = json.loads(body["body"])
    assert (told["status"], "4 MiB" in told["detail"]) == (413, True)
    [_, body], _ = asked(*sizes, length=length, path="/login")
    assert b"4 MiB" in body["body"]


def test_what_a_route_takes_is_not_refused_before_it() -> None:
    assert LongJSONParser.max_bytes <= MOST_BYTES


def test_a_server_of_the_older_kind_refuses_by_length() -> None:
    told: list[str] = []
    refusing = bounded_wsgi(lambda environ, start_response: [b"taken"])
    for length, words in (("10", b"taken"), (str(300 * MIB), b"4 MiB"), ("", b"taken")):
        environ = {"PATH_INFO": "/api/v1/schedules", "CONTENT_LENGTH": length}
        assert words in b"".join(refusing(environ, lambda status, headers: told.append(status)))
    assert told == ["413 Content Too Large"]


def sent_to(address: str, head: str, parts: Iterator[bytes]) -> bytes:
    """All that a server answers until it closes the connection; it may do that while it is written to."""
    parsed = urlsplit(address)
    answer = b""
    with socket.create_connection((parsed.hostname, parsed.port), timeout=PATIENCE_SECONDS) as line:
        try:
            line.sendall(head.encode())
            for part in parts:
                line.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            while got := line.recv(65_536):
                answer += got
        except ConnectionResetError:
            pass
    return answer


HEAD = "POST /api/v1/schedules HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.live
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("interface", [ASGI, WSGI], ids=["asgi", "wsgi"])
def test_a_real_server_refuses_and_closes_the_connection(interface: tuple[str, str]) -> None:
    with serving(interface) as address:
        # Nothing of the body is sent: whoever waits for it would wait for good.
        answer = sent_to(address, f"{HEAD}Content-Length: {300 * MIB}\r\n\r\n", iter(()))
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"4 MiB" in answer
        if interface == ASGI:
            # One byte too many, and no end. Unread data would reset the connection, and lose the answer.
            chunks = [b"%x\r\n%s\r\n" % (size, b"x" * size) for size in (*[MIB] * 4, 1)]
            answer = sent_to(address, f"{HEAD}Transfer-Encoding: chunked\r\n\r\n", iter(chunks))
            assert answer.startswith(b"HTTP/1.1 413 ")
