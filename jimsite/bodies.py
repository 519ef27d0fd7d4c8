"""Refuse request bodies that are too long before Django stores them on disk."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[dict[str, Any], Receive, Send], Coroutine[Any, Any, None]]
WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MOST_BYTES = 4 * 1_048_576
TITLE = "Request body too large"
TEXT = f"A request body can have at most {MOST_BYTES:,} bytes (4 MiB). Send less data in each request."


def bounded_asgi(application: AsgiApplication) -> AsgiApplication:
    async def answer(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await application(scope, receive, send)
        body = _Body(receive)
        if _is_too_long(dict(scope["headers"]).get(b"content-length", b"")):
            body.is_too_long = True
        else:
            await application(scope, body.receive, send)
        if body.is_too_long:
            await _refuse(scope["path"], send)
        return None

    return answer


class _Body:
    """A request body whose bytes are counted while it is read, because its length might not be declared."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0
        self.is_too_long = False

    async def receive(self) -> Message:
        """Return the next message, or a disconnect message if the body is too long.

        Django sends no response after a disconnect.
        """
        if not self.is_too_long:
            message = await self._receive()
            self._bytes += len(message.get("body", b""))
            self.is_too_long = self._bytes > MOST_BYTES
        return {"type": "http.disconnect"} if self.is_too_long else message


async def _refuse(path: str, send: Send) -> None:
    headers, body = _answer(path)
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": 413, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def bounded_wsgi(application: WsgiApplication) -> WsgiApplication:
    """Wrap a WSGI application, so that requests whose declared length is too long are refused.

    The body itself is not counted: under WSGI, Django reads no body if no length is declared.
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not _is_too_long(environ.get("CONTENT_LENGTH", "").encode()):
            return application(environ, start_response)
        headers, body = _answer(environ.get("PATH_INFO", ""))
        start_response("413 Content Too Large", headers)
        return [body]

    return answer


def _is_too_long(length: bytes) -> bool:
    return length.isdigit() and (len(length) > 18 or int(length) > MOST_BYTES)


def _answer(path: str) -> tuple[list[tuple[str, str]], bytes]:
    """Return the headers and the body of the response to a request that is too long.

    The response closes the connection, because the rest of the request body is not read.
    """
    if path.startswith("/api/"):
        kind = "application/problem+json"
        problem = {"type": "urn:jim:problem:too-long", "title": TITLE, "status": 413, "detail": TEXT}
        body = json.dumps(problem).encode()
    else:
        kind, body = "text/plain; charset=utf-8", f"{TITLE}. {TEXT}\n".encode()
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
    return [*headers.items(), ("Cache-Control", "no-store")], body
