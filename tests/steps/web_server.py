"""A real web server on 127.0.0.1, good and bad at its work; each path is one way to behave."""

from __future__ import annotations

import gzip
import html
import json
import socket
import ssl
import threading
from base64 import b64encode, encodebytes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from tests.waiting import PATIENCE_SECONDS

MEBIBYTE = 1024 * 1024
STATES = {"01": "connected", "02": "connecting"}


class WebServer(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, Any]] = []
        self.stored = b""
        self.waiting: set[Handler] = set()
        self.is_ending = threading.Event()
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    @property
    def url(self) -> str:
        return self.url_of("127.0.0.1")

    def url_of(self, host: str) -> str:
        return f"{self.scheme}://{host}:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what many tests are about."""

    def paths(self) -> list[str]:
        return [f"{request['method']} {request['path']}" for request in self.seen]


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    with WebServer(tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.is_ending.set()
            server.shutdown()
            thread.join()


@contextmanager
def deaf() -> Iterator[int]:
    """A port that takes no more connections, and does not say so: whoever connects waits."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        try:
            yield listener.getsockname()[1]
        finally:
            for each in waiting:
                each.close()


@contextmanager
def mute() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        yield listener.getsockname()[1]


def connections(port: int) -> list[str]:
    """The states, as the system counts them, of this host's connections to the port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [STATES.get(state, state) for _, _, remote, state, *_ in lines if remote.endswith(f":{port:04X}")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def handle_any(self) -> None:
        is_hasty = self.path == "/hasty"
        self.body = b"" if is_hasty else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = {"method": self.command, "path": self.path, "headers": headers, "body": self.body.decode()}
        self.server.seen.append(seen)
        self.close_connection = True
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        with suppress(ConnectionError):
            getattr(self, f"on_{parts.path.strip('/').replace('-', '_')}")()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_any  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass

    def on_echo(self) -> None:
        self.answer(json.dumps(self.server.seen[-1]).encode(), type="application/json")

    def on_reflect(self) -> None:
        """Says what it was told wherever and however it can, as careless servers do."""
        told = self.body.decode()
        as_go_does = {ord(char): f"\\u{ord(char):04x}" for char in "&<>"}
        forms = [told, html.escape(told), json.dumps(told), quote(told), self.body.hex()]
        forms += [json.dumps(told, ensure_ascii=False).translate(as_go_does)]
        forms += [b64encode(self.body).decode(), encodebytes(self.body).decode()]
        self.answer(
            f"<p>{'</p><p>'.join(forms)}</p>".encode(),
            status=int(self.query["is"]),
            type="text/html; charset=utf-8",
            ETag=self.headers["X-Token"],
            Location=f"/{quote(told)}",
        )

    def on_hasty(self) -> None:
        """Answers without having read the body, and hangs up."""
        self.answer(b"too large", status=413)

    def on_status(self) -> None:
        status = int(self.query["is"])
        self.answer(b"" if status in (204, 304) else f"this is {status}".encode(), status=status)

    def on_busy(self) -> None:
        after = {"Retry-After": self.query["after"]} if "after" in self.query else {}
        self.answer(b"busy", status=int(self.query["is"]), **after)

    def on_recovers(self) -> None:
        """Fails so many times first."""
        has_failed = sum(request["path"] == self.path for request in self.server.seen)
        self.answer(b"", status=500 if has_failed <= int(self.query["after"]) else 204)

    def on_typed(self) -> None:
        """The body that is wanted, sent in hexadecimal digits, and its type."""
        self.answer(bytes.fromhex(self.body.decode()), type=self.query["type"])

    def on_redirect(self) -> None:
        self.answer(b"elsewhere", status=int(self.query.get("is", 302)), Location=self.query["to"])

    def on_huge_redirect(self) -> None:
        self.start(302, Location=self.query["to"])
        self.write_for_ever(b"x" * 65_536)

    def on_loop(self) -> None:
        self.answer(b"", status=302, Location="/loop")

    def on_silence(self) -> None:
        self.server.is_ending.wait(PATIENCE_SECONDS)

    def on_second_attempt(self) -> None:
        """Silent to the first one, until that hangs up."""
        if self.query["attempt"] != "1":
            return self.answer(b"welcome back")
        self.server.waiting.add(self)
        while not self.has_hung_up() and not self.server.is_ending.wait(0.02):
            pass
        self.server.waiting.discard(self)
        return None

    def on_slow_body(self) -> None:
        """Begins, and does not go on."""
        self.start(200, **{"Content-Length": "1000"})
        self.wfile.write(b"first words\n")
        self.server.is_ending.wait(PATIENCE_SECONDS)

    def on_slow_unmeasured(self) -> None:
        """The same without a length: there, the end of the connection is the end of the answer."""
        self.start(200)
        self.wfile.write(b"first words\n")
        self.server.is_ending.wait(PATIENCE_SECONDS)

    def on_drip(self) -> None:
        self.start(200, **{"Content-Length": str(MEBIBYTE)})
        while not self.server.is_ending.wait(0.02):
            self.wfile.write(b".")

    def on_drip_head(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
        while not self.server.is_ending.wait(0.02):
            self.wfile.write(b".")

    def on_sized(self) -> None:
        body = b"x" * int(self.query["bytes"])
        if "pack" in self.query:
            self.packed(gzip.compress(body))
        else:
            self.answer(body)

    def on_numbers(self) -> None:
        size = int(self.query["bytes"])
        self.answer(b"[" + b"1," * ((size - 3) // 2) + b" 1]"[-(3 - size % 2) :], type="application/json")

    def on_stored(self) -> None:
        self.answer(self.server.stored, type=f"text/plain; charset={self.query['charset']}")

    def on_huge(self) -> None:
        self.start(200)
        self.write_for_ever(b"x" * 65_536)

    def on_huge_head(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Huge: ")
        self.write_for_ever(b"x" * 65_536)

    def on_informs(self) -> None:
        """One interim answer after the other."""
        self.write_for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)

    def on_chunked(self) -> None:
        self.start(200, **{"Transfer-Encoding": "chunked", "Content-Type": "text/plain"})
        for word in (b"one ", b"two ", b"three"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(word), word))
        self.wfile.write(b"0\r\n\r\n")

    def on_crumbs(self) -> None:
        """Chunks of one byte, as costly as can be to read."""
        self.start(200, **{"Transfer-Encoding": "chunked"})
        self.write_for_ever(b"1\r\nx\r\n" * 10_000)

    def on_gzip(self) -> None:
        self.packed(gzip.compress(self.query["text"].encode()) if "text" in self.query else b"")

    def on_cut_gzip(self) -> None:
        self.packed(gzip.compress(b"some text that ends too early")[:-12])

    def on_false_gzip(self) -> None:
        self.packed(b"this is not gzip")

    def on_bomb(self) -> None:
        self.packed(gzip.compress(bytes(64 * MEBIBYTE)))

    def on_endless_gzip(self) -> None:
        """Empty blocks of gzip without end: much to read, and nothing comes out."""
        self.start(200, **{"Content-Encoding": "gzip"})
        self.wfile.write(gzip.compress(b"")[:10])
        self.write_for_ever(b"\0\0\0\xff\xff" * 10_000)

    def write_for_ever(self, piece: bytes) -> None:
        while not self.server.is_ending.is_set():
            self.wfile.write(piece)

    def on_nested_bomb(self) -> None:
        self.packed(gzip.compress(gzip.compress(bytes(64 * MEBIBYTE))), coding="gzip, gzip")

    def on_drop(self) -> None:
        """Hangs up without a word."""

    def on_reset(self) -> None:
        linger = (1).to_bytes(4, "little") + bytes(4)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def on_cut(self) -> None:
        self.start(200, **{"Content-Length": "1000"})
        self.wfile.write(b"ten bytes.")

    def on_garbage(self) -> None:
        self.wfile.write(b"This is not HTTP.\r\n\r\n")

    def on_twice(self) -> None:
        """Two lengths: which one counts is what request smuggling is made of."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\nok")

    def has_hung_up(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def packed(self, body: bytes, *, coding: str = "gzip") -> None:
        self.start(200, **{"Content-Encoding": coding, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def answer(self, body: bytes, *, status: int = 200, type: str = "text/plain", **headers: str) -> None:
        own = {"Content-Length": str(len(body))} | ({"Content-Type": type} if type else {})
        self.start(status, **own, **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def start(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
